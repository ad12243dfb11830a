"""Bare tools: those that nobody guards, where a session lets none of them run.

CrewAI's hooks before a tool call are for agents only. So the methods by which tools are called, of
each class that there is or will be, are replaced by ones that look first; without such a session
they do nothing else than those methods. Code that calls a tool's function is out of reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crewai.tools.base_tool import BaseTool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.tools.tool_failure import ToolFailure
from rollcage import Blocked
from rollcage.adapter import (
    as_written,
    declared_contract,
    guarded_contract,
    refuse_bare,
    refuses_unguarded,
    watch_methods,
)

from rollcage_crewai.contracts import arguments_of
from rollcage_crewai.private import original_of

__all__ = ["watch_calls"]

Refused = Callable[[Blocked, Any], ToolFailure]


def watch_calls(refused: Refused) -> None:
    """Look before each call of a tool, of whichever class; `refused` makes what answers one."""

    def look(tool: Any, *args: Any, **kwargs: Any) -> ToolFailure | None:
        return _bare_call(tool, args, kwargs, refused)

    watch_methods(BaseTool, ("run", "arun", "_run", "_arun"), look)
    watch_methods(
        CrewStructuredTool, ("invoke", "ainvoke"), look
    )  # for agents without native calls


def _bare_call(
    tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any], refused: Refused
) -> ToolFailure | None:
    """What answers a call of a bare tool, which does not run; None of any other."""
    session = refuses_unguarded()
    if session is None or not _is_bare(tool):
        return None
    given: Any
    if isinstance(tool, CrewStructuredTool):
        given = args[0] if args else kwargs.get("input")
    else:
        given = arguments_of(tool.args_schema, args, kwargs)
    reason = (
        f'{tool.name} is not guarded, so it did not run: a session with unguarded="refuse" is '
        f"open. Pass its crew through guard_crew, or its tools through guard_tools"
    )
    try:
        refuse_bare(session, tool.name, as_written(given), reason)
    except Blocked as blocked:
        return refused(blocked, tool)


def _is_bare(tool: Any) -> bool:
    """Whether nobody guards a tool, or the one that this is a form of."""
    of = original_of(tool) or tool
    if guarded_contract(tool) is not None or guarded_contract(of) is not None:
        return False
    return declared_contract(getattr(of, "func", None)) is None
