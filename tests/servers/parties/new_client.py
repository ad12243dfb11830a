"""The same by the official client of the line 2.x, in a given era of the protocol.

`python new_client.py STORY ERA -- COMMAND…`
"""

import asyncio
import json
import os
import sys
from typing import Any

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitResult


async def main(story: list[list[Any]], era: str, command: list[str]) -> None:
    seen: list[Any] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        seen.append(["progress", progress, total, message])

    async def elicited(context: Any, params: Any) -> ElicitResult:
        seen.append(["asked", params.message])
        return ElicitResult(action="accept", content={"decision": os.environ["DECISION"]})

    more: dict[str, Any] = {"elicitation_callback": elicited} if "DECISION" in os.environ else {}
    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with Client(stdio_client(server), mode=era, **more) as client:
        for method, *arguments in story:
            told = {"progress_callback": progressed} if method == "call_tool" else {}
            try:
                answer = await getattr(client, method)(*arguments, **told)
                seen.append(answer.model_dump(mode="json"))
            except Exception as error:  # noqa: BLE001 - what a client shows of it is compared
                seen.append([type(error).__name__, str(error)])
    print(json.dumps(seen))


at = sys.argv.index("--")
asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[at + 1 :]))
