"""What a model is asked, in a form that is the same whenever the same is asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollcage_adapter import CallNumbers, Signature, is_object, model_request

__all__ = ["ASKED", "canonical_request"]

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
"""How every model of CrewAI is called."""

# What no model sees: marks for a provider's cache, and calls in a provider's own form.
_BESIDE: Final = frozenset({"cache_breakpoint", "raw_tool_call_parts"})


def canonical_request(asked: Mapping[str, Any], stop: Sequence[str]) -> dict[str, Any]:
    """The arguments of a model call.

    The ids of tool calls become numbers, in the order in which they come up.
    """
    messages: Any = asked["messages"]
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    calls = CallNumbers()
    options = {name: asked.get(name) or None for name in ("tools", "response_model")}
    # CrewAI gives them in the order of a set.
    return model_request(
        [_message(each, calls) for each in messages], stop=sorted(stop), options=options
    )


def _message(message: Any, calls: CallNumbers) -> Any:
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


def _request(call: Any, calls: CallNumbers) -> dict[str, Any]:
    function: Any = call.get("function") or {}
    return calls.issued(function.get("name"), function.get("arguments"), call.get("id"))
