"""A person resolves a write whose outcome is unknown, or whose result can't be replayed."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from typing import Any, Final, NamedTuple, NoReturn

import orjson

from rollcage.errors import SessionError, StepNotFound, StepNotUnknown
from rollcage.store.protocol import RunTrace, Store, Writer, check_attested
from rollcage.store.url import open_store
from rollcage.trace.constructors import step_resolved
from rollcage.trace.runs import Run, read_run
from rollcage.trace.step import Step
from rollcage.values.codec import encode

__all__ = ["Resolved", "resolve_step"]

_NONE: Final = object()


class Resolved(NamedTuple):
    """The resolution of a step.

    Attributes:
        step: as it was before that.
        outcome: what is recorded of it now.
        attested: whether the run had ended, and the index attests its new end.
    """

    step: Step
    outcome: dict[str, Any]
    attested: bool


def resolve_step(
    store: str | os.PathLike[str] | Store,
    run: str,
    step: int,
    *,
    happened: bool,
    result: Any = _NONE,
) -> Resolved:
    """Record what became of an unknown step, or a result that can't be replayed.

    Then its run can be resumed: a step that happened is replayed with its result, one that did not
    happen runs again. This can't be undone: find out first.

    Args:
        store: where the run is kept.
        run: its id.
        step: its number.
        happened: whether it happened.
        result: what it gave, as JSON has it; None if it was not given.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: it has a live writer, or is being resumed or undone.
        StepNotFound: it has no such step.
        StepNotUnknown: the step has a known outcome that can be replayed.
        SessionError: a step that did not happen has no result; or one was performed, and its
            result is what has to be given.
    """
    given = result is not _NONE
    outcome: dict[str, Any] = {"status": "not_started"}
    if happened:
        outcome = {"status": "ok", "value": encode(result if given else None, _no_secret)}
    elif given:
        raise SessionError("a step that did not happen has no result")
    own = open_store(store)
    # Checked before anything is locked or set aside.
    _check(_in_doubt(read_run(own.read(run)), run, step), outcome, given=given)
    writer = own.reopen(run)
    try:
        trace = own.read(run)
        check_attested(trace)
        row = _in_doubt(read_run(trace), run, step)
        _check(row, outcome, given=given)  # it may have ended since
        return _append(trace, writer, row, outcome)
    finally:
        writer.close()


def _append(trace: RunTrace, writer: Writer, row: Step, outcome: dict[str, Any]) -> Resolved:
    digest = sha256(orjson.dumps(outcome)).hexdigest()
    now = time.time_ns() // 1000
    writer.append(
        step_resolved(time=now, step=row.step, by="operator", outcome=outcome, digest=digest)
    )
    writer.sync()
    status = None if trace.info is None else trace.info.status
    if status is not None:
        writer.attest(status)
    return Resolved(row, outcome, status is not None)


def _in_doubt(seen: Run, run: str, number: int) -> Step:
    row = seen.step(number)
    if row is None:
        raise StepNotFound(f"run {run} has no step {number}; it has {len(seen.steps):,}")
    if row.origin is not None and row.state == "unknown":
        where, first = row.origin[:2]
        raise StepNotUnknown(
            f"step {number} is a replay of step {first} of run {where}: resolve that one"
        )
    if row.state != "unknown" and not row.unreplayable:
        raise StepNotUnknown(
            f"step {number} ({row.name}) has a known outcome: {_outcome_text(row)}. Only an "
            f"unknown step can be resolved, or one whose result can't be replayed"
        )
    return row


def _check(row: Step, outcome: dict[str, Any], *, given: bool) -> None:
    """Refuse a resolution that says nothing new of a write that was performed."""
    if row.unreplayable and (outcome["status"] != "ok" or not given):
        raise SessionError(
            f"step {row.step} ({row.name}) was performed, but its result can't be replayed "
            f"({row.unreplayable}). Record it: --happened --result JSON"
        )


def _outcome_text(row: Step) -> str:
    if row.resolved_by:
        return f"it was resolved already, by {row.resolved_by}"
    return {
        "hit": "its recorded outcome was replayed",
        "seen": "its recorded outcome was in the framework's own memory",
        "ran": "it ran",
        "failed": "it ran and failed",
        "blocked": "it was blocked, nothing ran",
        "cut_off": f"a {row.effect} that was cut off just runs again",
        "not_started": "it never started",
    }.get(row.state, f"it is {row.state}")


def _no_secret(_secret: str) -> NoReturn:
    raise AssertionError("JSON holds no secret")
