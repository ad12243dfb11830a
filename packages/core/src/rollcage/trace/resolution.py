"""What somebody says of a run from outside: what became of a step, or that it is set aside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from rollcage.errors import SessionError, StepNotFound, StepNotUnknown
from rollcage.trace.chain import Chain
from rollcage.trace.endings import check_open
from rollcage.trace.reading import fold_log
from rollcage.trace.run import Event, Run, Step, spans_of
from rollcage.trace.store import Store, open_store, store_option
from rollcage.values.codec import encode

__all__ = ["abandon_run", "leave_behind", "resolve_step"]

Where = str | os.PathLike[str] | Store
_NOT_GIVEN: Final = object()


def resolve_step(
    store: Where,
    run: str,
    step: int,
    *,
    happened: bool | None = None,
    result: Any = _NOT_GIVEN,
    undone: bool = False,
    by: str = "",
) -> Step:
    """Say what became of a step: whether it happened, what it gave, or that it counts as undone.

    Nothing takes that back: find out first.

    Args:
        store: where the run is.
        run: its id.
        step: its number.
        happened: whether it did, if nobody knows.
        result: what it gave, if that is known.
        undone: that somebody has put right by hand what it did, or accepts it as it is: an undo
            does nothing about it, and it keeps no program from going another way.
        by: who says so.

    Returns:
        The step, with that taken in.

    Raises:
        RunNotFound: there is no such run.
        StepNotFound: the run has no such step.
        StepNotUnknown: its outcome is known.
        RunInUse: somebody is at the run.
    """
    if undone == (happened is not None):
        raise SessionError("say of a step whether it happened, or that it counts as undone")
    if result is not _NOT_GIVEN and not happened:
        raise SessionError("a step that did not happen has no result")
    outcome: Event | None = None
    if happened:
        outcome = {"status": "ok", "value": None}
        if result is _NOT_GIVEN:
            outcome["lossy"] = "its result is not known"
        else:
            outcome["value"] = encode(result, str, path="result")

    def line(found: Run) -> Event:
        recorded = found.steps.get(step)
        if recorded is None:
            raise StepNotFound(f"run {run} has no step {step}; it has {len(found.steps)}")
        if undone:
            return {"event": "accepted", "step": step, "by": by}
        is_lossy = b'"lossy":' in (recorded.outcome or b"") and "lossy" in recorded.result
        adds = is_lossy and result is not _NOT_GIVEN  # it happened, and its result is known by now
        if is_lossy and not adds:
            raise StepNotUnknown(
                f"step {step} ({recorded.name}) of run {run} was performed, and its result is not "
                f"on record. Record it: --happened --result JSON"
            )
        if recorded.status != "unknown" and not recorded.unclear and not adds:
            raise StepNotUnknown(
                f"step {step} ({recorded.name}) of run {run} is {recorded.status}: there is "
                f"nothing to resolve"
            )
        return {"event": "outcome", "step": step, "outcome": outcome, "by": by}

    return _append(open_store(store), run, line).steps[step]


def abandon_run(store: Where, run: str, *, reason: str = "", by: str = "") -> None:
    """Set a run aside: no session resumes it.

    Nothing is undone: what it did stays done, and the next run of its job does it again. It can be
    undone all the same, before that or afterwards.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: somebody is at it.
        SessionError: it was set aside before.
    """
    own = open_store(store)

    def line(found: Run) -> Event:
        if found.status == "abandoned":
            raise SessionError(
                f"run {run} was abandoned before: see rollcage show {run}{store_option(own)}"
            )
        said: Event = {"event": "ended", "status": "abandoned", "reason": reason, "by": by}
        if found.attempts > 1:
            said["attempts"] = found.attempts
        return said

    _append(own, run, line)


def _append(store: Store, run: str, line: Callable[[Run], Event]) -> Run:
    store.read(run, -1)  # a run that is not there is not made
    log = Chain(store.open(run))
    try:
        found = fold_log(log.lines(), log.log.where, {})
        check_open(found, store)
        said = {**line(found), "time": time.time_ns() // 1000}
        log.append(said)
        log.wait()
        found.apply(said)
        return found
    finally:
        log.close()


def leave_behind(store: Where, run: str, steps: Iterable[int]) -> None:
    """Have recorded steps answer no call of a later attempt, though what they did stays done.

    Raises:
        RunInUse: somebody is at the run.
        StepNotFound: the run has no such step.
    """
    numbers = sorted(steps)

    def line(found: Run) -> Event:
        for step in numbers:
            if step not in found.steps:
                raise StepNotFound(f"run {run} has no step {step}; it has {len(found.steps)}")
        return {"event": "left", "left": spans_of(numbers)}

    _append(open_store(store), run, line)
