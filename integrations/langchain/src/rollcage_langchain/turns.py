"""The place of a call: the message that issued it, its index there, and the agent's name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from rollcage_adapter import calls_of, is_list, is_object

__all__ = ["agent_name", "answered_in", "issued_in", "messages_in"]


def agent_name() -> str:
    """Return the name of the enclosing agent, from `create_agent(name=)`; empty without one."""
    config: Mapping[str, Any] = var_child_runnable_config.get() or {}
    found = (config.get("metadata") or {}).get("lc_agent_name")
    return found if isinstance(found, str) else ""


def answered_in(messages: Iterable[Any]) -> Iterator[str]:
    """Yield the ids of the answered calls in a history without a checkpointer."""
    return (message.tool_call_id for message in messages if isinstance(message, ToolMessage))


class _ThisMessage:
    """A message without an id, as a turn: the same turn as long as it is the same object."""

    def __init__(self, message: AIMessage) -> None:
        self._message = message

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ThisMessage) and other._message is self._message

    def __hash__(self) -> int:
        return id(self._message)


class Issued(NamedTuple):
    """Say where a call was issued; all None if unknown.

    Attributes:
        turn: the message that issued it.
        slot: its index in the message; None if it has none of its own.
        calls: the names and arguments of all calls of the message.
    """

    turn: object = None
    slot: int | None = None
    calls: Sequence[tuple[str, Any]] | None = None


def issued_in(request: ToolCallRequest, messages_key: str) -> Issued:
    """Return where a call was issued."""
    call = request.tool_call
    for message in reversed(messages_in(request.state, messages_key)):
        if isinstance(message, AIMessage):
            calls = message.tool_calls
            slots = [i for i, each in enumerate(calls) if each is call]
            slots = slots or [i for i, each in enumerate(calls) if each["id"] == call["id"]]
            if slots:
                slot = slots[0] if len(slots) == 1 else None
                every = calls_of((each["name"], each["args"]) for each in calls)
                return Issued(message.id or _ThisMessage(message), slot, every)
    return Issued()


def messages_in(state: Any, messages_key: str) -> Sequence[Any]:
    """Return the messages of a graph's state, in any form; none without any."""
    found: Any = state
    if is_object(state):
        found = state.get(messages_key)
    elif not is_list(state):
        found = getattr(state, messages_key, None)
    return found if is_list(found) else []
