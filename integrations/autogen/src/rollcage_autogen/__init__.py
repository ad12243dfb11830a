"""Rollcage for AutoGen.

::

    from autogen_agentchat.agents import AssistantAgent
    from rollcage import Session
    from rollcage_autogen import guard_model, guard_tools

    async with Session("weekly report") as session:
        agent = AssistantAgent(
            "reporter",
            guard_model(client, session),
            tools=guard_tools(tools, session, effects={"read_file": "read"}),
            max_tool_iterations=10,
        )
        await agent.run(task="Write the weekly report.")

`guard_tools` records and replays each tool at its body, so that results keep their types.
`RollcageWorkbench` does so for a workbench, including an MCP server's. `guard_model` records
and replays the model's own calls, places the calls in its answers, and ends the agent
when the session is halted. `ReplayModel` drives an agent with the decisions of a recorded run.
`mcp_tools` guards the tools of an MCP server, which a replay does not need.
"""

from rollcage_autogen.bare import watch_calls
from rollcage_autogen.mcp import mcp_tools
from rollcage_autogen.memory import follow_state
from rollcage_autogen.models import guard_model
from rollcage_autogen.replay_model import ReplayModel
from rollcage_autogen.tools import as_tools, guard_tools
from rollcage_autogen.values import register
from rollcage_autogen.workbench import RollcageWorkbench

__all__ = [
    "ReplayModel",
    "RollcageWorkbench",
    "as_tools",
    "follow_state",
    "guard_model",
    "guard_tools",
    "mcp_tools",
]

register()
watch_calls()
