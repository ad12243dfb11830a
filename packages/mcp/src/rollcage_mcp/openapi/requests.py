"""The request of an operation for some arguments, and nothing beyond the operation."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import quote

from rollcage_mcp.errors import ServerError
from rollcage_mcp.openapi.operations import Argument, Operation, Scheme

__all__ = ["Request", "request_of", "signed"]

_INVALID: Final = -32602
_SEPARATORS: Final = {"spaceDelimited": " ", "pipeDelimited": "|"}


@dataclasses.dataclass
class Request:
    """A request.

    Attributes:
        method: the HTTP method.
        path: below the base URL, percent-encoded.
        query: names and values.
        headers: by name.
        content: the body; None without one.
    """

    method: str
    path: str
    query: list[tuple[str, str]] = dataclasses.field(default_factory=list[tuple[str, str]])
    headers: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    content: bytes | None = None


def request_of(operation: Operation, arguments: Mapping[str, Any]) -> Request:
    """Return the request for arguments that its schema allows.

    Raises:
        ServerError: a value can't stand in its place, because another operation would be called.
    """
    request = Request(operation.method, operation.path)
    for each in operation.arguments:
        if each.name not in arguments or arguments[each.name] is None:
            continue
        value = arguments[each.name]
        if each.is_json:
            value = json.dumps(value, ensure_ascii=False)
        if each.where == "path":
            text = _joined(value, each)
            request.path = request.path.replace(f"{{{each.own}}}", _segment(text, each))
        elif each.where == "header":
            request.headers[each.own] = _header(_joined(value, each), each.name)
        else:
            request.query += _in_query(value, each)
    if "{" in request.path:
        raise ServerError(_INVALID, f"{operation.name}: a part of {operation.path} is missing")
    if {".", ".."} & {*request.path.split("/")}:
        raise ServerError(_INVALID, f"{operation.name}: . and .. can't be a part of its path")
    body = operation.body
    if body is not None and body.name in arguments:
        request.content = _content(arguments[body.name], body.media)
        request.headers["Content-Type"] = body.media
    return request


def signed(request: Request, scheme: Scheme, secret: str) -> None:
    """Add authentication.

    Raises:
        ServerError: the secret can't stand in a header.
    """
    if scheme.kind == "query":
        request.query.append((scheme.own, secret))
        return
    value = {
        "bearer": f"Bearer {secret}",
        "basic": f"Basic {base64.b64encode(secret.encode()).decode()}",
    }.get(scheme.kind, secret)
    request.headers[scheme.own or "Authorization"] = _header(value, scheme.name)


def _plain(value: Any) -> str:
    """Return a value as text."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _joined(value: Any, each: Argument) -> str:
    """Return a value of the style `simple`."""
    if isinstance(value, list):
        return ",".join(map(_plain, value))
    if isinstance(value, dict):
        between = "=" if each.explode else ","
        items = cast("dict[str, Any]", value).items()
        return ",".join(f"{name}{between}{_plain(inner)}" for name, inner in items)
    return _plain(value)


def _segment(text: str, each: Argument) -> str:
    if not text:
        raise ServerError(_INVALID, f"{each.name}: a part of a path can't be empty")
    return quote(text, safe="")


def _header(text: str, name: str) -> str:
    if not text.isascii() or not text.isprintable():
        raise ServerError(
            _INVALID, f"{name}: it can't stand in a header: printable ASCII alone can"
        )
    return text


def _in_query(value: Any, each: Argument) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if each.style != "deepObject":  # its names would be the names of other parameters
            raise ServerError(_INVALID, f"{each.name}: an object can't be sent in this style")
        for name, inner in cast("dict[str, Any]", value).items():
            yield f"{each.own}[{name}]", _plain(inner)
    elif isinstance(value, list):
        texts = [*map(_plain, value)]
        if each.explode:
            yield from ((each.own, text) for text in texts)
        else:
            yield each.own, _SEPARATORS.get(each.style, ",").join(texts)
    else:
        yield each.own, _plain(value)


def _content(value: Any, media: str) -> bytes:
    if media == "text/plain":
        return _plain(value).encode()
    if media == "application/x-www-form-urlencoded":
        if not isinstance(value, dict):
            raise ServerError(_INVALID, "the body of a form has to be an object")
        fields = cast("dict[str, Any]", value).items()
        several = [
            (name, one)
            for name, inner in fields
            for one in (inner if isinstance(inner, list) else [inner])
        ]
        text = "&".join(f"{quote(n, safe='')}={quote(_plain(one), safe='')}" for n, one in several)
        return text.encode()
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
