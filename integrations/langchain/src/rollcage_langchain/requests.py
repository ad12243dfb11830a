"""What a model is asked, in a form that is the same whenever the same is asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from rollcage_langchain.shapes import is_list, is_model_class, is_object
from rollcage_langchain.values import role_of

__all__ = ["PARAMETERS", "canonical_request"]

PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "messages": {"type": "array"},
        "stop": {"type": "array"},
        "options": {"type": "object"},
    },
    "required": ["messages"],
}
_CALL_IDS: Final = frozenset({"id", "call_id", "tool_call_id", "tool_use_id"})
_VOLATILE: Final = frozenset({"stream"})  # how the answer is delivered is no part of the question


def canonical_request(
    messages: Sequence[BaseMessage], stop: Sequence[str] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a model call.

    Without message ids, usage, metadata and artifacts: no model sees them. The ids of tool calls
    become numbers, in the order in which they come up.
    """
    calls: dict[str, int] = {}
    request: dict[str, Any] = {"messages": [_message(message, calls) for message in messages]}
    if stop:
        request["stop"] = list(stop)
    asked = {n: _option(v) for n, v in options.items() if n not in _VOLATILE and v is not None}
    if asked:
        request["options"] = asked
    return request


def _message(message: BaseMessage, calls: dict[str, int]) -> dict[str, Any]:
    asked: dict[str, Any] = {"role": role_of(message)}
    if message.name:
        asked["name"] = message.name
    if isinstance(message, AIMessage):
        issued = [
            {"name": call["name"], "args": call["args"], "call": _number(call["id"], calls)}
            for call in (*message.tool_calls, *message.invalid_tool_calls)
        ]
        if issued:
            asked["tool_calls"] = issued
    elif isinstance(message, ToolMessage):
        asked["call"] = _number(message.tool_call_id, calls)
        if message.status != "success":
            asked["status"] = message.status
    asked["content"] = _content(message.content, calls)
    return asked


def _number(call_id: str | None, calls: dict[str, int]) -> int:
    return calls.setdefault(call_id or "", len(calls))


def _content(content: Any, calls: dict[str, int]) -> Any:
    """Content, with the ids of calls as numbers: some providers repeat them in their blocks."""
    if is_object(content):
        return {
            name: calls.get(each, each)
            if name in _CALL_IDS and isinstance(each, str)
            else _content(each, calls)
            for name, each in content.items()
        }
    return [_content(each, calls) for each in content] if is_list(content) else content


def _option(value: Any) -> Any:
    """An option as data; a class that says what to answer with is its schema."""
    if is_model_class(value):
        return value.model_json_schema()
    if is_object(value):
        return {name: _option(each) for name, each in value.items()}
    return [_option(each) for each in value] if is_list(value) else value
