"""Which run is meant: a whole id, the beginning or end of one, `@name`, `latest`, or a file."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rollcage.errors import RunNotFound
from rollcage.store import (
    Reader,
    RunInfo,
    RunTrace,
    Store,
    is_run_id,
    newest_run,
    open_trace,
    without_password,
)
from rollcage_views import time_text
from rollcage_views.both import heart_with, open_store

from rollcage_cli.errors import RunAmbiguous, UsageError
from rollcage_cli.options import DEFAULT_STORE
from rollcage_cli.output import visible

__all__ = ["Found", "find", "find_kept", "opened"]

_LISTED: Final = 10


class Found(NamedTuple):
    """A run that was asked for, and where it lies."""

    reader: Reader
    run: str

    def read(self) -> RunTrace:
        """Its trace."""
        return self.reader.read(self.run)


def opened(store: str) -> Store:
    """The store at a URL; the default one need not have been made so far.

    Raises:
        UsageError: there is none: its name may be wrong.
    """
    own = open_store(store)
    if store != DEFAULT_STORE and not own.exists():
        shown = visible(without_password(store))
        raise UsageError(f"there is no store at {shown}; say where with --store")
    return own


def find(store: str, reference: str) -> Found:
    """The one run that `reference` means.

    Raises:
        RunNotFound: none; the message says what there is.
        RunAmbiguous: more than one.
        TraceCorrupt: a trace is damaged, and the store's index has lost its run.
    """
    if "/" in reference or reference.endswith(".jsonl"):
        return _at_path(Path(reference))
    reader = open_store(store)
    if is_run_id(reference):  # the index is not needed: it may have been lost
        return Found(reader, reference)
    latest = reader.runs(limit=1)
    if not latest:
        raise RunNotFound(
            f"there are no runs in {without_password(store)}; name their store with --store"
        )
    if reference == "latest":
        return Found(reader, latest[0].run)
    if reference.startswith("@"):
        return Found(reader, _of_job(reader, reference[1:]).run)
    return Found(reader, _by_part(reader.runs(), reference))


def _at_path(path: Path) -> Found:
    """The run in a file; a log in a store's folder is the run of that store."""
    root = path.resolve().parent
    if root.name == "logs" and is_run_id(path.stem):
        own = open_store(root.parent)
        if heart_with(own, path.stem) is not None:
            return Found(own, path.stem)
    return Found(*open_trace(path))


def find_kept(store: str, reference: str, to_do: str) -> tuple[Store, str]:
    """The one run that `reference` means, to be changed: the store that it lies in, and its id.

    Args:
        store: the URL of a store.
        reference: as `find` takes it.
        to_do: what is to be done with it, in a word.

    Raises:
        UsageError: it is a file that lies in no store.
    """
    found = find(store, reference)
    if not isinstance(found.reader, Store):
        shown = visible(reference)
        raise UsageError(f"{shown} is a file outside of a store; {to_do} it in its store")
    return found.reader, found.run


def _of_job(store: Store, name: str) -> RunInfo:
    """The run that the job's next session would resume or read; else its newest replay."""
    so_named = store.runs(name=name)
    own = newest_run(so_named, name) or next(reversed(so_named), None)
    if own is not None:
        return own
    names = sorted({info.name for info in store.runs()})
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:_LISTED]
    listed = ", ".join(f"@{visible(each)}" for each in near)
    raise RunNotFound(f"no run is named {visible(name)!r}; there is {listed}")


def _by_part(runs: Sequence[RunInfo], part: str) -> str:
    wanted = part.lower()
    found = [i for i in runs if wanted and (i.run.startswith(wanted) or i.run.endswith(wanted))]
    if not found:
        raise RunNotFound(
            f"no run begins or ends with {visible(part)!r}; `rollcage runs` lists them all "
            f"(a name is written @{visible(part)})"
        )
    if len(found) > 1:
        listed = "".join(
            f"\n  {info.run}  {time_text(info.time)}  {visible(info.name)}"
            for info in found[-_LISTED:]
        )
        more = f"\n  and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise RunAmbiguous(f"{visible(part)!r} means {len(found)} runs:{listed}{more}")
    return found[0].run
