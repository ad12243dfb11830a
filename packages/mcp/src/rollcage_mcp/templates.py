"""Templates of packs: data with `{args.path}` in its texts, filled in without running anything.

A text that is one placeholder becomes the value itself; any other becomes a text. `{result[*].id}`
takes a list apart: the `id` of each. `{{` and `}}` stand for braces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

__all__ = ["Missing", "filled", "names_in", "value_at"]

_PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_PATH: Final = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[(?:\d+|\*)\])*")
_PART: Final = re.compile(r"[A-Za-z_][\w-]*|\d+|\*")


class Missing(LookupError):
    """A placeholder has no value; its path is the argument."""


def names_in(template: Any) -> Iterator[str]:
    """Yield the paths of all placeholders in a template.

    Raises:
        ValueError: an unmatched brace, or an invalid path.
    """
    if isinstance(template, str):
        for match in _PLACEHOLDER.finditer(template):
            if match[0] in ("{{", "}}"):
                continue
            if match[1] is None or not _PATH.fullmatch(match[1]):
                raise ValueError(
                    f"{match[0]!r} in {template!r} is not a placeholder such as {{args.path}}; "
                    f"a brace itself is written twice"
                )
            yield match[1]
    elif isinstance(template, Mapping):
        for each in cast("Mapping[str, Any]", template).values():
            yield from names_in(each)
    elif isinstance(template, list):
        for each in template:
            yield from names_in(each)


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Return the template with its placeholders filled in.

    A table of `for` and `of` is a list: `of` for each `{item}` of the list that `for` gives; with
    `where` and `in`, only for items with a value of `where` in the list that `in` gives.

    Raises:
        Missing: a placeholder has no value.
    """
    if isinstance(template, str):
        return _text(template, values)
    if isinstance(template, list):
        return [filled(each, values) for each in template]
    if not isinstance(template, Mapping):
        return template
    table = cast("Mapping[str, Any]", template)
    if {"for", "of"} <= table.keys() <= {"for", "of", "where", "in"}:
        return _list(table, values)
    return {name: filled(each, values) for name, each in table.items()}


def _list(table: Mapping[str, Any], values: Mapping[str, Any]) -> list[Any]:
    items, wanted = filled(table["for"], values), filled(table.get("in", []), values)
    if not isinstance(items, list) or not isinstance(wanted, list):
        raise Missing(str(table["for"]))
    made: list[Any] = []
    for item in items:
        own = {**values, "item": item}
        where = filled(table.get("where", []), own)
        if not where or any(each in wanted for each in where):
            made.append(filled(table["of"], own))
    return made


def _text(template: str, values: Mapping[str, Any]) -> Any:
    whole = _PLACEHOLDER.fullmatch(template)
    if whole is not None and whole[1] is not None:
        return value_at(whole[1], values)

    def put(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        value = value_at(match[1], values)
        if not isinstance(value, str | int | float):
            raise Missing(match[1])
        return str(value)

    return _PLACEHOLDER.sub(put, template)


def value_at(path: str, values: Mapping[str, Any]) -> Any:
    """Return the value at a path.

    Raises:
        Missing: the values have no such name.
    """
    found: Any = values
    parts = _PART.findall(path)
    for at, part in enumerate(parts):
        if part == "*":
            if not isinstance(found, list):
                raise Missing(path)
            rest = ".".join(parts[at + 1 :])
            several = found
            if not rest:
                return several
            return [value_at(f"item.{rest}", {"item": each}) for each in several]
        try:
            found = found[int(part)] if isinstance(found, list) else found[part]
        except (KeyError, IndexError, TypeError, ValueError):
            raise Missing(path) from None
    return cast("Any", found)
