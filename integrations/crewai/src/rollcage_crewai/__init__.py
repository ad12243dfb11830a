"""Rollcage for CrewAI.

::

    from crewai import Agent, Crew, Task
    from rollcage import Session
    from rollcage_crewai import guard_crew, guard_model

    with Session("weekly report") as session:
        writer = Agent(role="writer", ..., llm=guard_model(llm, session), tools=[FileReadTool()])
        crew = Crew(agents=[writer], tasks=[Task(..., agent=writer)])
        guard_crew(crew, session, effects={"Read a file's content": "read"}).kickoff()

`guard_tools` records and replays each tool at its body, so that results keep their types.
`guard_crew` does so for all the tools of a crew, records each call's place, keeps CrewAI's
retries from running a tool again, and ends the crew when the session is halted. `guard_model`
records and replays the model's own calls; `ReplayModel` drives a crew with the decisions of a
recorded run. `mcp_tools` guards the tools of an MCP server, which a replay does not need.

CrewAI takes seconds to import: it is imported at the first use of one of these names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rollcage_crewai.crews import guard_crew
    from rollcage_crewai.mcp import mcp_tools
    from rollcage_crewai.models import guard_model
    from rollcage_crewai.replay_model import ReplayModel
    from rollcage_crewai.tools import as_tools, guard_tools

__all__ = ["ReplayModel", "as_tools", "guard_crew", "guard_model", "guard_tools", "mcp_tools"]

_MODULES: Final = {
    "ReplayModel": "replay_model",
    "as_tools": "tools",
    "guard_crew": "crews",
    "guard_model": "models",
    "guard_tools": "tools",
    "mcp_tools": "mcp",
}


def __getattr__(name: str) -> Any:
    """Import CrewAI on demand."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
