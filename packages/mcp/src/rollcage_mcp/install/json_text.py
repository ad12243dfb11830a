"""JSON with comments as text that is edited in place: everything else stays unchanged.

VS Code, Zed and opencode allow comments and trailing commas in their files; a library that reads
values and writes them again would lose both, and every other client's formatting.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from rollcage_mcp.install.errors import ConfigInvalid

__all__ = ["HIDDEN", "JsonText", "Place", "inserted"]

Place = tuple[str, ...]
"""The place of a value: the names on the way to it."""

HIDDEN: Final = "…"
"""Stands for a hidden value."""

_DEEPEST: Final = 100
_TOKEN: Final = re.compile(
    r'(?P<space>(?:[ \t\r\n]|//[^\n]*|/\*.*?\*/)+)|(?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")'
    r"|(?P<word>-?[0-9][0-9.eE+-]*|true|false|null)|(?P<mark>[{}\[\],:])",
    re.DOTALL,
)
_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_GAP: Final = re.compile(r"\s*")


@dataclasses.dataclass(frozen=True)
class _Value:
    """A value, and the place of its text.

    Attributes:
        at: where it begins.
        end: where it ends.
        keys: for an object, where each key begins.
    """

    data: Any
    at: int
    end: int
    items: Mapping[str, _Value] = dataclasses.field(default_factory=dict[str, "_Value"])
    several: tuple[_Value, ...] = ()
    keys: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])


class JsonText:
    """A JSON document, with or without comments.

    Args:
        text: its whole text.

    Raises:
        ConfigInvalid: the text is not JSON, names a key twice in one object, or is too deep.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._comments: list[tuple[int, int]] = []
        self._tokens = self._scanned()
        self._next = 0
        try:
            self._root = self._value(0) if self._tokens else _Value({}, len(text), len(text))
        except IndexError:
            raise ConfigInvalid("it ends in the middle") from None
        if self._next < len(self._tokens):
            raise self._wrong("something follows its end")

    @property
    def data(self) -> Any:
        """Return its content."""
        return self._root.data

    def raw(self, place: Place) -> str | None:
        """Return the text of a value; None without one."""
        found = self._find(place)
        return None if found is None else self.text[found.at : found.end]

    def changed(self, changes: Mapping[Place, str | None]) -> str:
        """Return the document with other values.

        Args:
            changes: the text of each new value; None removes a value. A new value comes
                after the first value of its object that is among the changes.

        Raises:
            ConfigInvalid: the change would lose text around a value.
        """
        edits: list[tuple[int, int, str]] = []
        for place, text in changes.items():
            found = self._find(place)
            if found is None and text is not None:
                before = next(each for each in changes if each[:-1] == place[:-1])
                edits.append(self._added(before, place[-1], text))
            elif found is not None:
                edits.append(
                    (found.at, found.end, text) if text is not None else self._removed(place, found)
                )
        whole = self.text
        for at, end, text in sorted(edits, reverse=True):
            whole = whole[:at] + text + whole[end:]
        return whole

    def quoted(self, text: str) -> str:
        """Return a text as a value."""
        return json.dumps(text, ensure_ascii=False)

    def value_of(self, text: str) -> Any:
        """Return the value of a text."""
        return JsonText(text).data

    def shown(self, kept: Mapping[Place, Any]) -> str:
        """Return the document with all comments, and all other values, hidden."""
        edits = [(at, end, "/*…*/" if self.text[at + 1] == "*" else "//…")
                 for at, end in self._comments]  # fmt: skip
        found: list[tuple[Place, _Value]] = [((), self._root)]
        spared: list[tuple[int, int]] = []
        while found:
            place, each = found.pop()
            if place in kept:
                spared.append((each.at, each.end))
                edits.append((each.at, each.end, json.dumps(kept[place], ensure_ascii=False)))
                continue
            found += [((*place, name), inner) for name, inner in each.items.items()]
            found += [((*place, ""), inner) for inner in each.several]
            if (
                not each.items
                and not each.several
                and not isinstance(each.data, bool | dict | list)
            ):
                edits.append((each.at, each.end, f'"{HIDDEN}"'))
        whole = self.text
        for at, end, text in sorted(edits, reverse=True):
            inside = any(a <= at < e and (at, end) != (a, e) for a, e in spared)
            if not inside:
                whole = whole[:at] + text + whole[end:]
        return whole

    # --- edits -----------------------------------------------------------------------------------

    def _find(self, place: Place) -> _Value | None:
        found: _Value | None = self._root
        for name in place:
            found = None if found is None else found.items.get(name)
        return found

    def _added(self, before: Place, name: str, text: str) -> tuple[int, int, str]:
        holder, sibling = self._find(before[:-1]), self._find(before)
        assert holder is not None
        assert sibling is not None
        key = holder.keys[before[-1]]
        gap = self.text[len(self.text[:key].rstrip()) : key]
        own = gap if "\n" in gap else " "
        return sibling.end, sibling.end, f",{own}{json.dumps(name)}: {text}"

    def _removed(self, place: Place, found: _Value) -> tuple[int, int, str]:
        holder = self._find(place[:-1])
        assert holder is not None
        ends = [each.end for each in holder.items.values() if each.end <= found.at]
        between = "".join(self.text[max(ends) : found.at].split()) if ends else ""
        if between != f",{json.dumps(place[-1])}:":
            raise ConfigInvalid(f"an entry beside {'.'.join(place)} that would be lost")
        return max(ends), found.end, ""

    # --- reading ---------------------------------------------------------------------------------

    def _scanned(self) -> list[tuple[str, int, int]]:
        """Return the kind of each token, its begin and its end."""
        found: list[tuple[str, int, int]] = []
        at = 1 if self.text.startswith("\ufeff") else 0
        while at < len(self.text):
            token = _TOKEN.match(self.text, at)
            if token is None:
                raise ConfigInvalid(f"it is not JSON: {self._line(at)}")
            if token.lastgroup == "space":
                spans = _COMMENT.finditer(self.text, at, token.end())
                self._comments += [each.span() for each in spans]
            else:
                kind = token.group() if token.lastgroup == "mark" else str(token.lastgroup)
                found.append((kind, at, token.end()))
            at = token.end()
        return found

    def _value(self, depth: int) -> _Value:
        kind, at, end = self._tokens[self._next]
        if depth > _DEEPEST:
            raise self._wrong(f"it is more than {_DEEPEST} levels deep")
        if kind == "{":
            return self._object(at, depth)
        if kind == "[":
            return self._array(at, depth)
        if kind not in ("string", "word"):
            raise self._wrong(f"{kind!r} is no value")
        self._next += 1
        return _Value(self._loaded(at, end), at, end)

    def _object(self, at: int, depth: int) -> _Value:
        items: dict[str, _Value] = {}
        keys: dict[str, int] = {}
        while True:
            self._next += 1
            kind, key_at, key_end = self._tokens[self._next]
            if kind == "}":
                break
            name: Any = self._loaded(key_at, key_end) if kind == "string" else None
            self._next += 1
            if name is None or self._tokens[self._next][0] != ":":
                raise self._wrong("a key, and a colon after it, is missing")
            if name in items:
                raise self._wrong(f"an object has the key {name!r} twice")
            self._next += 1
            items[name], keys[name] = self._value(depth + 1), key_at
            if self._closes("}"):
                break
        data = {name: each.data for name, each in items.items()}
        self._next += 1
        return _Value(data, at, self._tokens[self._next - 1][2], items=items, keys=keys)

    def _array(self, at: int, depth: int) -> _Value:
        several: list[_Value] = []
        while True:
            self._next += 1
            if self._tokens[self._next][0] == "]":
                break
            several.append(self._value(depth + 1))
            if self._closes("]"):
                break
        self._next += 1
        end = self._tokens[self._next - 1][2]
        return _Value([each.data for each in several], at, end, several=tuple(several))

    def _closes(self, mark: str) -> bool:
        """Return whether a container ends here; otherwise expect a comma."""
        kind = self._tokens[self._next][0]
        if kind not in (mark, ","):
            raise self._wrong("a comma is missing")
        return kind == mark

    def _loaded(self, at: int, end: int) -> Any:
        try:
            return json.loads(self.text[at:end])
        except ValueError:
            raise ConfigInvalid(f"it is not JSON: {self._line(at)}") from None

    def _wrong(self, text: str) -> ConfigInvalid:
        token = min(self._next, len(self._tokens) - 1)
        return ConfigInvalid(f"it is not JSON: {self._line(self._tokens[token][1])}: {text}")

    def _line(self, at: int) -> str:
        return f"line {self.text.count(chr(10), 0, at) + 1}"


def inserted(array: str, values: list[str]) -> str:
    """Return the text of an array, of JSON or TOML, with more values at its beginning."""
    gap = _GAP.match(array, 1)
    rest = array[gap.end() :] if gap else ""
    if gap is None or rest.startswith("]"):
        return f"[{', '.join(values)}{array[1:]}"
    between = gap.group() if "\n" in gap.group() else " "
    return f"[{gap.group()}{f',{between}'.join([*values, ''])}{rest}"
