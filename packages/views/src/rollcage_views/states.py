"""The states that writes found: the state after one write is the state before the next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rollcage_views.runs import Run
from rollcage_views.values import mapping_of

__all__ = ["States"]

_WORDS: Final = 20  # short values that are remembered of one field
_SHORT: Final = 40  # characters of a short value


class States:
    """The states that the writes of a run found.

    Args:
        seen: the run; None: nothing is known.
    """

    def __init__(self, seen: Run | None = None) -> None:
        self._found: dict[str, list[tuple[int, Any]]] = {}
        self._words: dict[str, list[Any]] = {}
        for step in () if seen is None else seen.steps:
            for resource, state in (step.before or {}).items():
                self._found.setdefault(resource, []).append((step.step, state))
                self._note(state)

    def after(self, step: int, resource: str) -> Iterator[Any]:
        """Yield the state that the next write on a resource found, if there was one."""
        found = self._found.get(resource, [])
        at = bisect_right(found, step, key=lambda each: each[0])
        if at < len(found):
            yield found[at][1]

    def words(self, field: str) -> Sequence[Any]:
        """Return short values that a field of this name had anywhere, for example `absent`."""
        return self._words.get(field, ())

    def _note(self, state: Any) -> None:
        for name, value in (mapping_of(state) or {}).items():
            words = self._words.setdefault(name, [])
            short = not isinstance(value, (dict, list)) and len(str(value)) <= _SHORT
            if short and len(words) < _WORDS and value not in words:
                words.append(value)
