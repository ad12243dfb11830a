"""The change by a write, as far as its trace proves: the state before it, and the state after it.

A trace holds the state before a write, and only digests of the state after it. The value of such a
digest is often recorded elsewhere: in the arguments, in the result, or as the state before a later
write. A digest proves the value; without a matching value, the state after the write is not shown.
"""

from __future__ import annotations

import base64
import dataclasses
import difflib
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Final, Literal

import orjson
from rollcage.trace import jcs

from rollcage_views.runs import Step
from rollcage_views.states import States
from rollcage_views.text import value_text, visible
from rollcage_views.values import items_of, mapping_of, tag_of

__all__ = ["DiffLine", "StateChange", "changes_of", "line_diff"]

_DEEPEST: Final = 20  # levels of an argument that are searched
_TRIED: Final = 200  # values of a step that are compared with a digest
_LONGEST: Final = 2000  # characters of a line
_LINES: Final = 400  # lines of a state that are compared
_CONTEXT: Final = 3  # unchanged lines around the changed ones
_UNKNOWN: Final = object()
_NONE: Final = States()

Sign = Literal["+", "-", " ", "…"]
DiffLine = tuple[Sign, str]
"""A line that was added, removed or kept; `…` replaces omitted lines."""


@dataclasses.dataclass(frozen=True, slots=True)
class StateChange:
    """The change of one resource by a write.

    Attributes:
        resource: its name.
        before: the state before, encoded.
        after: the state after it, encoded; if only a part of it is known, that part.
        fields: the unknown fields of `after`, or `*` for all of it.
        changed: whether the state is different.
    """

    resource: str
    before: Any
    after: Any
    fields: tuple[str, ...] = ()
    changed: bool = True

    def seen_by(self, value: Callable[[Any], Any]) -> StateChange:
        """Return the change, with each state converted by `value`."""
        return dataclasses.replace(self, before=value(self.before), after=value(self.after))

    def lines(self, *, back: bool = False) -> list[DiffLine]:
        """Return the change, line by line; describe its unknown parts.

        Args:
            back: whether to show the undo: from the new state to the old one.
        """
        if "*" in self.fields:
            return _unknown(_lines(self.before), "the state", back=back)
        was = mapping_of(self.before) if self.fields else None
        known = self.before
        if was is not None:
            known = {name: value for name, value in was.items() if name not in self.fields}
        lines = line_diff(self.after, known) if back else line_diff(known, self.after)
        for name in self.fields:
            lines += _unknown(_field(name, (was or {}).get(name)), _line(name), back=back)
        return lines

    def as_data(self) -> dict[str, Any]:
        """Return the change for machines."""
        return dataclasses.asdict(self) | {"fields": list(self.fields), "lines": self.lines()}


def changes_of(step: Step, states: States = _NONE) -> list[StateChange]:
    """Return the changes by a write, by resource.

    Args:
        step: the write.
        states: the states that the writes of its run found: a later write may show the state after
            this one.
    """
    if not step.before or step.after is None:
        return []
    own = list(_values_of(step))
    found: list[StateChange] = []
    for resource, digest in step.after.items():
        before = step.before.get(resource)
        tried = [before, None, *states.after(step.step, resource), *own]
        found.append(_change(resource, before, digest, tried, states))
    return found


def _change(
    resource: str, before: Any, digest: Any, tried: Sequence[Any], states: States
) -> StateChange:
    """Return the value of a digest, or of the digests of fields."""
    if isinstance(digest, str):
        after = next((value for value in tried if _digest(value) == digest), _UNKNOWN)
        if after is _UNKNOWN:
            return StateChange(resource, before, None, ("*",))
        return StateChange(resource, before, after, changed=after != before)
    after_fields: dict[str, Any] = {}
    unknown: list[str] = []
    for name, of in (mapping_of(digest) or {}).items():
        parts = [(mapping_of(each) or {}).get(name, _UNKNOWN) for each in tried]
        known = (each for each in (*parts, *tried, *states.words(name)) if each is not _UNKNOWN)
        value = next((each for each in known if _digest(each) == of), _UNKNOWN)
        if value is _UNKNOWN:
            unknown.append(name)
        else:
            after_fields[name] = value
    changed = bool(unknown) or after_fields != before
    return StateChange(resource, before, after_fields, tuple(unknown), changed)


