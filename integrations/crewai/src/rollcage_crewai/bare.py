"""Bare tools: unguarded tools, which some sessions refuse; and refusals.

CrewAI's hooks before a tool call are for agents only. So the methods that call tools are replaced,
in all present and future classes, by methods that check first; without such a session they do
exactly the same as the originals. Code that calls a tool's function can't be caught.
"""

from __future__ import annotations

from typing import Any

from crewai.tools.base_tool import BaseTool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.tools.tool_failure import ToolFailure, ToolFailurePolicy, ToolFailureReason
from rollcage import Blocked
from rollcage.errors import ArgumentsInvalid
from rollcage_adapter import (
    HALTED,
    as_written,
    declared_contract,
    guarded_contract,
    refuse_bare,
    refuses_unguarded,
    watch_methods,
)

from rollcage_crewai.contracts import arguments_of
from rollcage_crewai.private import original_of

__all__ = ["refusal", "watch_calls"]


def watch_calls() -> None:
    """Check each call of a tool, of any class."""
    watch_methods(BaseTool, ("run", "arun", "_run", "_arun"), _bare_call)
    # For agents without native calls:
    watch_methods(CrewStructuredTool, ("invoke", "ainvoke"), _bare_call)


def refusal(error: Any, tool: Any) -> ToolFailure:
    """Return the failure that answers a call which did not run; a halt ends the agent, too."""
    if isinstance(error, HALTED):
        tool.tool_failure_policy = ToolFailurePolicy.RAISE
    reason = ToolFailureReason.TOOL_REPORTED
    if isinstance(error, ArgumentsInvalid):
        reason = ToolFailureReason.INVALID_INPUT
    code = error.verdict_code if isinstance(error, Blocked) else error.code
    return ToolFailure(message=str(error), reason=reason, code=code or None)


def _bare_call(tool: Any, *args: Any, **kwargs: Any) -> ToolFailure | None:
    """Return the answer to a bare tool's call, which does not run; None for any other."""
    session = refuses_unguarded()
    if session is None or not _is_bare(tool):
        return None
    given: Any
    if isinstance(tool, CrewStructuredTool):
        given = args[0] if args else kwargs.get("input")
    else:
        given = arguments_of(tool.args_schema, args, kwargs)
    reason = (
        f"{tool.name} is not guarded, so it did not run: a session is open that lets no tool run "
        f"unguarded. Pass its crew through guard_crew, or its tools through guard_tools"
    )
    try:
        refuse_bare(session, tool.name, as_written(given), reason)
    except Blocked as blocked:
        return refusal(blocked, tool)


def _is_bare(tool: Any) -> bool:
    """Return whether a tool, or the one that this is a form of, is unguarded."""
    of = original_of(tool) or tool
    if guarded_contract(tool) is not None or guarded_contract(of) is not None:
        return False
    return declared_contract(getattr(of, "func", None)) is None
