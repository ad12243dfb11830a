"""An agent with a server as its workbench, killed at any moment.

`python killed_mcp.py FOLDER N`: in N jobs, below that folder.
"""

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
from killing import SCRIPT, command, contracts, store, survives
from rollcage import Session
from rollcage_autogen import RollcageWorkbench, guard_model

Scripted: Any = importlib.import_module("conftest").Scripted  # which is beside this program


async def work(job: Path) -> None:
    """Go on."""
    program, *words = command(job)
    server = McpWorkbench(StdioServerParams(command=program, args=words, read_timeout_seconds=30))
    async with (
        Session("job", store=store(job), replay="continue") as session,
        RollcageWorkbench(server, session, contracts=contracts(job)) as bench,
    ):
        client = guard_model(Scripted(SCRIPT), session)
        agent = AssistantAgent("clerk", client, workbench=bench, max_tool_iterations=10)
        ended = await agent.run(task="Go.")
    assert ended.messages[-1].to_text() == "done", ended


if __name__ == "__main__":
    survives(lambda job: asyncio.run(work(job)), Path(sys.argv[1]), int(sys.argv[2]))
