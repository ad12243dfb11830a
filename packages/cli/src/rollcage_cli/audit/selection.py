"""Which runs are meant by what was typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollcage.store import Store
from rollcage_views.audit import Named, runs_of

from rollcage_cli.lookup import find, opened

__all__ = ["runs_meant"]


def runs_meant(
    store: str, references: Sequence[str], names: Sequence[str], until: int | None
) -> tuple[list[Named], list[Named]]:
    """The runs that are meant, and others that may hold an undo of their steps.

    Args:
        store: the directory.
        references: as for every command; none: all runs of the store.
        names: globs over the names of jobs.
        until: runs that began later are left out.

    Raises:
        RollcageError: a reference means no run, or the store's index can't be read.
    """
    own = opened(store)
    meant = _named(own, store, references) if references else None
    return runs_of(own, meant, names=names, until=until)


def _named(own: Store, store: str, references: Sequence[str]) -> list[Named]:
    known = {info.run: Named(own, info.run, info) for info in own.runs()}
    meant: dict[str, Named] = {}
    for reference in references:
        found = find(store, reference)
        in_store = isinstance(found.reader, Store) and found.reader.url == own.url
        ours = known.get(found.run) if in_store else None
        if ours is not None and reference.startswith("@"):  # a job is all that it builds on
            meant |= _builds_on(ours, known)
        meant[found.run] = ours or Named(found.reader, found.run, None)
    return list(meant.values())


def _builds_on(newest: Named, known: Mapping[str, Named]) -> dict[str, Named]:
    """The runs that one builds on, oldest first."""
    found: dict[str, Named] = {}
    each: Named | None = newest
    while each is not None and each.info is not None and each.run not in found:
        found[each.run] = each
        each = known.get(each.info.source or "")
    return dict(reversed(found.items()))
