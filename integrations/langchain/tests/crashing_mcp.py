"""An agent with a server's tools and a checkpointer, in a process that is killed: `test_mcp.py`.

`python crashing_mcp.py FOLDER COMMAND… -- POINT`: it goes on from its last checkpoint, and dies
where a tool's message is to be checkpointed for the POINTth time; at 0, never.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from crashing import CONFIG, Scripted  # type: ignore[import-not-found]  # is beside this program
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from rollcage import Session
from rollcage_langchain import RollcageMiddleware, guard_model, mcp_tools

FOLDER, COMMAND, POINT = Path(sys.argv[1]), sys.argv[2:-2], int(sys.argv[-1])
SCRIPT: list[Any] = [[("note", {"line": "a"})], [("note", {"line": "b"})], "done"]


class Saver(AsyncSqliteSaver):
    """A checkpointer before which the process dies: what was done is not in the graph's state."""

    points = 0

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        """Store what a task wrote, or die."""
        self.points += "ToolMessage(" in repr(args[1])
        if self.points == POINT:
            os.kill(os.getpid(), signal.SIGKILL)
        await super().aput_writes(*args, **kwargs)


async def main() -> None:
    """Go on."""
    server: Any = {"transport": "stdio", "command": COMMAND[0], "args": COMMAND[1:]}
    client = MultiServerMCPClient({"features": server})
    async with (
        Saver.from_conn_string(str(FOLDER / "memory")) as saver,
        Session("job", store=FOLDER / "store") as session,
    ):
        agent: Any = create_agent(
            guard_model(Scripted(script=SCRIPT), session),
            await mcp_tools(client, session),
            middleware=[RollcageMiddleware(session)],
            checkpointer=saver,
        )
        known = (await agent.aget_state(CONFIG)).values
        question = {"messages": [HumanMessage("Go.", id="question")]}
        state = await agent.ainvoke(None if known else question, CONFIG, durability="sync")
    sys.stdout.write(" | ".join(each.text for each in state["messages"] if each.text))


if __name__ == "__main__":
    asyncio.run(main())
