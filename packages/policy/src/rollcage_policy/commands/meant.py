"""The recorded runs for a command about policies: how they are chosen and read."""

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
    """A recorded run: its place, and its store's entry for it; None if the run is a file."""

    found: Found
    info: RunInfo | None

    @property
    def run(self) -> str:
        """Its id."""
        return self.found.run

    def read(self) -> Run:
        """Read the run.

        Raises:
            TraceCorrupt: the run is damaged.
            StoreError: the run can't be read.
        """
        return read_run(self.found.read())

    def blob(self, digest: str) -> bytes:
        """Return a large value.

        Raises:
            StoreError: the value is missing.
        """
        return self.found.blob(digest)


def run_meant(store: str, reference: str) -> Recorded:
    """Return the run that a reference names, as in every command.

    Raises:
        RollcageError: there is no such run, or more than one.
    """
    found = find(store, reference)
    is_file = isinstance(found.store, LogFile)
    return Recorded(found, None if is_file else run_info(found.store, found.run))


def runs_meant(store: str, references: Iterable[str], names: Iterable[str]) -> list[Recorded]:
    """Return the chosen runs, the oldest first.

    Args:
        store: the folder or URL.
        references: as every command takes them; none: all runs that are worth testing.
        names: globs over the names of jobs.

    Raises:
        RollcageError: a reference names no run, or the store can't be read.
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
    """Yield the runs that are jobs, with the runs that they build on; the oldest first.

    A fork is not evidence, and a pruned run has no arguments left.
    """
    infos = list_runs(store)
    continued = {info.origin for info in infos if not info.fork}
    for info in sorted(infos, key=lambda each: (each.begun, each.run)):
        if not info.fork and info.run not in continued and info.last not in ("gone", "pruned"):
            yield info
