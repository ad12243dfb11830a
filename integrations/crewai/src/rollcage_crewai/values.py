"""CrewAI's own values in a trace: neutral data from which each comes back as itself."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from crewai.tools.tool_failure import ToolFailure
from crewai.utilities.agent_utils import extract_tool_call_info, is_tool_call_list
from pydantic import BaseModel
from rollcage.adapter import Answer, ToolRequest, is_list, is_object
from rollcage.trace import register_native

__all__ = ["Function", "Response", "ToolCall", "names_of", "register", "requests_of"]


# --- what a model answers ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """What a `ToolCall` asks for."""

    name: str
    arguments: str


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """A recorded call, in the shape of OpenAI's: CrewAI takes it from whichever provider."""

    id: str
    function: Function
    type: Literal["function"] = "function"


@dataclasses.dataclass(slots=True)
class Response:
    """What one call of a model gave, and what it told beside.

    Attributes:
        value: what it returned: text, tool calls, a model of structured output; a recorded one of
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

    @property
    def answer(self) -> Answer:
        """The answer, in the form that every framework understands."""
        calls = requests_of(self.value)
        said = "" if calls else self.value
        if isinstance(said, BaseModel):
            said = said.model_dump_json()
        elif not isinstance(said, str):
            said = json.dumps(said, ensure_ascii=False, default=str)
        return Answer(
            text=said or ("" if not calls else self._streamed("text")),
            reasoning=self._streamed("thinking"),
            tool_calls=calls,
            finish_reason=self.finish_reason,
            response_id=self.response_id,
            usage=_tokens(self.usage),
        )

    def _streamed(self, kind: str) -> str:
        return "".join(chunk[1] for chunk in self.chunks if chunk[0] == kind)


def requests_of(value: Any) -> tuple[ToolRequest, ...]:
    """The calls of an answer, with their arguments as the model wrote them."""
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
    """The tool's name as the model wrote it; CrewAI sanitises it."""
    if is_object(call):
        function: Any = call.get("function") or call
        return str(function.get("name") or "")
    function = getattr(call, "function", None) or getattr(call, "function_call", None) or call
    return str(getattr(function, "name", None) or "")


def _tokens(usage: Mapping[str, Any] | None) -> dict[str, int] | None:
    if not usage:
        return None
    asked = usage.get("prompt_tokens", usage.get("input_tokens"))
    said = usage.get("completion_tokens", usage.get("output_tokens"))
    if not isinstance(asked, int) or not isinstance(said, int) or not asked + said:
        return None
    return {"input_tokens": asked, "output_tokens": said}


# --- in a trace ----------------------------------------------------------------------------------


class _Responses:
    """Responses: the answer; under `crewai`, what only CrewAI needs to give it again."""

    name = "crewai.response"
    portable = True

    def project(self, value: Response) -> dict[str, Any]:
        own: dict[str, Any] = {"usage": value.usage, "chunks": value.chunks}
        calls = requests_of(value.value)
        if calls and all(is_object(call) for call in value.value):
            own["calls"] = value.value
        elif isinstance(value.value, BaseModel):
            own["structured"] = value.value.model_dump(mode="json")
        elif not calls and not isinstance(value.value, str):
            own["other"] = value.value
        return {**value.answer.as_data(), "crewai": {n: v for n, v in own.items() if v}}

    def revive(self, data: Any) -> Response:
        answer = Answer.from_data(data)
        own: Any = data.get("crewai")
        if not is_object(own):
            raise ValueError("a recorded response of CrewAI has a part of its own")
        value: Any = answer.text
        if answer.tool_calls:
            value = own.get("calls") or [
                ToolCall(call.id, Function(call.name, call.arguments)) for call in answer.tool_calls
            ]
        for form in ("structured", "other"):
            value = own.get(form, value)
        chunks = own.get("chunks", [])
        if not is_list(chunks) or not all(_is_chunk(chunk) for chunk in chunks):
            raise ValueError("the chunks of a recorded response are a list of pieces")
        usage = own.get("usage")
        if not is_object(usage) and usage is not None:
            raise ValueError("the usage of a recorded response is an object")
        return Response(value, chunks, usage, answer.finish_reason, answer.response_id)


def _is_chunk(chunk: Any) -> bool:
    if not is_list(chunk) or len(chunk) < 2 or not all(isinstance(c, str) for c in chunk[:2]):
        return False
    return chunk[0] != "call" or (len(chunk) == 3 and is_object(chunk[2]))


class _Failures:
    """What a tool says of its own failure."""

    name = "crewai.tool_failure"
    portable = True

    def project(self, value: ToolFailure) -> dict[str, Any]:
        return value.model_dump(mode="json", exclude_defaults=True)

    def revive(self, data: Any) -> ToolFailure:
        return ToolFailure.model_validate(data)  # a ValidationError is a ValueError


@functools.cache
def register() -> None:
    """Teach the trace CrewAI's types. Once is enough."""
    register_native([Response], _Responses())
    register_native([ToolFailure], _Failures())


def names_of(tools: Sequence[Any]) -> list[str]:
    """The names of the tools that a model is offered."""
    functions: list[Any] = [tool.get("function", tool) for tool in tools if is_object(tool)]
    return [str(function.get("name", "")) for function in functions]
