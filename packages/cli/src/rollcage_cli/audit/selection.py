"""The runs chosen on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from rollcage import RunInfo, Store, run_info
from rollcage_views.audit import Named, runs_of

from rollcage_cli.logfile import LogFile
from rollcage_cli.lookup import Found, find, opened

__all__ = ["runs_meant"]


def runs_meant(
    store: str, references: Sequence[str], names: Sequence[str], until: int | None
) -> list[Named]:
    """Return the chosen runs, oldest first.

    Args:
        store: the URL of a store.
        references: as for every command; none: all runs of the store.
        names: globs over the names of jobs.
        until: runs that began later are left out.

    Raises:
        RollcageError: a reference names no run, or the store can't be read.
    """
    own = opened(store)
    meant = _named(own, store, references) if references else None
    return runs_of(own, meant, names=names, until=until)


def _named(own: Store, store: str, references: Sequence[str]) -> list[Named]:
    meant: dict[str, Named] = {}
    for reference in references:
        found = find(store, reference)
        meant[found.run] = Named(found.run, found.read, _info(own, found))
    return list(meant.values())


def _info(own: Store, found: Found) -> RunInfo | None:
    """Return the store's entry for a run; None if the run is not in the store."""
    if isinstance(found.store, LogFile) or found.store.url != own.url:
        return None
    return run_info(found.store, found.run)
