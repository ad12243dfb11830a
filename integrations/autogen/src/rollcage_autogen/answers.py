"""An AutoGen answer as a neutral one, and the reverse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from autogen_core import FunctionCall
from autogen_core.models import CreateResult, RequestUsage
from rollcage_adapter import Answer, ToolRequest

__all__ = ["answer_of", "result_of", "whole"]

_Finish = Literal["stop", "length", "function_calls", "content_filter", "unknown"]
_FINISH: Final[dict[str, _Finish]] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "function_calls": "function_calls",
    "tool_calls": "function_calls",
    "tool_use": "function_calls",
    "content_filter": "content_filter",
}


def whole(pieces: Sequence[str | CreateResult]) -> CreateResult:
    """Return the result at the end of a stream, or the only piece of an answer without streaming.

    Raises:
        ValueError: no answer is left.
    """
    last = pieces[-1] if pieces else None
    if not isinstance(last, CreateResult):
        raise ValueError("an answer of a model ends with a CreateResult")
    return last


def answer_of(pieces: Sequence[str | CreateResult]) -> Answer:
    """Return a model's answer, in the framework-neutral form."""
    if not pieces or isinstance(pieces[-1], str):  # a stream that was not read to its end
        return Answer(text="".join(each for each in pieces if isinstance(each, str)))
    result = whole(pieces)
    text = isinstance(result.content, str)
    return Answer(
        text=str(result.content) if text else "",
        reasoning=result.thought or "",
        tool_calls=tuple(
            ToolRequest(call.name, call.arguments, call.id)
            for call in result.content
            if isinstance(call, FunctionCall)
        ),
        finish_reason=result.finish_reason,
        usage=Answer.used(result.usage.prompt_tokens, result.usage.completion_tokens),
    )


def result_of(answer: Answer) -> CreateResult:
    """Return the result for an answer.

    Text next to tool calls becomes the `thought`, as with AutoGen's own clients.
    """
    calls = [FunctionCall(id=c.id, arguments=c.arguments, name=c.name) for c in answer.tool_calls]
    thoughts = [answer.reasoning, answer.text if calls else ""]
    asked, produced = answer.tokens
    otherwise: _Finish = "function_calls" if calls else "stop"
    if answer.finish_reason:
        otherwise = _FINISH.get(answer.finish_reason.lower(), "unknown")
    return CreateResult(
        finish_reason=otherwise,
        content=calls or answer.text,
        usage=RequestUsage(prompt_tokens=asked, completion_tokens=produced),
        cached=True,
        thought="\n".join(each for each in thoughts if each) or None,
    )
