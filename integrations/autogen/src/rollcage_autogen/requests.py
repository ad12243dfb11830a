"""Bring a model's question into a form that is equal for equal questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from autogen_core import FunctionCall, Image
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    UserMessage,
)
from rollcage_adapter import CallNumbers, MessageForm, Signature, is_object, model_options

__all__ = ["ASKED", "FORM", "asked_besides"]

ASKED: Final = Signature(("messages",))
"""The forms in which every model client of AutoGen is called."""

# The way an answer is delivered, and the token that may end it, are no part of the question.
_VOLATILE: Final = frozenset(
    {"cancellation_token", "include_usage", "max_consecutive_empty_chunk_tolerance"}
)


def asked_besides(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model call besides its messages."""
    asked = {name: each for name, each in options.items() if name not in _VOLATILE}
    asked["tools"] = [_schema(each) for each in asked.get("tools") or ()] or None
    asked["extra_create_args"] = dict(asked.get("extra_create_args") or {}) or None
    choice = asked.get("tool_choice", "auto")
    asked["tool_choice"] = None if choice == "auto" else _choice(choice)
    return model_options(options=asked)


def _schema(tool: Any) -> Any:
    return tool if is_object(tool) else dict(tool.schema)


def _choice(choice: Any) -> Any:
    return choice if isinstance(choice, str) else {"name": choice.name}


class _Form(MessageForm):
    """Bring messages into canonical form; the ids of tool calls become numbers."""

    plain = frozenset({FunctionCall, FunctionExecutionResult})

    def parts(self, messages: Sequence[LLMMessage]) -> list[Any]:
        return list(map(_FIELDS, messages))

    def canonical(self, message: LLMMessage, calls: CallNumbers) -> dict[str, Any]:
        if isinstance(message, FunctionExecutionResultMessage):
            return {"role": "tool", "results": [_result(each, calls) for each in message.content]}
        if isinstance(message, UserMessage):
            return {"role": "user", "name": message.source, "content": _content(message.content)}
        if isinstance(message, AssistantMessage):
            return _answer(message, calls)
        return {"role": "system", "content": message.content}


_FIELDS: Final = attrgetter("__dict__")

FORM: Final = _Form()
"""Takes messages of AutoGen apart."""


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
