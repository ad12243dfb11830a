"""Where a call stands: the message that issued it, its place in it, and whose agent it is.

AutoGen's agents run each call of a message in a task of its own; what a model client sets in its
context, these tasks have in theirs. So the client's answer is the turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from types import CodeType
from typing import Any, Final, Literal

from autogen_core import MessageHandlerContext
from autogen_core.models import CreateResult
from rollcage import Session
from rollcage.adapter import step_here
from rollcage.errors import SessionHalted

__all__ = ["agent_name", "answered", "before_question", "check_halted", "lister", "placed"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """What a model answered: the turn of the calls that it asks for.

    Attributes:
        step: inside of which step's body it was asked: its calls are there too.
        slots: by a call's id, its index in the answer, where that is certain; None where nobody saw
            the answer: any call is of it then, and they are numbered as they come.
    """

    step: tuple[str, int] | None
    slots: Mapping[str, int | None] | None


_turn: ContextVar[_Turn | None] = ContextVar("rollcage_autogen_turn", default=None)


def answered(result: CreateResult) -> None:
    """The model of the agent around has answered: a turn begins."""
    calls = [] if isinstance(result.content, str) else result.content
    often = Counter(call.id for call in calls)
    slots = {call.id: None if often[call.id] > 1 else slot for slot, call in enumerate(calls)}
    _turn.set(_Turn(step_here(), slots))


def placed(session: Session, call_id: str) -> contextlib.AbstractContextManager[None]:
    """The next call in this context stands where the model asked for it."""
    turn, slot = _turn.get(), None
    if turn is not None and turn.step != step_here():
        turn = None
    if turn is not None and turn.slots is not None:
        slot = turn.slots.get(call_id)
        turn = turn if call_id in turn.slots else None
    return session.place(turn=turn, slot=slot, agent=agent_name(), call_id=call_id)


def agent_name() -> str:
    """The name of the agent whose message is being handled; empty outside of a team."""
    try:
        agent = MessageHandlerContext.agent_id()
    except RuntimeError:
        return ""
    return agent.type.removesuffix(f"_{agent.key}")  # a team adds its own id to each name


# --- an agent that lists its tools ---------------------------------------------------------------

_FRAMES: Final = 6  # between an agent and the schema of one of its tools


def lister() -> Literal["question", "call"] | None:
    """Whether an `AssistantAgent` lists its tools right now, and what for.

    It does so before each question to its model, in its own task, where an exception ends it; and
    again for each call, in a task that must not raise. Nothing but its own code tells which.
    """
    agents = sys.modules.get("autogen_agentchat.agents")
    if agents is None:
        return None
    question, call = _code(agents, "_call_llm"), _code(agents, "_execute_tool_call")
    frame = inspect.currentframe()
    for _ in range(_FRAMES):
        if frame is None:
            break
        if frame.f_code is call:
            return "call"
        if frame.f_code is question:
            return "question"
        frame = frame.f_back
    return None


def _code(agents: Any, name: str) -> CodeType | None:
    method: Any = getattr(agents.AssistantAgent, name, None)
    return getattr(method, "__code__", None)


def before_question(session: Session) -> None:
    """The agent around is about to ask its model: a turn begins, unless the session is halted.

    So an agent ends, and its calls have their turns, even where its model is not guarded.

    Raises:
        SessionHalted: nothing runs in this session any more; raised in the agent's own task.
    """
    check_halted(session)
    _turn.set(_Turn(step_here(), None))


def check_halted(session: Session) -> None:
    """End the agent where the session is halted.

    Raises:
        SessionHalted: it is.
    """
    halted = session.halted
    if halted is not None:
        raise SessionHalted(f"the session was halted: {halted}") from halted
