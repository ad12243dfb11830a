"""The place of a call: the message that issued it, its index there, and the agent's name.

AutoGen's agents run each call of a message in a task of its own; these tasks inherit the context
that a model client sets. So the client's answer is the turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Container, Sequence
from contextvars import ContextVar
from typing import Any

from autogen_core import MessageHandlerContext
from autogen_core.models import CreateResult
from rollcage import Session
from rollcage.errors import ArgumentsInvalid
from rollcage_adapter import as_written, calls_of, refuse, slot_of, step_here

from rollcage_autogen.private import listing, tools_of

__all__ = [
    "agent_name",
    "answered",
    "begin_turn",
    "note_missing",
    "placed",
]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A model's answer: the turn of its calls.

    Attributes:
        step: the step inside of whose body it was requested: its calls are there too.
        issued: the ids of these calls, by slot; None if the answer was not seen: then every call
            belongs to it, numbered in the order of the calls.
        calls: their names and arguments.
    """

    step: tuple[str, int] | None
    issued: Sequence[str] | None
    calls: Sequence[tuple[str, Any]] | None = None


_turn: ContextVar[_Turn | None] = ContextVar("rollcage_autogen_turn", default=None)


def answered(result: CreateResult, session: Session | None) -> None:
    """Begin a turn after an answer of the enclosing agent's model.

    A call whose arguments are no JSON is recorded here, because it never reaches a tool.
    """
    calls = [] if isinstance(result.content, str) else result.content
    every = calls_of((call.name, call.arguments) for call in calls)
    _turn.set(_Turn(step_here(), [call.id for call in calls], every))
    for call in calls if session is not None else ():
        try:
            json.loads(call.arguments)
        except ValueError as error:
            assert session is not None
            with placed(session, call.id):
                refuse(
                    session, call.name, {"arguments": call.arguments}, reason=str(error),
                    code=ArgumentsInvalid.code,
                )  # fmt: skip


def begin_turn() -> None:
    """Begin a turn before a request of the enclosing agent, whose answer may not be seen."""
    _turn.set(_Turn(step_here(), None))


def placed(session: Session, call_id: str) -> contextlib.AbstractContextManager[Any]:
    """Set the place of the next call in this context to its place in the model's answer."""
    turn, slot = _turn.get(), None
    if turn is not None and turn.step != step_here():
        turn = None
    if turn is not None and turn.issued is not None:
        slot = slot_of(call_id, turn.issued)
        turn = turn if call_id in turn.issued else None
    calls = None if turn is None else turn.calls
    return session.place(turn=turn, slot=slot, calls=calls, agent=agent_name(), call_id=call_id)


def agent_name() -> str:
    """Return the name of the agent whose message is being handled; empty outside of a team."""
    try:
        agent = MessageHandlerContext.agent_id()
    except RuntimeError:
        return ""
    return agent.type.removesuffix(f"_{agent.key}")  # a team adds its own id to each name


# --- an agent that lists its tools ---------------------------------------------------------------


def note_missing(session: Session, holder: object, listed: Container[str] | None = None) -> None:
    """Record a call whose tool no workbench of its agent has.

    The agent answers it without a tool; but it looks through its workbenches first. Called by each
    workbench when listed (`holder`, with its tools' names), or by each guarded tool: the
    last one of the agent records it.
    """
    purpose, here = listing()
    if purpose != "call":
        return
    call, benches, bench = here.get("tool_call"), here.get("workbench"), here.get("wb")
    if call is None or not benches or bench is not benches[-1]:
        return
    if listed is None:
        tools: list[Any] = tools_of(bench) or []
        if not tools or tools[-1] is not holder:
            return  # not yet the last one, or in a workbench that records it itself
        listed = {tool.name for tool in tools}
    elif bench is not holder:
        return
    if call.name in listed:
        return
    message = f"tool '{call.name}' not found in any workbench"
    with placed(session, call.id):
        refuse(session, call.name, as_written(here.get("arguments")), reason=message)
