"""What a model is asked, in a form that is the same whenever the same is asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from rollcage_adapter import CallNumbers, Signature, model_request

from rollcage_langchain.values import role_of

__all__ = ["ASKED", "canonical_request"]

ASKED: Final = Signature(("messages", "stop", "run_manager"), frozenset({"run_manager"}))
"""How every model of LangChain is called."""

_VOLATILE: Final = frozenset({"stream"})  # how the answer is delivered is no part of the question


def canonical_request(
    messages: Sequence[BaseMessage], stop: Sequence[str] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a model call.

    Without message ids, usage, metadata and artifacts: no model sees them. The ids of tool calls
    become numbers, in the order in which they come up.
    """
    calls = CallNumbers()
    asked = {name: each for name, each in options.items() if name not in _VOLATILE}
    return model_request([_message(each, calls) for each in messages], stop=stop, options=asked)


def _message(message: BaseMessage, calls: CallNumbers) -> dict[str, Any]:
    asked: dict[str, Any] = {"role": role_of(message)}
    if message.name:
        asked["name"] = message.name
    if isinstance(message, AIMessage):
        issued = [
            calls.issued(call["name"], call["args"], call["id"])
            for call in (*message.tool_calls, *message.invalid_tool_calls)
        ]
        if issued:
            asked["tool_calls"] = issued
    elif isinstance(message, ToolMessage):
        asked["call"] = calls.of(message.tool_call_id)
        if message.status != "success":
            asked["status"] = message.status
    asked["content"] = calls.within(message.content)
    return asked
