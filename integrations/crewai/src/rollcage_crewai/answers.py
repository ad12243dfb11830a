"""A CrewAI model's answer as a neutral answer, and the reverse."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

from crewai.events.types.llm_events import LLMCallType
from crewai.llms.base_llm import llm_call_context
from crewai.utilities.agent_utils import extract_tool_call_info, is_tool_call_list
from pydantic import BaseModel
from rollcage_adapter import Answer, ToolRequest, is_list, is_object

from rollcage_crewai.private import EMIT_CHUNK, EMIT_END, EMIT_START, EMIT_THINKING, count_usage

__all__ = ["Function", "ModelResponse", "ToolCall", "emit", "requests_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """The function of a `ToolCall`."""

    name: str
    arguments: str


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """A recorded call, in OpenAI's form, which CrewAI accepts from any provider."""

    id: str
    function: Function
    type: Literal["function"] = "function"


@dataclasses.dataclass(slots=True)
class ModelResponse:
    """The answer of one model call, and its further data.

    Attributes:
        value: its result: text, tool calls, a model of structured output; a recorded one of
            these is a `dict` until the class is known.
        chunks: the pieces of a stream, in order: `["text", piece]`, `["thinking", piece]`, or
            `["call", piece, {"index": …, "id": …, "name": …}]`.
        usage: tokens, as CrewAI counts them.
        finish_reason: the provider's own word.
        response_id: the provider's id of the answer.
    """

    value: Any
    chunks: list[list[Any]] = dataclasses.field(default_factory=list[list[Any]])
    usage: dict[str, Any] | None = None
    finish_reason: str = ""
    response_id: str = ""

    @classmethod
    def of(cls, answer: Answer) -> ModelResponse:
        """Return the response for an answer: its text, or its calls in CrewAI's form."""
        calls = [ToolCall(c.id, Function(c.name, c.arguments)) for c in answer.tool_calls]
        usage = None
        if answer.usage:
            asked, produced = answer.tokens
            usage = {
                "prompt_tokens": asked,
                "completion_tokens": produced,
                "total_tokens": asked + produced,
            }
        return cls(calls or answer.text, [], usage, answer.finish_reason, answer.response_id)

    @property
    def answer(self) -> Answer:
        """Return the answer, in the framework-neutral form."""
        calls = requests_of(self.value)
        text_of = "" if calls else self.value
        if isinstance(text_of, BaseModel):
            text_of = text_of.model_dump_json()
        elif not isinstance(text_of, str):
            text_of = json.dumps(text_of, ensure_ascii=False, default=str)
        return Answer(
            text=text_of or ("" if not calls else self._streamed("text")),
            reasoning=self._streamed("thinking"),
            tool_calls=calls,
            finish_reason=self.finish_reason,
            response_id=self.response_id,
            usage=_tokens(self.usage),
        )

    def _streamed(self, kind: str) -> str:
        return "".join(chunk[1] for chunk in self.chunks if chunk[0] == kind)


def requests_of(value: Any) -> tuple[ToolRequest, ...]:
    """Return the calls of an answer, with the model's own arguments."""
    if not is_list(value) or not is_tool_call_list(value):
        return ()
    return tuple(request for each in value if (request := _request(each)) is not None)


def _request(call: Any) -> ToolRequest | None:
    info = extract_tool_call_info(call)
    if info is None:
        return None
    call_id, name, arguments = info
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolRequest(_own_name(call) or name, raw, call_id)


def _own_name(call: Any) -> str:
    """Return the model's own name of the tool, which CrewAI sanitises."""
    if is_object(call):
        function: Any = call.get("function") or call
        return str(function.get("name") or "")
    function = getattr(call, "function", None) or getattr(call, "function_call", None) or call
    return str(getattr(function, "name", None) or "")


def _tokens(usage: Mapping[str, Any] | None) -> dict[str, int] | None:
    if not usage:
        return None
    return Answer.used(
        usage.get("prompt_tokens", usage.get("input_tokens")),
        usage.get("completion_tokens", usage.get("output_tokens")),
    )


# --- CrewAI's events of a call -------------------------------------------------------------------


def emit(llm: Any, asked: Mapping[str, Any], response: ModelResponse) -> None:
    """Emit the events and the usage of a model's call that was not made."""
    who = {name: asked.get(name) for name in ("from_task", "from_agent")}
    about = {name: asked.get(name) for name in ("messages", "tools", "available_functions")}
    with llm_call_context():
        getattr(llm, EMIT_START)(**about, **who)
        _stream(llm, response, {**who, "response_id": response.response_id or None})
        if response.usage:
            count_usage(llm, response.usage)
        calls = requests_of(response.value)
        getattr(llm, EMIT_END)(
            response=response.value,
            call_type=LLMCallType.TOOL_CALL if calls else LLMCallType.LLM_CALL,
            messages=asked["messages"],
            usage=response.usage,
            finish_reason=response.finish_reason or None,
            response_id=response.response_id or None,
            **who,
        )


def _stream(llm: Any, response: ModelResponse, details: dict[str, Any]) -> None:
    written: dict[Any, str] = {}
    for kind, piece, *rest in response.chunks:
        if kind == "thinking":
            getattr(llm, EMIT_THINKING)(chunk=piece, **details)
        elif kind == "text":
            getattr(llm, EMIT_CHUNK)(chunk=piece, **details)
        else:
            index, name = rest[0].get("index", 0), rest[0].get("name")
            written[index] = written.get(index, "") + piece
            call = {
                "id": rest[0].get("id"),
                "function": {"name": name, "arguments": written[index]},
                "type": "function",
                "index": index,
            }
            getattr(llm, EMIT_CHUNK)(
                chunk=piece, tool_call=call, call_type=LLMCallType.TOOL_CALL, **details
            )
