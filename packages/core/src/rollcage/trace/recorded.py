"""Give readers the whole lines of a run, and verify their chain."""

from __future__ import annotations

import dataclasses
import io
import os

from rollcage.errors import TraceCorrupt
from rollcage.trace.chain import HASH, checked
from rollcage.trace.folder import Folder
from rollcage.trace.store import Store, open_store

__all__ = ["LogTrace", "Verified", "trace_of", "verify_trace", "where_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class LogTrace:
    """Hold the whole lines of a run, for `rollcage_views.read_run`.

    Attributes:
        run: the run's id.
        where: the name in errors: a path, or a store's URL and the id.
        data: the lines.
    """

    run: str
    where: str
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Verified:
    """Describe the intact chain of a log.

    Attributes:
        lines: the number of lines.
        head: the hash of the last line (64 hex digits).
        is_ended: whether the last attempt was left: then the last line says so. Otherwise lines may
            be missing behind the last, because the process may have died at any line.
    """

    lines: int
    head: str
    is_ended: bool


def trace_of(store: str | os.PathLike[str] | Store, run: str) -> LogTrace:
    """Return the whole lines of a run.

    Raises:
        RunNotFound: there is no such run.
        StoreError: the lines can't be read.
    """
    opened = open_store(store)
    return LogTrace(run, where_of(opened, run), b"".join(opened.read(run)))


def where_of(store: Store, run: str) -> str:
    """Return the name of a run's log in errors: its file, or the store's URL and the id."""
    return store.path_of(run) if isinstance(store, Folder) else f"{store.url}#{run}"


def verify_trace(trace: LogTrace) -> Verified:
    """Check that each line follows from the lines before it.

    A person who may write a log can chain a forged one anew; and a log that was cut behind any line
    is intact. To know that a run is complete, compare its head with a head kept elsewhere.

    Raises:
        TraceCorrupt: a line was changed, cut out, added or moved, or there is none; the error names
            the line.
        StoreError: the log has another format.
    """
    count, is_ended = 0, False
    for event in checked(io.BytesIO(trace.data), trace.where):
        count += 1
        is_ended = event["event"] == "ended"
    if not count:
        raise TraceCorrupt(trace.where, 1, "the trace is empty")
    return Verified(count, trace.data[HASH].decode(), is_ended)
