"""Bare tools: unguarded tools, which some sessions refuse.

AutoGen has no hook around a call. So the methods that call tools and workbenches are replaced, in
all present and future classes, by methods that check first; without such a session they do exactly
the same as the originals. A tool that is not derived from AutoGen's `BaseTool` can't be caught.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

from autogen_core.tools import BaseTool, TextResultContent, ToolResult, Workbench
from pydantic import BaseModel
from rollcage import Blocked, Session
from rollcage_adapter import (
    as_written,
    declared_contract,
    guarded_contract,
    refuse_bare,
    refuses_unguarded,
    step_here,
    watch_methods,
)

from rollcage_autogen.private import function_of, is_handoff, listing, original_names, tools_of
from rollcage_autogen.turns import agent_name, begin_turn, placed

__all__ = ["before_question", "check_guarded", "in_guarded_call", "watch_calls"]

_ADVICE: Final = (
    "is not guarded, so it did not run: a session is open that lets no tool run unguarded. Pass "
    "the tools through guard_tools, the workbench through RollcageWorkbench"
)


def watch_calls() -> None:
    """Check each call of a tool or a workbench, of any class."""
    watch_methods(BaseTool, ("run", "run_json", "run_stream", "run_json_stream"), _bare_call)
    calls = ("call_tool", "call_tool_stream")
    watch_methods(Workbench, calls, _bare_call_of_workbench, streams=calls[1:])


# --- a call --------------------------------------------------------------------------------------

_guarded_call: ContextVar[tuple[str, int] | None] = ContextVar(
    "rollcage_autogen_step", default=None
)


@contextmanager
def in_guarded_call() -> Generator[None]:
    """Mark the body of a guarded tool of a workbench, which calls that workbench itself."""
    token = _guarded_call.set(step_here())
    try:
        yield
    finally:
        with suppress(ValueError):  # a stream that is closed elsewhere
            _guarded_call.reset(token)


def _bare_call(
    tool: Any,
    args: Any,
    cancellation_token: Any = None,  # noqa: ARG001 - as AutoGen calls it
    call_id: str | None = None,
) -> None:
    """Check a call of a tool, by any caller.

    Raises:
        Blocked: the tool is unguarded, and a session refuses that.
    """
    session = refuses_unguarded()
    if session is not None and _is_bare(tool):
        given = args.model_dump() if isinstance(args, BaseModel) else as_written(args)
        with placed(session, call_id or ""):
            refuse_bare(session, tool.name, given, f"{tool.name} {_ADVICE}")


def _bare_call_of_workbench(
    bench: Any,
    name: str,
    arguments: Any = None,
    cancellation_token: Any = None,  # noqa: ARG001 - as AutoGen calls it
    call_id: str | None = None,
) -> ToolResult | None:
    """Return the result of a bare tool's call, which does not run; None for any other."""
    session = refuses_unguarded()
    if session is None or (step_here() is not None and step_here() == _guarded_call.get()):
        return None
    bare, own = _bare_tools(bench), original_names(bench)
    if bare is not None and own.get(name, name) not in [each.name for each in bare]:
        return None
    try:
        with placed(session, call_id or ""):
            refuse_bare(session, name, as_written(arguments or {}), f"{name} {_ADVICE}")
    except Blocked as blocked:
        text = TextResultContent(content=str(blocked))
        return ToolResult(name=name, result=[text], is_error=True)


def _is_bare(tool: Any) -> bool:
    """Return whether a tool is unguarded.

    The tool of a handoff is not, because it only returns a text.
    """
    function: Any = function_of(tool)
    if is_handoff(function):
        return False
    return guarded_contract(tool) is None and declared_contract(function) is None


# --- before a request ----------------------------------------------------------------------------


def before_question(session: Session) -> None:
    """Begin a turn before the enclosing agent's request to its model, unless the session is halted.

    So an agent ends, and its calls have their turns, even if its model is not guarded.

    Raises:
        SessionHalted: nothing runs in this session any more; raised in the agent's own task.
    """
    session.check()
    check_guarded(session)
    begin_turn()


def check_guarded(session: Session) -> None:
    """End the enclosing agent if it has unguarded tools, and the session refuses these.

    It may have come by a handoff, for example, or got tools after it was made.

    Raises:
        Blocked: it has; raised in the agent's own task, before its request to the model.
    """
    if not session.refuses_unguarded:
        return
    purpose, here = listing()
    benches: Any = here.get("workbench") if purpose == "question" else ()
    for bench in benches or ():
        tools = _bare_tools(bench)
        bare = [bench] if tools is None else tools
        if bare:
            name = str(getattr(bare[0], "name", type(bare[0]).__name__))
            reason = (
                f"the agent {agent_name() or 'around'} has {name}, which no session guards, while "
                f"one is open that lets no tool run unguarded: pass its tools through guard_tools, "
                f"its workbench through RollcageWorkbench"
            )
            refuse_bare(session, name, {}, reason)


def _bare_tools(bench: Any) -> list[Any] | None:
    """Return the unguarded tools of a workbench; None if unknown: all of them."""
    if isinstance(getattr(bench, "session", None), Session):
        return []  # it guards its tools itself
    tools = tools_of(bench)
    return None if tools is None else [each for each in tools if _is_bare(each)]
