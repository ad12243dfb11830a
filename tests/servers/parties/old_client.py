"""A story told to a server by the official client of the line 1.x: prints what it saw as JSON.

Run in an environment of its own: `python old_client.py STORY -- COMMAND…`. A story is a list of
`[method, argument…]`, as JSON. In place of a command, the address of a server may stand. With
`ANSWERS` in the environment, it answers all that a server may ask it.
"""

import asyncio
import functools
import json
import os
import sys
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


async def cancel(session: ClientSession, name: str, arguments: dict[str, Any]) -> None:
    """Call a tool, and cancel it as soon as it tells of its progress."""
    began = anyio.Event()

    async def progressed(*_: Any) -> None:
        began.set()

    number = session._request_id
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            functools.partial(session.call_tool, name, arguments, progress_callback=progressed)
        )
        await began.wait()
        params = types.CancelledNotificationParams(requestId=number, reason="enough")
        note = types.CancelledNotification(params=params)
        await session.send_notification(types.ClientNotification(note))
        tasks.cancel_scope.cancel()


async def main(story: list[list[Any]], command: list[str]) -> None:
    seen: list[Any] = []

    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        seen.append(["log", params.level, params.data])

    async def sampled(context: Any, params: types.CreateMessageRequestParams) -> Any:
        text = types.TextContent(type="text", text="a sample")
        return types.CreateMessageResult(role="assistant", content=text, model="scripted")

    async def elicited(context: Any, params: Any) -> types.ElicitResult:
        if "ANSWERS" not in os.environ:
            return types.ElicitResult(action="decline")
        seen.append(["asked", params.message])
        return types.ElicitResult(action="accept", content={"sure": True})

    async def rooted(context: Any) -> types.ListRootsResult:
        root = types.Root.model_validate({"uri": "file:///work"})
        return types.ListRootsResult(roots=[root])

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        seen.append(["progress", progress, total, message])

    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    callbacks: Any = {
        "logging_callback": logged,
        "sampling_callback": sampled,
        "elicitation_callback": elicited,
    }
    if "ANSWERS" in os.environ:
        callbacks["list_roots_callback"] = rooted
    by_http = command[0].startswith("http")
    connected: Any = streamable_http_client(command[0]) if by_http else stdio_client(server)
    async with (
        connected as (reading, writing, *_),
        ClientSession(reading, writing, **callbacks) as session,
    ):
        seen.append((await session.initialize()).model_dump(mode="json"))
        for method, *arguments in story:
            if method == "cancel":
                await cancel(session, *arguments)
                seen.append("cancelled")
                continue
            more = {"progress_callback": progressed} if method == "call_tool" else {}
            try:
                answer = await getattr(session, method)(*arguments, **more)
                seen.append(answer.model_dump(mode="json"))
            except Exception as error:  # noqa: BLE001 - what a client shows of it is compared
                seen.append([type(error).__name__, str(error)])
    print(json.dumps(seen))


at = sys.argv.index("--")
asyncio.run(main(json.loads(sys.argv[1]), sys.argv[at + 1 :]))
