"""The states that writes found: what one left is what the next one on the same thing found."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rollcage.trace import Run

from rollcage_views.values import mapping_of

__all__ = ["States"]

_WORDS: Final = 20  # short values that are remembered of one field
_SHORT: Final = 40  # characters of one

Place = tuple[int, int]  # the run's place in its lineage, and the number of a step


class States:
    """The states that the writes of a lineage found before them.

    Args:
        runs: oldest first.
    """

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self._order = {seen.id: number for number, seen in enumerate(runs)}
        self._found: dict[str, list[tuple[Place, Any]]] = {}
        self._words: dict[str, list[Any]] = {}
        for number, seen in enumerate(runs):
            for step in seen.steps:
                for resource, state in (step.before or {}).items():
                    place = number, step.step
                    self._found.setdefault(resource, []).append((place, state))
                    self._note(state)

    def after(self, run: str, step: int, resource: str) -> Iterator[Any]:
        """What the next write on a resource found, if there was one."""
        found = self._found.get(resource, [])
        place = self._order.get(run, -1), step
        at = bisect_right(found, place, key=lambda each: each[0])
        if at < len(found):
            yield found[at][1]

    def words(self, field: str) -> Sequence[Any]:
        """Short values that a field of this name had anywhere: `absent`, say."""
        return self._words.get(field, ())

    def _note(self, state: Any) -> None:
        for name, value in (mapping_of(state) or {}).items():
            words = self._words.setdefault(name, [])
            short = not isinstance(value, (dict, list)) and len(str(value)) <= _SHORT
            if short and len(words) < _WORDS and value not in words:
                words.append(value)
