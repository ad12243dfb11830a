"""Hold a model's answer, in a form that belongs to no framework.

Each model step has it beside the framework's own value. So the answer can be shown without the
framework, and replayed to an agent of another framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["Answer", "ToolRequest", "tokens_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class ToolRequest:
    """Hold a call that a model requests.

    Attributes:
        name: the tool's name, as the model wrote it.
        arguments: raw JSON, exactly as the model wrote it if the framework keeps that.
        id: the provider's id of the call; empty without one.
    """

    name: str
    arguments: str
    id: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Hold one message of a model.

    Attributes:
        text: the text; empty if the message only requests calls.
        reasoning: the reasoning, if the provider returns it.
        tool_calls: the requested calls, by slot.
        finish_reason: the provider's own finish reason.
        response_id: the provider's id of the answer.
        usage: tokens, as `input_tokens` and `output_tokens`; None if not counted.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolRequest, ...] = ()
    finish_reason: str = ""
    response_id: str = ""
    usage: Mapping[str, int] | None = None

    @property
    def tokens(self) -> tuple[int, int]:
        """Return the input and output tokens; 0 if not counted."""
        return tokens_of(self.usage)

    @staticmethod
    def used(asked: Any, answered: Any) -> dict[str, int] | None:
        """Return the `usage` of these counts; None for other values, or without any count."""
        if not isinstance(asked, int) or not isinstance(answered, int) or not asked + answered:
            return None
        return {"input_tokens": asked, "output_tokens": answered}

    def as_data(self) -> dict[str, Any]:
        """Return the form in the trace, without empty fields and the usage."""
        data: dict[str, Any] = {
            field: _writable(value) for field in _TEXTS if (value := getattr(self, field))
        }
        if self.tool_calls:
            data["tool_calls"] = [
                {field: _writable(getattr(each, field)) for field in _OF_REQUEST}
                for each in self.tool_calls
            ]
        return data

    @classmethod
    def from_data(cls, data: Any, usage: Any = None) -> Answer:
        """Make an answer from data, which are hostile input.

        Raises:
            ValueError: the data have another form.
        """
        if not isinstance(data, dict):
            raise ValueError("a recorded answer is an object")
        calls: Any = data.get("tool_calls", [])
        if not isinstance(calls, list):
            raise ValueError("the tool calls of a recorded answer are a list")
        texts = {field: _text(data, field) for field in _TEXTS}
        requests = tuple(
            ToolRequest(*(_text(call, field) for field in _OF_REQUEST)) for call in calls
        )
        return cls(**texts, tool_calls=requests, usage=usage)


def tokens_of(usage: Mapping[str, int] | None) -> tuple[int, int]:
    """Return the input and output tokens in a recorded `usage`; 0 if not counted."""
    read, written = ((usage or {}).get(name, 0) for name in ("input_tokens", "output_tokens"))
    return max(read, 0), max(written, 0)


_TEXTS: Final = ("text", "reasoning", "finish_reason", "response_id")
_OF_REQUEST: Final = ("name", "arguments", "id")


def _writable(text: str) -> str:
    """Return a text without lone surrogates, which UTF-8 can't encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _text(data: Any, field: str) -> str:
    value = data.get(field, "") if isinstance(data, dict) else None
    if not isinstance(value, str):
        raise ValueError(f"the {field} of a recorded answer is text")
    return value
