"""Find the recorded call most like an unrecorded one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from rollcage.values.codec import TAG

__all__ = ["Recorded", "nearest"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Hold a recorded call of a tool or model for a comparison."""

    step: int
    name: str
    version: str
    args: Mapping[str, Any]


def nearest(
    entries: Iterable[Recorded],
    name: str,
    version: str,
    args: Mapping[str, Any],
    used: Collection[Recorded],
) -> tuple[Recorded, str] | None:
    """Return the recorded call most like a given one, and the field in which it differs."""
    best: tuple[tuple[int, int, int], Recorded, list[_Differing]] | None = None
    for entry in entries:
        differing = list(_differing(entry, name, version, args))
        score = (entry.name == name, -len(differing), entry not in used)
        if best is None or score > best[0]:
            best = (score, entry, differing)
    if best is None:
        return None
    _, entry, differing = best
    state = "already replayed" if entry in used else "recorded in another world"
    place = f"its place only: the same call is {state}"
    return entry, "; ".join(map(_described, differing)) or place


_Differing = tuple[str, Any, Any]  # a field, its recorded and its requested value


def _differing(
    entry: Recorded, name: str, version: str, args: Mapping[str, Any]
) -> Iterator[_Differing]:
    if entry.name != name:
        yield "the tool", entry.name, name
        return
    if entry.version != version:
        yield "the version", entry.version, version
    for field in sorted({*entry.args, *args}):
        was, now = entry.args.get(field, _ABSENT), args.get(field, _ABSENT)
        if not _same(was, now):
            yield f"argument {field!r}", was, now


_ABSENT: Final = object()


def _same(was: Any, now: Any) -> bool:
    return type(was) is type(now) and bool(was == now)


def _described(differing: _Differing) -> str:
    """Describe the difference of two values: the first differing part, or a part of a long text."""
    field, was, now = differing
    path = ""
    while isinstance(was, (dict, list)) and type(was) is type(now):
        other: Any = now
        inside: Iterable[tuple[str, Any, Any]]
        if isinstance(was, dict):
            if TAG in was or TAG in other:
                break
            keys = {**was, **other}
            inside = ((f".{k}", was.get(k, _ABSENT), other.get(k, _ABSENT)) for k in keys)
        else:
            pairs = enumerate(itertools.zip_longest(was, other, fillvalue=_ABSENT))
            inside = ((f"[{at}]", *pair) for at, pair in pairs)
        part, was, now = next(each for each in inside if not _same(each[1], each[2]))
        path += part
    where = f"{field} at {path}" if path else field
    if isinstance(was, str) and isinstance(now, str) and max(len(was), len(now)) > _LONG:
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(was, now, strict=False))
        begin = max(0, sum(1 for _ in same) - _BEFORE)
        was, now = (f"{'...' if begin else ''}{text[begin:]}" for text in (was, now))
    return f"{where}: recorded {_show(was)}, asked for {_show(now)}"


_LONG: Final = 70  # characters of a text, shown from its first difference
_BEFORE: Final = 20


def _show(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, dict) and value.get(TAG) in ("secret", "redacted"):
        return "a secret"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
