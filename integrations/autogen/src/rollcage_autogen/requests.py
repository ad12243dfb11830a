"""What a model is asked, in a form that is the same whenever the same is asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from autogen_core import Image
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResultMessage,
    LLMMessage,
    UserMessage,
)
from rollcage_adapter import CallNumbers, Signature, is_object, model_request

__all__ = ["ASKED", "canonical_request"]

ASKED: Final = Signature(("messages",))
"""How every model client of AutoGen is called."""

# How the answer is delivered, and what may end it, are no part of the question.
_VOLATILE: Final = frozenset(
    {"cancellation_token", "include_usage", "max_consecutive_empty_chunk_tolerance"}
)


def canonical_request(messages: Sequence[LLMMessage], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model call.

    The ids of tool calls become numbers, in the order in which they come up.
    """
    calls = CallNumbers()
    asked = {name: each for name, each in options.items() if name not in _VOLATILE}
    asked["tools"] = [_schema(each) for each in asked.get("tools") or ()] or None
    asked["extra_create_args"] = dict(asked.get("extra_create_args") or {}) or None
    choice = asked.get("tool_choice", "auto")
    asked["tool_choice"] = None if choice == "auto" else _choice(choice)
    return model_request([_message(each, calls) for each in messages], options=asked)


def _schema(tool: Any) -> Any:
    return tool if is_object(tool) else dict(tool.schema)


def _choice(choice: Any) -> Any:
    return choice if isinstance(choice, str) else {"name": choice.name}


def _message(message: LLMMessage, calls: CallNumbers) -> dict[str, Any]:
    if isinstance(message, FunctionExecutionResultMessage):
        return {"role": "tool", "results": [_result(each, calls) for each in message.content]}
    if isinstance(message, UserMessage):
        return {"role": "user", "name": message.source, "content": _content(message.content)}
    if isinstance(message, AssistantMessage):
        return _answer(message, calls)
    return {"role": "system", "content": message.content}


def _answer(message: AssistantMessage, calls: CallNumbers) -> dict[str, Any]:
    asked: dict[str, Any] = {"role": "assistant", "name": message.source}
    if message.thought:
        asked["thought"] = message.thought
    if isinstance(message.content, str):
        return {**asked, "content": message.content}
    issued = [calls.issued(each.name, each.arguments, each.id) for each in message.content]
    return {**asked, "tool_calls": issued}


def _result(result: Any, calls: CallNumbers) -> dict[str, Any]:
    fields = {"call": calls.of(result.call_id), "name": result.name, "content": result.content}
    return {**fields, "is_error": True} if result.is_error else fields


def _content(content: str | list[str | Image]) -> Any:
    if isinstance(content, str):
        return content
    return [
        each if isinstance(each, str) else {"type": "image", "data": each.data_uri}
        for each in content
    ]
