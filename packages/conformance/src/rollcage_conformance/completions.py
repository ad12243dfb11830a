"""The form of OpenAI's chat completions: requests are read, replies are written.

See https://platform.openai.com/docs/api-reference/chat, with `reasoning_content` as DeepSeek, vLLM
and others add it.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

__all__ = [
    "CREATED",
    "Failure",
    "Malformed",
    "Reply",
    "chunks",
    "completion",
    "error_body",
    "parse_request",
]

CREATED: Final = 1_700_000_000
"""The creation time of each answer, in seconds since 1970: always the same."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer.

    Attributes:
        text: the message's text; a request for structured output gets it unchanged, too.
        tool_calls: names and arguments, by slot. Arguments that are a string are sent
            unchanged: for odd spacing, and for invalid JSON.
        reasoning: the model's reasoning, in `reasoning_content`.
        usage: tokens of the prompt and of the completion.
        finish_reason: by default ``"tool_calls"`` if there are any, ``"stop"`` otherwise.
        id: the id of the completion; by default ``"chatcmpl-<n>"`` for the n-th request, from 1.
            The
            call in slot i of it is ``"call_<n>_<i>"``, or ``"call_<id>_<i>"``.
        cut: break the connection off after half of the stream's chunks, or half of a body.
    """

    text: str = ""
    _: dataclasses.KW_ONLY
    tool_calls: Sequence[tuple[str, Mapping[str, Any] | str]] = ()
    reasoning: str = ""
    usage: tuple[int, int] = (10, 5)
    finish_reason: str | None = None
    id: str | None = None
    cut: bool = False

    def __post_init__(self) -> None:
        for name, arguments in self.tool_calls:
            try:
                _raw(arguments)
            except (TypeError, ValueError) as error:
                message = f"Reply.tool_calls: the arguments of {name!r} are no JSON object: {error}"
                raise type(error)(message) from None


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """An error in place of an answer.

    Attributes:
        status: the HTTP status, 400 to 599.
        message: the message in the body of the error.
    """

    status: int
    message: str

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 599:
            raise ValueError(f"Failure.status is a status from 400 to 599, not {self.status}")


# --- requests ------------------------------------------------------------------------------------


class Malformed(ValueError):
    """The problem of a request."""


def parse_request(data: bytes) -> dict[str, Any]:
    """Parse a request for a completion.

    Raises:
        Malformed: the request is not well formed.
    """
    try:
        body: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}") from None
    request = _object(body, "the body")
    if not isinstance(request.get("model"), str):
        raise Malformed("'model' is missing, or no string")
    if request.get("n") not in (None, 1):
        raise Malformed("'n' is more than 1: this server gives one choice")
    options = request.get("stream_options")
    _object({} if options is None else options, "'stream_options'")
    messages = _array(request.get("messages"), "'messages'")
    if not messages:
        raise Malformed("'messages' is empty")
    _check_results(messages)
    return request


def _check_results(messages: list[object]) -> None:
    """Check that each tool call is answered before any other message, as OpenAI demands."""
    waiting: list[object] = []
    for index, each in enumerate(messages):
        where = f"messages[{index}]"
        message = _object(each, where)
        role = message.get("role")
        if not isinstance(role, str):
            raise Malformed(f"{where} has no 'role'")
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in waiting:
                raise Malformed(f"{where} is the result of {call_id!r}, which is no open call")
            waiting.remove(call_id)
            continue
        if waiting:
            raise Malformed(f"{where} comes before the results of the calls {waiting}")
        calls = _array(message.get("tool_calls") or [], f"{where}.tool_calls")
        waiting = [_object(call, f"{where}.tool_calls[]").get("id") for call in calls]
    if waiting:
        raise Malformed(f"the messages end before the results of the calls {waiting}")


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{where} is no object")
    return cast("dict[str, Any]", value)


def _array(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise Malformed(f"{where} is missing, or no array")
    return cast("list[object]", value)


# --- answers -------------------------------------------------------------------------------------


def error_body(failure: Failure) -> dict[str, Any]:
    """Return a failure as the body of its answer."""
    kind = "server_error" if failure.status >= 500 else "invalid_request_error"
    return {"error": {"message": failure.message, "type": kind, "param": None, "code": None}}


def _head(reply: Reply, request: dict[str, Any], number: int, kind: str) -> dict[str, Any]:
    return {
        "id": reply.id or f"chatcmpl-{number}",
        "object": kind,
        "created": CREATED,
        "model": request["model"],
    }


def _calls(reply: Reply, number: int) -> list[dict[str, Any]]:
    def call(slot: int, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        function = {"name": name, "arguments": _raw(arguments)}
        return {"id": f"call_{reply.id or number}_{slot}", "type": "function", "function": function}

    return [call(slot, *each) for slot, each in enumerate(reply.tool_calls)]


def _raw(arguments: Mapping[str, Any] | str) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps(dict(arguments), ensure_ascii=False)


def _finish(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _usage(reply: Reply) -> dict[str, int]:
    prompt, completion = reply.usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def completion(reply: Reply, request: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the answer in one piece."""
    calls = _calls(reply, number)
    content = reply.text if reply.text or not calls else None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if calls:
        message["tool_calls"] = calls
    finish = _finish(reply)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    head = _head(reply, request, number, "chat.completion")
    return {**head, "choices": [choice], "usage": _usage(reply)}


def chunks(reply: Reply, request: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Yield the answer as a stream, without its ``[DONE]``."""
    head = _head(reply, request, number, "chat.completion.chunk")
    options: dict[str, Any] = request.get("stream_options") or {}
    with_usage = bool(options.get("include_usage"))
    if with_usage:
        head["usage"] = None

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**head, "choices": [choice]}

    calls = _calls(reply, number)
    content = "" if reply.text or not calls else None
    yield chunk({"role": "assistant", "content": content, "refusal": None})
    yield from (chunk({"reasoning_content": piece}) for piece in _words(reply.reasoning))
    yield from (chunk({"content": piece}) for piece in _words(reply.text))
    yield from (chunk({"tool_calls": [delta]}) for delta in _call_deltas(calls))
    yield chunk({}, _finish(reply))
    if with_usage:
        yield {**head, "choices": [], "usage": _usage(reply)}


def _words(text: str) -> list[str]:
    """Return a text word by word; joined, they are the text."""
    return re.findall(r"\s*\S+\s*|\s+", text)


def _call_deltas(calls: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each call's name first, then its arguments in up to four pieces.

    Parallel calls alternate, a piece of each, so that only `index` tells the call of a piece.
    """
    for index, call in enumerate(calls):
        function = {"name": call["function"]["name"], "arguments": ""}
        yield {"index": index, **call, "function": function}
    pieces = [_quarters(call["function"]["arguments"]) for call in calls]
    for row in itertools.zip_longest(*pieces):
        for index, piece in enumerate(row):
            if piece is not None:
                yield {"index": index, "function": {"arguments": piece}}


def _quarters(text: str) -> list[str]:
    size = max(1, math.ceil(len(text) / 4))
    return [text[start : start + size] for start in range(0, len(text), size)]
