"""Tell how a run ended, and refuse further lines of a closed run."""

from __future__ import annotations

import shlex
from typing import Any, Final

import orjson

from rollcage.errors import RunElsewhere, RunPruned, SessionError
from rollcage.trace.run import ENDS, Run
from rollcage.trace.store import Store, store_option

__all__ = ["OVER", "check_here", "check_open", "check_performed", "check_whole", "ended_as"]

OVER: Final = ("ok", "abandoned")
"""The statuses of runs that no session resumes by itself: the next session begins a new run."""


def ended_as(store: Store, run: str) -> str:
    """Return the status of a run by its last line alone; empty if it has not ended.

    Raises:
        RunNotFound: there is no such run.
    """
    last = _last_of(store, run)
    return str(last["status"]) if last.get("event") in ENDS else ""


def _last_of(store: Store, run: str) -> dict[str, Any]:
    """Return the last line of a run; empty for a log without a line."""
    last = store.read(run, -1)
    event: Any = orjson.loads(last[-1]) if last else None
    return event if isinstance(event, dict) else {}


def check_whole(run: Run) -> None:
    """Refuse a run without lines to answer from.

    Raises:
        RunPruned: the run was pruned.
    """
    if run.shut is not None and run.shut["event"] == "pruned":
        raise RunPruned(
            f"run {run.id} was pruned: it ended {run.status}, and what it did is not known any "
            f'more. Begin another one with replay="off"'
        )


def check_performed(run: Run, store: Store) -> None:
    """Refuse an imported run. A dry fork of an imported run writes nothing, and passes.

    Raises:
        SessionError: the effects of the run may never have been made.
    """
    if run.imported is None or run.dry:
        return
    raise SessionError(
        f"run {run.id} was imported: nothing of it was performed here, and nobody knows how its "
        f"effects are taken back, so it is not resumed, undone or changed. To look at it: rollcage "
        f"show {run.id}{store_option(store)}; to replay it: Session({run.name!r}, "
        f'replay="offline", source={run.id!r})'
    )


def check_open(run: Run, store: Store) -> None:
    """Refuse a run to which no line may be added.

    Raises:
        RunElsewhere: the run is an unclaimed copy, or was moved.
        RunPruned: the run was pruned.
        SessionError: the run was imported.
    """
    check_whole(run)
    check_performed(run, store)
    if run.shut is not None:
        raise elsewhere(run.id, run.shut, store)


def check_here(store: Store, run: str) -> None:
    """Refuse a run that goes on in another store, by its last line alone.

    Raises:
        RunNotFound: there is no such run.
        RunElsewhere: the run is an unclaimed copy, or was moved.
    """
    last = _last_of(store, run)
    if last.get("event") in ("gone", "held"):
        raise elsewhere(run, last, store)


def elsewhere(run: str, shut: dict[str, Any], store: Store) -> RunElsewhere:
    """Return the error that says where a run goes on, or may, by the last line of its log."""
    if shut["event"] == "gone":
        return RunElsewhere(f"run {run} was moved, and goes on in {shut['to']}")
    return RunElsewhere(
        f"this is a copy of run {run}, which may go on in {shut['from']}: resume it there, or move "
        f"it here: rollcage copy {run} --move --from {shlex.quote(shut['from'])} --to "
        f"{shlex.quote(store.url)}"
    )
