"""Bring a model's question into a form that is equal for equal questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollcage_adapter import CallNumbers, MessageForm, Signature, is_object, model_options

__all__ = ["ASKED", "FORM", "asked_besides", "messages_of"]

ASKED: Final = Signature(
    (
        "messages",
        "tools",
        "callbacks",
        "available_functions",
        "from_task",
        "from_agent",
        "response_model",
    )
)
"""The forms in which every model of CrewAI is called."""

# Fields that no model sees: marks for a provider's cache, and calls in a provider's own form.
_BESIDE: Final = frozenset({"cache_breakpoint", "raw_tool_call_parts"})


def messages_of(asked: Mapping[str, Any]) -> list[Any]:
    """Return the messages of a model call."""
    messages: Any = asked["messages"]
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def asked_besides(asked: Mapping[str, Any], stop: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a model call besides its messages."""
    options = {name: asked.get(name) or None for name in ("tools", "response_model")}
    return model_options(stop=sorted(stop), options=options)  # CrewAI keeps them in a set


class _Form(MessageForm):
    """Bring messages into canonical form; the ids of tool calls become numbers."""

    def parts(self, messages: Sequence[Any]) -> list[Any]:
        return list(messages)

    def canonical(self, message: Any, calls: CallNumbers) -> Any:
        if not is_object(message):
            return message
        asked = {name: each for name, each in message.items() if name not in _BESIDE}
        if asked.get("tool_calls"):
            asked["tool_calls"] = [_request(call, calls) for call in asked["tool_calls"]]
        if "tool_call_id" in asked:
            asked["call"] = calls.of(asked.pop("tool_call_id"))
        if "content" in asked:
            asked["content"] = calls.within(asked["content"])
        return asked


FORM: Final = _Form()
"""Takes messages of CrewAI apart: they are dicts."""


def _request(call: Any, calls: CallNumbers) -> dict[str, Any]:
    function: Any = call.get("function") or {}
    return calls.issued(function.get("name"), function.get("arguments"), call.get("id"))