def _digest(value: Any) -> str:
    try:
        return sha256(jcs(value)).hexdigest()
    except (ValueError, TypeError, RecursionError):  # a trace is hostile input
        return ""


def _values_of(step: Step) -> Iterator[Any]:
    """Yield the arguments and the result of a call, with the values inside of them."""
    todo: list[tuple[Any, int]] = [((step.outcome or {}).get("value"), 0)]
    todo += [(value, 0) for value in reversed(step.args.values())]
    for _ in range(_TRIED):
        if not todo:
            return
        value, depth = todo.pop()
        yield value
        if depth < _DEEPEST:
            inside = mapping_of(value)
            parts = items_of(value) or ([] if inside is None else [*inside.values()])
            todo += ((each, depth + 1) for each in parts)


def _unknown(was: list[str], what: str, *, back: bool) -> list[DiffLine]:
    """Return the lines for a change to an unknown state."""
    lines = _signed("+" if back else " ", was[:_LINES])
    if back:
        return [("…", f"{what}: only the digest of the present state is recorded"), *lines]
    return [*lines, ("…", f"{what}: only the digest of the new state is recorded")]


# --- lines ---------------------------------------------------------------------------------------


def line_diff(before: Any, after: Any) -> list[DiffLine]:
    """Return two encoded values, line by line: first the old one, then the new one."""
    old, new = _lines(before), _lines(after)
    if old and new and not old[-1].strip() and not new[-1].strip():
        del old[-1], new[-1]  # both end with a line feed
    cut = max(len(old), len(new)) > _LINES
    lines: list[DiffLine] = []
    matcher = difflib.SequenceMatcher(a=old[:_LINES], b=new[:_LINES], autojunk=False)
    for number, group in enumerate(matcher.get_grouped_opcodes(_CONTEXT)):
        if number:
            lines.append(("…", ""))
        for kind, i, j, k, m in group:
            if kind == "equal":
                lines += _signed(" ", old[i:j])
            else:
                lines += [*_signed("-", old[i:j]), *_signed("+", new[k:m])]
    if cut:
        lines.append(("…", f"only the first {_LINES} lines are compared"))
    return lines


def _signed(sign: Sign, lines: Sequence[str]) -> list[DiffLine]:
    return [(sign, line) for line in lines]


def _lines(value: Any) -> list[str]:
    """Return a value as people would write it; a text with its own lines."""
    if value is None:
        return []
    if isinstance(value, str):
        return [_line(each) for each in value.split("\n")]
    mapping = mapping_of(value)
    if mapping is not None and tag_of(value) is None:
        lines: list[str] = []
        for name, each in mapping.items():
            lines += _field(name, each)
        return lines
    if tag_of(value) is not None:
        return _tagged_lines(value)
    return [_line(each) for each in _json(value, orjson.OPT_INDENT_2).split("\n")]


def _tagged_lines(value: Any) -> list[str]:
    """Return a tagged value; bytes that are a text as that text."""
    if tag_of(value) in ("bytes", "bytearray"):
        try:
            text = base64.b64decode(value["value"], validate=True).decode()
        except (ValueError, KeyError, TypeError):
            return [_line(value_text(value))]
        return [_line(each) for each in text.split("\n")]
    return [_line(value_text(value))]


def _field(name: str, value: Any) -> list[str]:
    """Return a field of a state: its name, and its value after it, or below it if it has lines."""
    plain = isinstance(value, str) or tag_of(value) is not None
    lines = _lines(value) if plain else [_json(value)]
    if len(lines) == 1:
        return [_line(f"{name}: {lines[0]}")]
    return [f"{visible(name)}:", *(f"  {line}" for line in lines)]


def _json(value: Any, option: int = 0) -> str:
    try:
        return orjson.dumps(value, option=option).decode(errors="replace")
    except TypeError:  # deeper than JSON is written here
        return value_text(value)


def _line(text: str) -> str:
    return visible(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
