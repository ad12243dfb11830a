"""The runs chosen on the command line, each read as `rollcage verify` would accept it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rollcage import RunInfo, Store, run_info
from rollcage.errors import TraceCorrupt
from rollcage.trace.recorded import LogTrace
from rollcage_views.audit import Named, runs_of

from rollcage_cli.logfile import LogFile
from rollcage_cli.lookup import Found, find, opened
from rollcage_cli.verify import verify_log

__all__ = ["runs_meant"]


def runs_meant(
    store: str, references: Sequence[str], names: Sequence[str], until: int | None
) -> list[Named]:
    """Return the chosen runs, oldest first.

    The reading of one raises `TraceCorrupt` if `verify` would refuse it.

    Args:
        store: the URL of a store.
        references: as for every command; none: all runs of the store.
        names: globs over the names of jobs.
        until: runs that began later are left out.

    Raises:
        RollcageError: a reference names no run, or the store can't be read.
    """
    own = opened(store)
    if references:
        return runs_of(own, _named(own, store, references), names=names, until=until)
    return [_verified(each, own) for each in runs_of(own, names=names, until=until)]


def _named(own: Store, store: str, references: Sequence[str]) -> list[Named]:
    meant: dict[str, Named] = {}
    for reference in references:
        found = find(store, reference)
        named = Named(found.run, found.read, _info(own, found))
        meant[found.run] = _verified(named, found.store)
    return list(meant.values())


def _verified(run: Named, store: Store) -> Named:
    return dataclasses.replace(run, read=_verifying(run.read, store))


def _verifying(read: Callable[[], LogTrace], store: Store) -> Callable[[], LogTrace]:
    def checked() -> LogTrace:
        trace = read()
        report = verify_log(trace, store)
        if not report.ok:
            first = report.findings[0]
            raise TraceCorrupt(report.where, first.line, first.message)
        return trace

    return checked


def _info(own: Store, found: Found) -> RunInfo | None:
    """Return the store's entry for a run; None if the run is not in the store."""
    if isinstance(found.store, LogFile) or found.store.url != own.url:
        return None
    return run_info(found.store, found.run)
