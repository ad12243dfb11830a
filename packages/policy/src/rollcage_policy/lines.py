"""TOML and YAML as data, with the line of every value, so that an error can name the line.

A policy is read as the plainest kind of data. Ambiguous or growing input
is refused: aliases, anchors and tags of YAML, duplicate keys, dates, NaN and infinities.
"""

from __future__ import annotations

import bisect
import importlib
import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, cast

from rollcage.errors import PolicyInvalid, PolicyProblem

__all__ = ["Document", "Form", "Path", "read_document", "written"]

Form = Literal["toml", "yaml"]
"""The formats of a policy: both hold the same data."""

Path = tuple[str | int, ...]
"""The place of a value in the data."""

MOST_CHARACTERS: Final = 1_000_000
"""The maximal length of a file."""

_MOST_COLUMNS: Final = 8192  # parsing a line of dotted keys takes quadratic time
_MOST_DEEP: Final = 32


class Document(NamedTuple):
    """A file's data.

    Attributes:
        where: the file's name in errors.
        data: its table.
        lines: the line (from 1) in which each value begins.
    """

    where: str
    data: dict[str, Any]
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """Return the line of a value, or of the nearest enclosing value that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def problem(self, path: Path, reason: str) -> PolicyProblem:
        """Return a problem with a value."""
        return PolicyProblem(self.where, self.line(path), written(path), reason)


def written(path: Path) -> str:
    """Return a path as people write it: `rules[3].when`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_document(text: str, form: Form, where: str) -> Document:
    """Read a file's data and lines.

    Raises:
        PolicyInvalid: the text is too long or too deep, not in that format, or more than plain
            data.
    """
    if len(text) > MOST_CHARACTERS:
        raise _invalid(where, 0, f"longer than {MOST_CHARACTERS} characters")
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > _MOST_COLUMNS:
            raise _invalid(where, number, f"a line longer than {_MOST_COLUMNS} characters")
    try:
        document = _toml(text, where) if form == "toml" else _yaml(text, where)
    except RecursionError:
        raise _invalid(where, 0, "nested too deep") from None
    _check_plain(document, document.data, ())
    return document


def _invalid(where: str, line: int, reason: str) -> PolicyInvalid:
    return PolicyInvalid([PolicyProblem(where, line, "", reason)])


