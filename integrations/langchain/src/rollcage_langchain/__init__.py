"""Rollcage for LangChain and LangGraph.

::

    from langchain.agents import create_agent
    from rollcage import Session
    from rollcage_langchain import RollcageMiddleware, guard_model, guard_tools

    with Session("weekly report") as session:
        agent = create_agent(
            guard_model(model, session),
            guard_tools(tools, session, effects={"read_file": "read"}),
            middleware=[RollcageMiddleware(session)],
        )
        agent.invoke({"messages": [("user", "Write the weekly report.")]})

`guard_tools` records and replays each tool at its body, so that results keep their types.
`RollcageMiddleware` records each call's place, hands a refusal to the model as an error message,
and ends the agent when the session is halted; `tool_node_wrappers` does the same for a plain
`ToolNode`. `guard_model` records and replays the model's own calls;
`ReplayModel` drives an agent with the decisions of a recorded run. `mcp_tools` guards the tools of
MCP servers, which a replay does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcage_langchain.bare import watch_calls
from rollcage_langchain.mcp import mcp_tools
from rollcage_langchain.memory import follow_checkpoints
from rollcage_langchain.models import guard_model
from rollcage_langchain.replay_model import ReplayModel
from rollcage_langchain.tools import as_tools, guard_tools
from rollcage_langchain.values import register

if TYPE_CHECKING:
    from rollcage_langchain.hooks import tool_node_wrappers
    from rollcage_langchain.middleware import RollcageMiddleware

__all__ = [
    "ReplayModel",
    "RollcageMiddleware",
    "as_tools",
    "follow_checkpoints",
    "guard_model",
    "guard_tools",
    "mcp_tools",
    "tool_node_wrappers",
]

register()
watch_calls()


def __getattr__(name: str) -> Any:
    """Import the parts that need `langchain.agents` and `langgraph.prebuilt` on demand."""
    if name == "RollcageMiddleware":
        from rollcage_langchain.middleware import RollcageMiddleware

        return RollcageMiddleware
    if name == "tool_node_wrappers":
        from rollcage_langchain.hooks import tool_node_wrappers

        return tool_node_wrappers
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
