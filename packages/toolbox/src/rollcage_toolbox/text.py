"""Tools over text: templates, JSON, checksums, search. All pure: no file, no clock, no network."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import rollcage
from pydantic import Field

from rollcage_toolbox.errors import InputRefused, LimitExceeded, NotText, ToolboxError
from rollcage_toolbox.templates import render

__all__ = [
    "TOOLS",
    "checksum",
    "find_text",
    "json_format",
    "json_parse",
    "json_query",
    "render_template",
    "replace_text",
]

_LONGEST: Final = 4 * 2**20  # characters
_DEEPEST: Final = 90  # levels of JSON; deeper values can't be recorded
_MOST: Final = 1_000  # matches

_PURE: Final[dict[str, Any]] = {"effect": "pure", "version": "1", "risk": "low"}

Pointer = Annotated[str, Field(description='JSON Pointer (RFC 6901), such as "/items/0/name"')]


@rollcage.tool(**_PURE, raises=[ToolboxError])
def render_template(template: str, values: dict[str, Any]) -> str:
    """Render a Jinja template with JSON values: {{ name }}, {% for %}, {% if %}, filters.

    A missing value is an error. Calls, macros, includes and attributes of objects are refused.
    """
    return render(template, values)


@rollcage.tool(**_PURE, raises=[ToolboxError])
def json_parse(text: str) -> Any:
    """Parse JSON. A repeated key, NaN and Infinity are errors."""
    if len(text) > _LONGEST:
        raise LimitExceeded(f"the text has more than {_LONGEST} characters")
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
        _refuse_deep(value)
    except RecursionError:
        raise LimitExceeded(f"JSON may be nested {_DEEPEST} levels deep") from None
    except json.JSONDecodeError as error:
        raise InputRefused(f"this is not JSON: {error}") from None
    except ValueError as error:  # a number with too many digits
        raise InputRefused(f"this JSON can't be read: {error}") from None
    return value


@rollcage.tool(**_PURE, raises=[ToolboxError])
def json_query(text: str, pointer: Pointer) -> Any:
    """Give one part of a JSON text, named by a JSON Pointer; "" is all of it."""
    value = json_parse(text)
    if pointer and not pointer.startswith("/"):
        raise InputRefused(f"{pointer!r} is not a JSON Pointer: it begins with /")
    for raw in pointer.split("/")[1:]:
        name = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _is_index(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            raise InputRefused(f"{pointer!r}: nothing is called {name!r} there")
    return value


@rollcage.tool(**_PURE, raises=[ToolboxError])
def json_format(
    text: str,
    indent: Annotated[int, Field(ge=0, le=8)] = 2,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - agents pass arguments by name
) -> str:
    """Write a JSON text anew: indented, or in one line with indent=0."""
    value = json_parse(text)
    between = None if indent else (",", ":")
    return json.dumps(
        value, ensure_ascii=False, sort_keys=sort_keys, indent=indent or None, separators=between
    )


@rollcage.tool(**_PURE, raises=[ToolboxError])
def checksum(
    content: str,
    algorithm: Literal["sha256", "sha512", "sha3_256", "blake2b", "sha1", "md5"] = "sha256",
    encoding: Literal["utf-8", "base64"] = "utf-8",
) -> str:
    """Give the checksum of a text (hex). sha1 and md5 are for files of others, not for safety."""
    try:
        data = (
            base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
        )
    except (binascii.Error, ValueError) as error:
        raise NotText(f"the content is no {encoding}: {error}") from None
    return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()


@rollcage.tool(**_PURE, raises=[ToolboxError])
def find_text(text: str, wanted: str, ignore_case: bool = False) -> list[dict[str, Any]]:  # noqa: FBT001, FBT002 - agents pass arguments by name
    """Find the lines that hold an exact text: their numbers (from 1) and the lines themselves."""
    if not wanted:
        raise InputRefused("an empty text is everywhere")
    shape = wanted.casefold() if ignore_case else wanted
    found: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if shape in (line.casefold() if ignore_case else line):
            if len(found) == _MOST:
                raise LimitExceeded(f"more than {_MOST} lines hold it: look for a longer text")
            found.append({"line": number, "text": line.removesuffix("\r")})
    return found


@rollcage.tool(**_PURE, raises=[ToolboxError])
def replace_text(text: str, old: str, new: str) -> dict[str, Any]:
    """Replace every occurrence of an exact text; tells how many there were."""
    if not old:
        raise InputRefused("an empty text is everywhere")
    count = text.count(old)
    if len(text) + count * (len(new) - len(old)) > _LONGEST:
        raise LimitExceeded(f"the text would have more than {_LONGEST} characters")
    return {"text": text.replace(old, new), "replaced": count}


TOOLS: Final[list[Callable[..., Any]]] = [
    render_template, json_parse, json_query, json_format, checksum, find_text, replace_text,
]  # fmt: skip
"""All tools of this module."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputRefused(f"the key {twice!r} stands twice in one object")
    return made


def _no_number(word: str) -> Any:
    raise InputRefused(f"{word} is no JSON")


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or name[0] != "0") and len(name) < 10


def _refuse_deep(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            each
            for held in level
            if isinstance(held, dict | list)
            for each in (held.values() if isinstance(held, dict) else held)
        ]
        if not level:
            return
    raise LimitExceeded(f"JSON may be nested {_DEEPEST} levels deep")
