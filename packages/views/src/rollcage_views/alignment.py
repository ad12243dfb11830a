"""Two runs, side by side: which steps match, and where they differ."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from rollcage_views.runs import Run, Step
from rollcage_views.values import items_of, mapping_of, tag_of

__all__ = ["Change", "Pair", "align", "first_difference", "in_order", "pair_data"]

_DEEPEST: Final = 100  # levels of a value that are distinguished
_ABSENT: Final = object()


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A place where two steps differ: `a` and `b` are None if the value is missing."""

    path: str
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Two matching steps, one of each run; one of them may be missing."""

    a: Step | None
    b: Step | None
    changes: list[Change]

    @property
    def relation(self) -> str:
        """`same`, `changed`, `only_a` or `only_b`."""
        if self.a is None:
            return "only_b"
        if self.b is None:
            return "only_a"
        return "changed" if self.changes else "same"


def in_order(seen: Run) -> list[Step]:
    """Return the steps of a run, in the order of their requests."""
    return sorted(seen.steps, key=lambda row: (row.turn, row.slot, row.step))


def first_difference(pairs: Sequence[Pair]) -> Pair | None:
    """Return the first pair that is not the same."""
    return next((pair for pair in pairs if pair.relation != "same"), None)


def align(a: Sequence[Step], b: Sequence[Step]) -> list[Pair]:
    """Pair the steps of two runs.

    First by call (kind, name, version, arguments); between matching calls, by kind and name.
    """
    pairs: list[Pair] = []
    for gap_a, gap_b, same in _split(a, b, lambda row: (row.kind, row.name, row.key)):
        for only_a, only_b, alike in _split(gap_a, gap_b, lambda row: (row.kind, row.name)):
            pairs += (Pair(row, None, []) for row in only_a)
            pairs += (Pair(None, row, []) for row in only_b)
            pairs += (_pair(*both) for both in alike)
        pairs += (_pair(*both) for both in same)
    return _without_replayed_bodies(pairs)


_Gap = tuple[Sequence[Step], Sequence[Step], Sequence[tuple[Step, Step]]]


def _split(
    a: Sequence[Step], b: Sequence[Step], identity: Callable[[Step], Hashable]
) -> Iterator[_Gap]:
    """Split both runs at their matches: the steps before each match, and the match.

    The n-th of identical steps matches the n-th, so that the longest common sequence is a longest
    increasing one, found in n log n.
    """
    where = {each: index for index, each in enumerate(_numbered(b, identity))}
    common = [(i, where[each]) for i, each in enumerate(_numbered(a, identity)) if each in where]
    at_a = at_b = 0
    for i, j in _longest_increasing(common):
        yield a[at_a:i], b[at_b:j], [(a[i], b[j])]
        at_a, at_b = i + 1, j + 1
    yield a[at_a:], b[at_b:], []


def _numbered(
    rows: Sequence[Step], identity: Callable[[Step], Hashable]
) -> Iterator[tuple[Hashable, int]]:
    seen: Counter[Hashable] = Counter()
    for row in rows:
        each = identity(row)
        yield each, seen[each]
        seen[each] += 1


def _longest_increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest sequence of pairs that rises in both parts.

    The input rises in the first part.
    """
    ends: list[int] = []  # by length: the lowest second part at which a sequence can end
    last: list[int] = []  # by length: the pair at that end
    before: list[int] = []  # by pair: the previous pair
    for index, (_, second) in enumerate(pairs):
        length = bisect_left(ends, second)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [second]
        last[length : length + 1] = [index]
    found: list[tuple[int, int]] = []
    index = last[-1] if last else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]


def _without_replayed_bodies(pairs: Sequence[Pair]) -> list[Pair]:
    """Leave out the calls of a body whose replay in the other run answers for all of them."""
    replayed_in_b = {p.a.step for p in pairs if p.a and p.b and p.b.state == "hit"}
    replayed_in_a = {p.b.step for p in pairs if p.a and p.b and p.a.state == "hit"}
    kept: list[Pair] = []
    for pair in pairs:
        if pair.b is None and pair.a is not None and pair.a.parent in replayed_in_b:
            replayed_in_b.add(pair.a.step)
        elif pair.a is None and pair.b is not None and pair.b.parent in replayed_in_a:
            replayed_in_a.add(pair.b.step)
        else:
            kept.append(pair)
    return kept


def _pair(a: Step, b: Step) -> Pair:
    changes = [
        *_differences("version", a.version, b.version),
        *_differences("effect", a.simulated or a.effect, b.simulated or b.effect),
        *_differences("args", a.args, b.args),
        *_differences("outcome", _ended(a), _ended(b)),
    ]
    return Pair(a, b, changes)


def _ended(row: Step) -> dict[str, Any]:
    """Return the compared parts of an outcome: without replay and token counts."""
    if row.state == "blocked":
        return {"status": "blocked", "verdict": row.verdict}
    if row.kind == "branch":
        return {"status": "ok"}
    outcome = row.outcome or {"status": row.state}
    return {k: outcome[k] for k in ("status", "value", "error") if outcome.get(k) is not None}


def _differences(path: str, a: Any, b: Any, depth: int = 0) -> Iterator[Change]:
    """Yield the differences of two values; a tagged one is compared as a whole."""
    inside = _insides(a, b) if depth < _DEEPEST else []
    for name, x, y in inside:
        yield from _differences(f"{path}{name}", x, y, depth + 1)
    if not inside and (type(a) is not type(b) or a != b):
        yield Change(path, *(None if each is _ABSENT else each for each in (a, b)))


def _insides(a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """Return the parts of two values of one shape, side by side.

    Without any if the values can't be inspected.
    """
    x, y = mapping_of(a), mapping_of(b)
    if x is not None and y is not None and tag_of(x) is None and tag_of(y) is None:
        return [(f".{n}", x.get(n, _ABSENT), y.get(n, _ABSENT)) for n in {**x, **y}]
    i, j = items_of(a), items_of(b)
    if i is not None and j is not None:
        both = enumerate(zip_longest(i, j, fillvalue=_ABSENT))
        return [(f"[{index}]", *pair) for index, pair in both]
    return []


def pair_data(pair: Pair) -> dict[str, Any]:
    """Return a pair for machines."""
    row = pair.a or pair.b
    assert row is not None
    return {
        "relation": pair.relation,
        "name": row.name,
        "kind": row.kind,
        "a": None if pair.a is None else pair.a.step,
        "b": None if pair.b is None else pair.b.step,
        "changes": [dataclasses.asdict(change) for change in pair.changes],
    }
