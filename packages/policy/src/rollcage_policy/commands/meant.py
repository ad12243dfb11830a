"""Which recorded runs a command about policies means, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from rollcage import RunInfo, Store, list_runs, run_info
from rollcage_cli.logfile import LogFile
from rollcage_cli.lookup import Found, find, opened
from rollcage_views import Run, read_run

__all__ = ["Recorded", "run_meant", "runs_meant", "worth_testing"]


class Recorded(NamedTuple):
    """A recorded run: where it is, and what its store lists of it; None if it is a file."""

    found: Found
    info: RunInfo | None

    @property
    def run(self) -> str:
        """Its id."""
        return self.found.run

    def read(self) -> Run:
        """Read it.

        Raises:
            TraceCorrupt: it is damaged.
            StoreError: it can't be read.
        """
        return read_run(self.found.read())

    def blob(self, digest: str) -> bytes:
        """Return a large value.

        Raises:
            StoreError: it is gone.
        """
        return self.found.blob(digest)


def run_meant(store: str, reference: str) -> Recorded:
    """Return the run that a reference means, as every command takes it.

    Raises:
        RollcageError: there is none, or more than one.
    """
    found = find(store, reference)
    is_file = isinstance(found.store, LogFile)
    return Recorded(found, None if is_file else run_info(found.store, found.run))


def runs_meant(store: str, references: Iterable[str], names: Iterable[str]) -> list[Recorded]:
    """Return the runs that are meant, the oldest first.

    Args:
        store: the folder or URL.
        references: as every command takes them; none: all runs that are worth testing.
        names: globs over the names of jobs.

    Raises:
        RollcageError: a reference means no run, or the store can't be read.
    """
    globs = tuple(names)
    meant = [run_meant(store, each) for each in references]
    if not meant:
        own = opened(store)
        meant = [Recorded(Found(own, info.run), info) for info in worth_testing(own)]
    return [
        each
        for each in meant
        if not globs or (each.info and any(fnmatchcase(each.info.name, glob) for glob in globs))
    ]


def worth_testing(store: Store) -> Iterator[RunInfo]:
    """Yield the runs that are jobs, with all that they build on; the oldest first.

    A fork is no evidence of anything, and of a run that was pruned no arguments are left.
    """
    infos = list_runs(store)
    continued = {info.origin for info in infos if not info.fork}
    for info in sorted(infos, key=lambda each: (each.begun, each.run)):
        if not info.fork and info.run not in continued and info.last not in ("gone", "pruned"):
            yield info