def _check_plain(document: Document, value: object, path: Path) -> None:
    if len(path) > _MOST_DEEP:
        reason = f"nested deeper than {_MOST_DEEP} levels"
        raise PolicyInvalid([document.problem(path[:1], reason)])
    if isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            _check_plain(document, each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _check_plain(document, each, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        raise PolicyInvalid([document.problem(path, f"{value} is not a usable number")])
    elif isinstance(value, int) and not -(2**53) < value < 2**53:
        raise PolicyInvalid([document.problem(path, "an integer beyond 2^53")])
    elif not isinstance(value, str | int | float):
        kind = "an empty value" if value is None else f"a {type(value).__name__}"
        reason = f"{kind} is not allowed here; a date or a time is written in quotes"
        raise PolicyInvalid([document.problem(path, reason)])


# --- TOML ----------------------------------------------------------------------------------------


_AT: Final = re.compile(
    r"^(.*?),? ?\(at (?:line (\d+), column (\d+)|(end of document))\)$", re.DOTALL
)


def _toml(text: str, where: str) -> Document:
    try:
        data = tomllib.loads(text)
    except ValueError as error:  # also raised for an integer with too many digits
        found = _AT.match(str(error))
        if found is None:
            raise _invalid(where, 0, str(error)) from None
        line = int(found[2]) if found[2] else text.count("\n") + 1
        column = f" (column {found[3]})" if found[3] else " (end of the file)"
        raise _invalid(where, line, f"not TOML: {found[1]}{column}") from None
    # tomllib reads \r\n as \n; only the count of lines matters here, and it is the same.
    return Document(where, data, _TomlLines(text).lines)


_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_TEXT: Final = re.compile(
    r'"""(?:\\[\s\S]|(?!""")[^\\])*"{3,5}|'
    r"'''(?:(?!''')[\s\S])*'{3,5}|"
    r'"(?:\\.|[^"\\\n])*"|'
    r"'[^'\n]*'"
)
_KEY: Final = re.compile(rf"[ \t]*([A-Za-z0-9_-]+|{_TEXT.pattern})[ \t]*(\.?)")
_PLAIN: Final = re.compile(r"[^,\]}#\r\n]*")


class _TomlLines:
    """The lines of a text's values. The text is valid TOML: the parser has accepted it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.lines: dict[Path, int] = {(): 1}
        self.counts: dict[Path, int] = {}
        self.at = 0
        table: Path = ()
        while self._skip() < len(text):
            if text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _skip(self) -> int:
        self.at = _match(_BLANK, self.text, self.at).end()
        return self.at

    def _mark(self, path: Path, at: int) -> None:
        self.lines.setdefault(path, bisect.bisect_right(self.starts, at))

    def _keys(self) -> list[str]:
        found: list[str] = []
        while True:
            match = _match(_KEY, self.text, self.at)
            self.at = match.end()
            found.append(_unquoted(match[1]))
            if not match[2]:
                return found

    def _header(self) -> Path:
        start, many = self.at, self.text.startswith("[[", self.at)
        self.at += 2 if many else 1
        path: Path = ()
        keys = self._keys()
        for part in keys[:-1]:
            path = self._last((*path, part))
            self._mark(path, start)
        path = (*path, keys[-1])
        if many:
            self._mark(path, start)
            self.counts[path] = self.counts.get(path, 0) + 1
        path = self._last(path)
        self._mark(path, start)
        self.at += 2 if many else 1
        return path

    def _last(self, path: Path) -> Path:
        """Return the newest table of an array of tables."""
        count = self.counts.get(path)
        return path if count is None else (*path, count - 1)

    def _pair(self, table: Path) -> None:
        start = self.at
        path = table
        for part in self._keys():
            path = (*path, part)
            self._mark(path, start)
        self.at += 1  # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip()
        self._mark(path, self.at)
        sign = self.text[self.at]
        if sign in "\"'":
            self.at = _match(_TEXT, self.text, self.at).end()
        elif sign in "[{":
            self._members(path, sign)
        else:
            self.at = _match(_PLAIN, self.text, self.at).end()

    def _members(self, path: Path, sign: str) -> None:
        closing, count = "]" if sign == "[" else "}", 0
        self.at += 1
        while self.text[self._skip()] != closing:
            if self.text[self.at] == ",":
                self.at += 1
            elif sign == "[":
                self._value((*path, count))
                count += 1
            else:
                self._pair(path)
        self.at += 1


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    if found is None:
        raise AssertionError(f"TOML that can't be read here, at {at}")
    return found


def _unquoted(key: str) -> str:
    if key[0] not in "\"'":
        return key
    name: str = tomllib.loads(f"key = {key}")["key"]
    return name


# --- YAML ----------------------------------------------------------------------------------------


def _yaml(text: str, where: str) -> Document:
    try:
        yaml: Any = importlib.import_module("yaml")  # an extra, which brings no types
    except ImportError:
        raise _invalid(where, 0, "YAML needs PyYAML: install rollcage[yaml]") from None

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, Loader=loader), yaml, where)
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        raise _invalid(where, line, f"not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise _invalid(where, 0, f"not YAML: {str(error).splitlines()[0]}") from None
    if node is None:
        return Document(where, {}, {(): 1})
    lines: dict[Path, int] = {}
    data = _Nodes(loader, where, lines).value(node, ())
    if not isinstance(data, dict):
        raise _invalid(where, 1, "a policy is a table of names and values")
    return Document(where, cast("dict[str, Any]", data), lines)


def _check_events(events: Any, yaml: Any, where: str) -> None:
    """Refuse anything but plain data before it is built."""
    depth = documents = 0
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _invalid(where, line, "anchors (&) and aliases (*) are not supported")
        if getattr(event, "tag", None):
            raise _invalid(where, line, f"tags are not supported: {event.tag}")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _invalid(where, line, "a second document: a policy is a single one")
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MOST_DEEP:
                raise _invalid(where, line, f"nested deeper than {_MOST_DEEP} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Nodes:
    """The data of YAML's nodes."""

    def __init__(self, loader: Any, where: str, lines: dict[Path, int]) -> None:
        self.scalars = loader("")
        self.where = where
        self.lines = lines

    def value(self, node: Any, path: Path) -> object:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if node.id == "mapping":
            return self.mapping(node.value, path)
        if node.id == "sequence":
            return [self.value(each, (*path, index)) for index, each in enumerate(node.value)]
        try:
            return self.scalars.construct_object(node)
        except ValueError as error:  # for example 2024-99-99, which looks like a date
            raise _invalid(self.where, line, f"not YAML: {error}") from None

    def mapping(self, pairs: list[tuple[Any, Any]], path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            line = key.start_mark.line + 1
            if key.id != "scalar" or not key.tag.endswith(":str"):
                raise _invalid(self.where, line, f"{written(path)}: a name has to be a text")
            name = str(key.value)
            if name in found:
                raise _invalid(self.where, line, f"{written((*path, name))}: is defined twice")
            self.lines[*path, name] = line
            found[name] = self.value(value, (*path, name))
        return found
