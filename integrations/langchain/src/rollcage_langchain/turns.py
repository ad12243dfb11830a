"""The place of a call: the message that issued it, its index there, and the agent's name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from rollcage_adapter import is_list, is_object

__all__ = ["agent_name", "answered_in", "messages_in", "turn_and_slot"]


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


def turn_and_slot(request: ToolCallRequest, messages_key: str) -> tuple[object, int | None]:
    """Return the message that issued a call, and the call's index in it; none if unknown."""
    call = request.tool_call
    for message in reversed(messages_in(request.state, messages_key)):
        if isinstance(message, AIMessage):
            calls = message.tool_calls
            slots = [i for i, each in enumerate(calls) if each is call]
            slots = slots or [i for i, each in enumerate(calls) if each["id"] == call["id"]]
            if slots:
                slot = slots[0] if len(slots) == 1 else None
                return message.id or _ThisMessage(message), slot
    return None, None


def messages_in(state: Any, messages_key: str) -> Sequence[Any]:
    """Return the messages of a graph's state, in any form; none without any."""
    found: Any = state
    if is_object(state):
        found = state.get(messages_key)
    elif not is_list(state):
        found = getattr(state, messages_key, None)
    return found if is_list(found) else []
