"""The place of a call: the message that issued it, its index there, and the agent's name.

AutoGen's agents run each call of a message in a task of its own; what a model client sets in its
context, these tasks have in theirs. So the client's answer is the turn.
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
from rollcage_adapter import as_written, refuse, slot_of, step_here

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
    """What a model answered: the turn of the calls that it asks for.

    Attributes:
        step: inside of which step's body it was asked: its calls are there too.
        issued: the ids of these calls, by slot; None if the answer was not seen: every call
            belongs to it then, and they are numbered in the order in which they are made.
    """

    step: tuple[str, int] | None
    issued: Sequence[str] | None


_turn: ContextVar[_Turn | None] = ContextVar("rollcage_autogen_turn", default=None)


def answered(result: CreateResult, session: Session | None) -> None:
    """The model of the agent around has answered: a turn begins.

    A call whose arguments are no JSON is put on record here: no tool ever hears of it.
    """
    calls = [] if isinstance(result.content, str) else result.content
    _turn.set(_Turn(step_here(), [call.id for call in calls]))
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
    """The agent around asks its model, and it may be that nobody sees the answer."""
    _turn.set(_Turn(step_here(), None))


def placed(session: Session, call_id: str) -> contextlib.AbstractContextManager[Any]:
    """The next call in this context gets the place at which the model asked for it."""
    turn, slot = _turn.get(), None
    if turn is not None and turn.step != step_here():
        turn = None
    if turn is not None and turn.issued is not None:
        slot = slot_of(call_id, turn.issued)
        turn = turn if call_id in turn.issued else None
    name = agent_name()
    return session.place(turn=turn, slot=slot, agent=name, call_id=call_id)


def agent_name() -> str:
    """The name of the agent whose message is being handled; empty outside of a team."""
    try:
        agent = MessageHandlerContext.agent_id()
    except RuntimeError:
        return ""
    return agent.type.removesuffix(f"_{agent.key}")  # a team adds its own id to each name


# --- an agent that lists its tools ---------------------------------------------------------------


def note_missing(session: Session, holder: object, listed: Container[str] | None = None) -> None:
    """Put a call on record whose tool no workbench of its agent has.

    The agent answers it by itself; but it looks through its workbenches first. Called by each of
    them that it lists (`holder`, with its tools' names), or by each guarded tool: the last of those
    that the agent has speaks for all.
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
            return  # not yet the last one, or in a workbench that says so itself
        listed = {tool.name for tool in tools}
    elif bench is not holder:
        return
    if call.name in listed:
        return
    message = f"tool '{call.name}' not found in any workbench"
    with placed(session, call.id):
        refuse(session, call.name, as_written(here.get("arguments")), reason=message)
