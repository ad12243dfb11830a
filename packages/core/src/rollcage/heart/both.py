# until the old core goes
"""Which core a run in a store is of, while both are there.

One URL names two stores that lie side by side: in a folder `runs/` and `logs/`, in a database
tables with and without `log_` before their names. An id is of one run in both of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from rollcage.errors import RunNotFound
from rollcage.heart.store import Store as HeartStore
from rollcage.heart.store import open_store

if TYPE_CHECKING:
    from rollcage.store import Store

__all__ = ["Core", "core_of", "old_store"]

Core = Literal["heart", "old"]


def core_of(where: str | os.PathLike[str], run: str) -> Core:
    """Return which core has a run.

    Raises:
        RunNotFound: neither has.
        StoreError: the store can't be read.
    """
    try:
        open_store(where).ends(run)
    except RunNotFound:
        from rollcage.store import open_store as open_old  # it is the larger part

        old = open_old(where)
        if not old.exists():
            raise
        old.info(run)
        return "old"
    return "heart"


def old_store(where: str | os.PathLike[str] | Store | HeartStore) -> Store:
    """Return the old core's store at a place, or beside a store of the heart."""
    from rollcage.store import open_store as open_old

    given: Any = where  # each of the two protocols has what the other lacks
    return open_old(given.url if hasattr(given, "swap") else given)
