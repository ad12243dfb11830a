"""A run is set aside: no session continues it, and its effects stay."""

from __future__ import annotations

import os
import time

from rollcage.errors import SessionError
from rollcage.session.lineage import check_newest
from rollcage.store.jobs import store_option
from rollcage.store.protocol import Store, check_attested
from rollcage.store.url import open_store
from rollcage.trace.constructors import run_abandoned
from rollcage.trace.reader import read_events

__all__ = ["abandon_run"]


def abandon_run(
    store: str | os.PathLike[str] | Store, run: str, *, by: str = "", reason: str = ""
) -> None:
    """Set a run aside, and all that it builds on: the next session of its job starts over.

    Nothing is undone: its effects stay, and a new run of the job performs them again. To undo them,
    use `undo_run`, before that or afterwards. It can still be looked at and replayed
    offline.

    Args:
        store: where the run is kept.
        run: its id.
        by: who says so.
        reason: why.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: it has a live writer, or is being resumed or undone.
        SessionError: another run builds on it, it was abandoned before, or it only looked back.
    """
    own = open_store(store)
    own.read(run)  # otherwise a folder would be made if there is no store
    with own.opening():
        writer = own.reopen(run)
        try:
            trace = own.read(run)
            check_attested(trace)
            mode = next(read_events(trace.data, trace.where))[1].get("mode")
            if mode in ("offline", "verify", "fork"):
                raise SessionError(f"run {run} was a replay only ({mode}): no session resumes it")
            if mode == "imported":
                raise SessionError(f"run {run} was imported: no session resumes it")
            if trace.info is not None and trace.info.status == "abandoned":
                raise SessionError(
                    f"run {run} was abandoned before: see rollcage show {run}{store_option(own)}"
                )
            check_newest(own, run, "abandon")
            now = time.time_ns() // 1000
            writer.append(run_abandoned(time=now, by=by, reason=reason))
            writer.sync()
            writer.attest("abandoned")
        finally:
            writer.close()
