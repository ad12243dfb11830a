"""Record a statement about a run from outside: the outcome of a step, or the end of the run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from rollcage.errors import SessionError, StepNotFound, StepNotUnknown
from rollcage.trace.chain import Chain
from rollcage.trace.endings import check_open
from rollcage.trace.run import Event, Run, Step, fold_log, spans_of
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
    """Record the outcome of a step: whether it happened, its result, or a repair by hand.

    The statement can't be taken back: find out first.

    Args:
        store: the store of the run.
        run: the id of the run.
        step: the number of the step.
        happened: whether the step happened, if its outcome is unknown.
        result: the result of the step, if known.
        undone: that a person has repaired the effect by hand, or accepts it: an undo leaves it
            alone, and a program may diverge from it.
        by: the name of the person.

    Returns:
        The resolved step.

    Raises:
        RunNotFound: there is no such run.
        StepNotFound: the run has no such step.
        StepNotUnknown: the outcome is known.
        RunInUse: another process is writing the run.
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
        adds = is_lossy and result is not _NOT_GIVEN  # it happened, and its result is known
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

    Nothing is undone: the effects stay, and the next run of the job repeats them. The run can be
    undone before or afterwards.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: another process is writing the run.
        SessionError: the run was set aside before.
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
    """Stop recorded steps from answering calls of later attempts, although their effects stay.

    Raises:
        RunInUse: another process is writing the run.
        StepNotFound: the run has no such step.
    """
    numbers = sorted(steps)

    def line(found: Run) -> Event:
        for step in numbers:
            if step not in found.steps:
                raise StepNotFound(f"run {run} has no step {step}; it has {len(found.steps)}")
        return {"event": "left", "left": spans_of(numbers)}

    _append(open_store(store), run, line)
