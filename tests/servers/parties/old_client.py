"""A story told to a server by the official client of the line 1.x: prints what it saw as JSON.

Run in an environment of its own: `python old_client.py STORY -- COMMAND…`. A story is a list of
`[method, argument…]`, as JSON.
"""

import asyncio
import json
import os
import sys
from typing import Any

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client


async def main(story: list[list[Any]], command: list[str]) -> None:
    seen: list[Any] = []

    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        seen.append(["log", params.level, params.data])

    async def sampled(context: Any, params: types.CreateMessageRequestParams) -> Any:
        text = types.TextContent(type="text", text="a sample")
        return types.CreateMessageResult(role="assistant", content=text, model="scripted")

    async def elicited(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="decline")

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        seen.append(["progress", progress, total, message])

    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    callbacks: Any = {
        "logging_callback": logged,
        "sampling_callback": sampled,
        "elicitation_callback": elicited,
    }
    async with (
        stdio_client(server) as (reading, writing),
        ClientSession(reading, writing, **callbacks) as session,
    ):
        seen.append((await session.initialize()).model_dump(mode="json"))
        for method, *arguments in story:
            more = {"progress_callback": progressed} if method == "call_tool" else {}
            try:
                answer = await getattr(session, method)(*arguments, **more)
                seen.append(answer.model_dump(mode="json"))
            except Exception as error:  # noqa: BLE001 - what a client shows of it is compared
                seen.append([type(error).__name__, str(error)])
    print(json.dumps(seen))


at = sys.argv.index("--")
asyncio.run(main(json.loads(sys.argv[1]), sys.argv[at + 1 :]))
