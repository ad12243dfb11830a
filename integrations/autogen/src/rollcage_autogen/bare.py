"""Bare tools: those that an agent has and nobody guards, where a session lets none of them run.

An `AssistantAgent` whose model and tools nobody guards asks nobody before it runs them. So the
method by which it makes a call is replaced by one that looks first; without such a session it does
nothing else than that method.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from autogen_core import FunctionCall
from autogen_core.models import FunctionExecutionResult
from rollcage import Session
from rollcage.adapter import (
    as_written,
    declared_contract,
    guarded_contract,
    refuse_bare,
    refuses_unguarded,
)

from rollcage_autogen.contracts import plain_function
from rollcage_autogen.turns import EXECUTES, agent_name, begin_turn, listing, placed

__all__ = ["before_question", "check_guarded", "watch_agents"]

_WATCHED: Final = "__rollcage_watched__"


def watch_agents() -> None:
    """Look before each call that an agent makes; once, and where there may be agents at all."""
    agents: Any = sys.modules.get("autogen_agentchat.agents")
    cls: Any = getattr(agents, "AssistantAgent", None)
    execute: Any = getattr(cls, EXECUTES, None)
    if execute is None or hasattr(execute, _WATCHED):
        return
    watched: Any = _watched(execute)
    setattr(watched, _WATCHED, True)
    setattr(cls, EXECUTES, staticmethod(watched))


def _watched(execute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(execute)
    async def watched(*args: Any, **options: Any) -> Any:
        session = refuses_unguarded()
        if session is not None:
            refused = await _refused(session, **options)
            if refused is not None:
                return refused
        return await execute(*args, **options)

    return watched


async def _refused(
    session: Session,
    *,
    tool_call: FunctionCall,
    workbench: Sequence[Any],
    handoff_tools: Sequence[Any] = (),
    **_: Any,
) -> tuple[FunctionCall, FunctionExecutionResult] | None:
    """What the model reads of a call of a bare tool, which does not run; None of any other."""
    name = tool_call.name
    if any(each.name == name for each in handoff_tools) or not await _is_bare(name, workbench):
        return None
    reason = (
        f'{name} is not guarded, so it did not run: a session with unguarded="refuse" is open. '
        f"Pass the agent's tools through guard_tools, its workbench through RollcageWorkbench"
    )
    with placed(session, tool_call.id):
        session.refused(name, as_written(tool_call.arguments), reason=reason, code="unguarded")
    return tool_call, FunctionExecutionResult(
        content=reason, call_id=tool_call.id, is_error=True, name=name
    )


async def _is_bare(name: str, workbench: Sequence[Any]) -> bool:
    """Whether the first workbench that has a tool of this name does not guard it."""
    for bench in workbench:
        if name in [each["name"] for each in await bench.list_tools()]:
            own: Any = getattr(bench, "_override_name_to_original", {})
            bare = _bare_tools(bench)
            return bare is None or own.get(name, name) in [each.name for each in bare]
    return False


# --- before a question ---------------------------------------------------------------------------


def before_question(session: Session) -> None:
    """The agent around is about to ask its model: a turn begins, unless the session is halted.

    So an agent ends, and its calls have their turns, even where its model is not guarded.

    Raises:
        SessionHalted: nothing runs in this session any more; raised in the agent's own task.
    """
    session.check()
    check_guarded(session)
    begin_turn()


def check_guarded(session: Session) -> None:
    """End the agent around where it has tools that nobody guards, and the session refuses those.

    It was handed the conversation by another one, say; or got tools after it was made.

    Raises:
        Blocked: it has; raised in the agent's own task, before its model is asked.
    """
    if session.unguarded != "refuse":
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
                f'one with unguarded="refuse" is open: pass its tools through guard_tools, its '
                f"workbench through RollcageWorkbench"
            )
            refuse_bare(session, name, {}, reason)


def _bare_tools(bench: Any) -> list[Any] | None:
    """The tools of a workbench that nobody guards; None where nobody can tell: all of them."""
    if isinstance(getattr(bench, "session", None), Session):
        return []  # it guards what it has
    tools: Any = getattr(bench, "_tools", None)
    if tools is None:
        return None
    return [
        each
        for each in tools
        if guarded_contract(each) is None and declared_contract(plain_function(each)) is None
    ]
