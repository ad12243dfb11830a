"""JSON-RPC messages as they are on the wire: their bytes, and the fields that the proxy needs.

A message passes in its original bytes. Only messages that the proxy changes or makes itself are
newly written.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import orjson

from rollcage_mcp.errors import MessageInvalid, ServerError

__all__ = [
    "Id",
    "Message",
    "as_answer",
    "as_failure",
    "as_notification",
    "as_request",
    "check_unambiguous",
    "parse",
    "readdressed",
    "result_of",
    "text_result",
]

Id = str | int
Kind = Literal["request", "notification", "response"]

_WORDS: Final = {"jsonrpc", "id", "method", "params", "result", "error"}
_LARGE: Final = re.compile(rb"\d{19}|\d[eE]\+?\d{3}")  # may be a number that orjson rounds
_SHOWN: Final = 120  # characters of a line that an error shows


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        raw: its line, without the newline.
        data: the line as an object.
        kind: `request`, `notification` or `response`.
    """

    raw: bytes
    data: dict[str, Any]
    kind: Kind

    @property
    def id(self) -> Id:
        """The id of a request or a response."""
        found: Id = self.data["id"]
        return found

    @property
    def method(self) -> str:
        """The method of a request or a notification."""
        found: str = self.data["method"]
        return found

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; empty without any."""
        return cast("dict[str, Any]", self.data.get("params") or {})

    @property
    def meta(self) -> dict[str, Any]:
        """The parameters' `_meta`; empty if it is not an object."""
        found = self.params.get("_meta")
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def parse(line: bytes) -> Message:
    """Return the message in a line.

    Raises:
        MessageInvalid: the line is not JSON, no object, or no JSON-RPC 2.0 message.
    """
    try:
        data: Any = None if _LARGE.search(line) else orjson.loads(line)
    except orjson.JSONDecodeError as error:
        data = _by_the_library(line, error)
    else:
        data = _by_the_library(line) if data is None else data
    if not isinstance(data, dict):
        raise MessageInvalid(f"a message has to be one JSON object: {_shown(line)}")
    message = cast("dict[str, Any]", data)
    if not message.keys() <= _WORDS:
        _check_words(message, line)
    return Message(line, message, _kind(message, line))


def _check_words(message: Mapping[str, Any], line: bytes) -> None:
    """Raise `MessageInvalid` if a reader that ignores case would read another message.

    Some libraries do: Go's reads `Method` as `method`.
    """
    alike = next((word for word in message if word.casefold() in _WORDS - {word}), None)
    if alike is not None:
        raise MessageInvalid(f"{alike!a} is no word of a message: {_shown(line)}")


def check_unambiguous(message: Message) -> None:
    """Check that every reader reads the same in the bytes of a message.

    Raises:
        MessageInvalid: an object in it has a name twice: some take the first, some the last.
    """
    try:
        json.loads(message.raw, object_pairs_hook=_once)
    except RecursionError:
        raise MessageInvalid(f"it is too deep: {_shown(message.raw)}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MessageInvalid(f"an object has the name {twice[:_SHOWN]!a} twice")
    return found


def _by_the_library(line: bytes, error: ValueError | None = None) -> Any:
    """Parse JSON that orjson refuses or rounds: integers of any size."""
    try:
        return json.loads(line.decode(), parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError) as own:
        raise MessageInvalid(f"no JSON ({error or own}): {_shown(line)}") from None


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _kind(data: Mapping[str, Any], line: bytes) -> Kind:
    has_id = "id" in data
    if has_id and (isinstance(data["id"], bool) or not isinstance(data["id"], str | int)):
        if "error" in data and data["id"] is None:  # the answer to an unreadable message
            raise MessageInvalid(f"the other side could not read a message: {_shown(line)}")
        raise MessageInvalid(f"an id has to be a string or an integer: {_shown(line)}")
    if "method" in data:
        if "result" in data or "error" in data:
            raise MessageInvalid(f"both a request and a response: {_shown(line)}")
        params = data.get("params")
        if not isinstance(data["method"], str) or not isinstance(params, dict | None):
            raise MessageInvalid(f"a method is a string, and params are an object: {_shown(line)}")
        return "request" if has_id else "notification"
    if has_id and ("result" in data) != ("error" in data):
        return "response"
    raise MessageInvalid(f"neither a request nor a notification nor a response: {_shown(line)}")


def _shown(line: bytes) -> str:
    text = line[:_SHOWN].decode(errors="replace")
    return ascii(text) + ("…" if len(line) > _SHOWN else "")


# --- messages of the proxy's own -----------------------------------------------------------------


def _message(kind: Kind, data: dict[str, Any]) -> Message:
    data = {"jsonrpc": "2.0", **data}
    try:
        raw = orjson.dumps(data)
    except TypeError:  # integers beyond 64 bits, halves of surrogates, deep nesting
        raw = json.dumps(data, separators=(",", ":")).encode()
    return Message(raw, data, kind)


def as_request(id: Id, method: str, params: Mapping[str, Any] | None = None) -> Message:  # noqa: A002 - its name
    """Return a request."""
    more = {} if params is None else {"params": dict(params)}
    return _message("request", {"id": id, "method": method, **more})


def as_notification(method: str, params: Mapping[str, Any] | None = None) -> Message:
    """Return a notification."""
    more = {} if params is None else {"params": dict(params)}
    return _message("notification", {"method": method, **more})


def as_answer(id: Id, result: Mapping[str, Any]) -> Message:  # noqa: A002 - its name
    """Return the response with a result."""
    return _message("response", {"id": id, "result": dict(result)})


def as_failure(id: Id, code: int, message: str, data: Any = None) -> Message:  # noqa: A002 - its name
    """Return the response for a failed request."""
    more = {} if data is None else {"data": data}
    return _message("response", {"id": id, "error": {"code": code, "message": message, **more}})


def readdressed(response: Message, id: Id) -> Message:  # noqa: A002 - its name
    """Return a response as the answer to another request."""
    return _message("response", {**response.data, "id": id})


def text_result(text: str, *, is_error: bool = False) -> dict[str, Any]:
    """Return a tool's result that is a text, in the form for clients of each era."""
    content = [{"type": "text", "text": text}]
    return {"content": content, "isError": is_error, "resultType": "complete"}


def result_of(response: Message) -> dict[str, Any]:
    """Return the result in a response.

    Raises:
        ServerError: the response is an error.
        MessageInvalid: the result is not an object.
    """
    if "error" in response.data:
        error = response.data["error"]
        if not isinstance(error, dict):
            raise ServerError(-32603, f"an error that is not an object: {_shown(response.raw)}")
        fields = cast("dict[str, Any]", error)
        code = fields.get("code")
        number = code if isinstance(code, int) else -32603
        raise ServerError(number, str(fields.get("message", "")), fields.get("data"))
    result = response.data["result"]
    if not isinstance(result, dict):
        raise ServerError(-32603, f"a result that is not an object: {_shown(response.raw)}")
    return cast("dict[str, Any]", result)
