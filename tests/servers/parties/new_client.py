"""The same by the official client of the line 2.x, in a given era of the protocol.

`python new_client.py STORY ERA -- COMMAND…`, or the address of a server.
"""

import asyncio
import functools
import json
import os
import sys
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent


async def cancel(client: Client, name: str, arguments: dict[str, Any]) -> None:
    """Call a tool, and cancel it as soon as it tells of its progress."""
    began = anyio.Event()

    async def progressed(*_: Any) -> None:
        began.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            functools.partial(client.call_tool, name, arguments, progress_callback=progressed)
        )
        await began.wait()
        tasks.cancel_scope.cancel()


async def main(story: list[list[Any]], era: str, command: list[str]) -> None:
    seen: list[Any] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        seen.append(["progress", progress, total, message])

    async def elicited(context: Any, params: Any) -> ElicitResult:
        seen.append(["asked", params.message])
        answer = {"sure": True} if "ANSWERS" in os.environ else {"decision": os.environ["DECISION"]}
        return ElicitResult(action="accept", content=answer)

    async def sampled(context: Any, params: Any) -> CreateMessageResult:
        text = TextContent(type="text", text="a sample")
        return CreateMessageResult(role="assistant", content=text, model="scripted")

    async def rooted(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root.model_validate({"uri": "file:///work"})])

    more: dict[str, Any] = {}
    if {"ANSWERS", "DECISION"} & os.environ.keys():
        more["elicitation_callback"] = elicited
    if "ANSWERS" in os.environ:
        more |= {"sampling_callback": sampled, "list_roots_callback": rooted}
    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    by_http = command[0].startswith("http")
    async with Client(command[0] if by_http else stdio_client(server), mode=era, **more) as client:
        for method, *arguments in story:
            if method == "cancel":
                await cancel(client, *arguments)
                seen.append("cancelled")
                continue
            told = {"progress_callback": progressed} if method == "call_tool" else {}
            try:
                answer = await getattr(client, method)(*arguments, **told)
                seen.append(answer.model_dump(mode="json"))
            except Exception as error:  # noqa: BLE001 - what a client shows of it is compared
                seen.append([type(error).__name__, str(error)])
    print(json.dumps(seen))


at = sys.argv.index("--")
asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[at + 1 :]))
