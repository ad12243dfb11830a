"""Short forms of run ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rollcage import Store, list_runs

__all__ = ["short_ids"]

_SHORTEST: Final = 8
_RANDOM: Final = 12  # the last characters of an id: 48 random bits
_LOOKED_AT: Final = 1000  # runs of a store, so that a short id costs the same among any number


def short_ids(store: Store, runs: Iterable[str]) -> dict[str, str]:
    """Return the end of each id, as short as it is unique; all of one length.

    If there are more runs than the search covers, an end has at least 12 characters, which are
    random.
    """
    wanted = list(dict.fromkeys(runs))
    infos = list_runs(store, limit=_LOOKED_AT + 1)
    known = {info.run for info in infos} | set(wanted)
    length = _SHORTEST if len(infos) <= _LOOKED_AT else _RANDOM
    while length < 36 and not _told_apart(wanted, known, length):
        length += 1
    return {run: run[-length:] for run in wanted}


def _told_apart(wanted: Iterable[str], known: set[str], length: int) -> bool:
    ends: dict[str, int] = {}
    for run in known:
        for part in {run[-length:], run[:length]}:
            ends[part] = ends.get(part, 0) + 1
    return all(ends[run[-length:]] == 1 for run in wanted)
