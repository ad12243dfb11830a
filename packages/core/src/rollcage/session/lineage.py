"""Finds the run that a session replays, and reads all that it builds on."""

from __future__ import annotations

import dataclasses
import gc
import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from rollcage.errors import RunNotFound, RunStopped, SessionError, SourceMissing, TraceCorrupt
from rollcage.replay.recording import Recording, read, recording_of
from rollcage.replay.saved import Saved
from rollcage.session.job import JobRequest, Replay
from rollcage.session.saving import ReadTrace, keep_saved, take_saved
from rollcage.step.ledger import Mode
from rollcage.store.at_once import will_wait
from rollcage.store.jobs import store_option
from rollcage.store.protocol import (
    Lock,
    Reader,
    RunTrace,
    StopOrder,
    Store,
    check_attested,
)
from rollcage.store.stubs import check_there
from rollcage.store.url import open_run
from rollcage.trace.reader import last_time, read_events
from rollcage.trace.runs import read_run
from rollcage.trace.step import Step
from rollcage.values.answer import Answer
from rollcage.values.codec import TAG

__all__ = [
    "MODES",
    "SourceRun",
    "check_newest",
    "read_answers",
    "read_forked",
    "read_lineage",
    "read_traces",
    "take_source",
]

MODES: Final[dict[Replay, Mode]] = {
    "auto": "resume", "continue": "resume", "off": "record", "resume": "resume",
    "offline": "offline", "verify": "verify",
}  # fmt: skip
SETTINGS: Final = ("format", "chain", "seed")
"""What a run must have been recorded with to be resumed."""

_UNDOING: Final = ("run.rewound",)
_ENDS: Final = ("step.finished", "step.resolved", "run.abandoned")  # of a step before, or the run

_log = logging.getLogger("rollcage")


class SourceRun(NamedTuple):
    """What a session replays, if anything, and how."""

    mode: Mode
    reader: Reader
    run: str | None


def take_source(store: Store, job: JobRequest, locks: list[Lock]) -> SourceRun:
    """The source of a session of a job: the one that is named, else its newest run.

    One that is to be resumed is locked, into `locks`, and looked for again: whoever wrote it may
    have ended it between the look and the lock. Then the job's `before_resume` may still refuse it.

    Raises:
        RunNotFound: there is none, and the mode needs one.
        RunAbandoned: it was set aside.
        RunInUse: somebody is writing it.
        SessionError: it is of another input.
    """
    found = _find_source(store, job)
    if found.run is not None:
        will_wait()  # until it is read
    while found.mode == "resume" and found.run is not None:
        lock = found.reader.lock(found.run)
        try:
            again = _find_source(store, job)
            if (again.mode, again.run) == (found.mode, found.run):
                job.before_resume(found.run)
                locks.append(lock)
                break
        except BaseException:
            lock.release()
            raise
        lock.release()
        found = again
    return found


def _find_source(store: Store, job: JobRequest) -> SourceRun:
    if job.fork is not None:
        reader, run = open_run(job.fork.run, store)
        if job.fork.live and _mode_of(reader, run) == "imported":
            raise SessionError(
                f"run {run} was imported, so nobody knows which of its writes were made: a fork of "
                f"it writes nothing, and can't be live"
            )
        return SourceRun("fork", reader, run)
    mode = MODES[job.replay]
    if job.source is not None:
        reader, run = open_run(job.source, store)
        info = reader.info(run) if mode == "resume" and isinstance(reader, Store) else None
        if mode == "resume":
            _check_performed(reader, run)
        if info is not None:
            job.check(
                info if reader is store else dataclasses.replace(info, input=job.input), store
            )
        return SourceRun(mode, reader, run)
    newest = None if job.replay == "off" else job.newest(store)
    if newest is None:
        return SourceRun("record", store, None)
    return SourceRun(mode, store, newest.run)


def _mode_of(reader: Reader, run: str) -> str:
    """How a run was recorded: as the index says, or, if it has no entry, its first line."""
    if isinstance(reader, Store):
        return reader.info(run).mode
    trace = reader.read(run)
    return str(next(read_events(trace.data, trace.where))[1].get("mode", ""))


def _check_performed(reader: Reader, run: str) -> None:
    """Refuse to resume a run that Rollcage did not perform: no write is answered by it.

    Raises:
        SessionError: it was imported, or is a fork.
    """
    mode = _mode_of(reader, run)
    if mode == "fork":
        raise SessionError(
            f"run {run} is a fork, which no session resumes: fork it again, or look at it with "
            f'replay="offline"'
        )
    if mode == "imported":
        raise SessionError(
            f"run {run} was imported, so nobody knows which of its writes were made, and none is "
            f'resumed from it. Replay it with replay="offline", or record a new run: replay="off"'
        )


def check_newest(store: Store, run: str, action: str) -> None:
    """Refuse what is to be done with a run that another one builds on.

    Raises:
        SessionError: names that one.
    """
    later = [i for i in store.runs(source=run) if i.mode in ("record", "resume")]
    if later:
        raise SessionError(
            f"run {later[-1].run} builds on run {run}: {action} that one, the newest, first"
        )


def read_lineage(
    source: SourceRun,
    job: JobRequest,
    store: Store,
    *,
    settings: Mapping[str, Any],
    retry_failed: bool | None,
    locks: list[Lock],
    pauses: list[StopOrder],
) -> Recording:
    """The recording of a source and of all that it builds on, transitively.

    If it is resumed, each that it builds on is locked, into `locks`, so that nobody else resumes
    them too; the source itself is locked already. `settings` are what the runs must have been
    recorded with. If one of them has an order to pause, that order comes to the `pauses`, those of
    newer runs first: it holds for what resumes it, too.

    Raises:
        StoreError: one of them is gone, in use or corrupt.
        RunStopped: one of them has an order to stop.
        RunTooOld: the source is older than the job allows.
        SessionError: one of them was recorded with other settings.
    """
    assert source.run is not None
    live = source.mode == "resume"
    collecting = gc.isenabled()
    gc.disable()  # all that is made here is kept: collections would take a third of the time
    try:
        base, traces = _read_down(
            source.reader,
            source.run,
            locks=locks if live else None,
            settings=settings,
            whole=live,
            by_saved=True,
            pauses=pauses,
        )
        lineage = read(((t.where, t.data) for t in traces), None if base is None else base.lineage)
        keep_saved(source.reader, base, traces, lineage)
        recording = recording_of(lineage, offline=not live, retry_failed=retry_failed)
    finally:
        if collecting:
            gc.enable()
    if live:
        time = last_time(traces[-1].data) if traces or base is None else base.last_time
        job.check_age(source.run, time, store)
    return recording


def read_forked(
    source: SourceRun, job: JobRequest, store: Store, *, settings: Mapping[str, Any]
) -> Recording:
    """The recording of the run that a fork is one of, as that had ended; nothing is locked.

    Raises:
        StoreError: it, or a run that it builds on, is gone or corrupt.
        SessionError: it was recorded with other settings, or is of another input.
    """
    assert source.run is not None
    _, traces = _read_down(source.reader, source.run, locks=None, settings=settings, whole=False)
    newest = traces[-1]
    started = next(read_events(newest.data, newest.where))[1]
    had = (started.get("input") or {}).get("digest")
    if job.input is not None and source.reader is store and had != job.input:
        raise SessionError(
            f"run {source.run} had {'another' if had else 'no'} input: pass the input that it had, "
            f"or none"
        )
    whole = [(trace.where, trace.data) for trace in traces[:-1]]
    whole.append((newest.where, _as_it_ended(newest)))
    return recording_of(read(whole), offline=True, retry_failed=None)


def _as_it_ended(trace: ReadTrace) -> bytes:
    """The lines of a trace up to the first undo of the run after it was left."""
    lines = trace.data.splitlines(keepends=True)
    kept = ended = 0
    undoing: int | None = None
    for number, event in read_events(trace.data, trace.where):
        if event["event"].startswith("undo.") or "undoes" in event or event["event"] in _UNDOING:
            undoing = number - 1 if undoing is None else undoing
        elif event["event"] == "run.finished":
            ended, undoing = number, None
        elif event["event"] not in _ENDS and not ended:
            kept, undoing = number, None
    if undoing is None or not (ended or kept):
        return trace.data
    return b"".join(lines[:undoing])


def read_traces(
    reader: Reader,
    run: str,
    *,
    locks: list[Lock] | None,
    settings: Mapping[str, Any] | None = None,
    whole: bool = False,
) -> list[tuple[str, bytes]]:
    """The traces of a run and of all that it builds on, oldest first: a name for each, its lines.

    Args:
        reader: where they come from.
        run: the newest of them.
        locks: if given, each but the newest is locked, into it.
        settings: what they must have been recorded with.
        whole: what an unfinished run builds on must be there.
    """
    _, traces = _read_down(reader, run, locks=locks, settings=settings or {}, whole=whole)
    return [(trace.where, trace.data) for trace in traces]


def _read_down(
    reader: Reader,
    run: str,
    *,
    locks: list[Lock] | None,
    settings: Mapping[str, Any],
    whole: bool,
    by_saved: bool = False,
    pauses: list[StopOrder] | None = None,
) -> tuple[Saved | None, list[ReadTrace]]:
    """A run and all that it builds on: what was kept of the oldest, and the others' traces."""
    lineage: list[ReadTrace] = []
    seen: set[str] = set()

    def check(older: str, started: Mapping[str, Any]) -> None:
        if locks is not None:
            _check_stopped(reader, older, pauses)
        _check_settings(started, older, settings)

    wanted: str | None = run
    finished = False
    while wanted is not None:
        seen.add(wanted)
        try:
            if locks is not None:
                if lineage:
                    locks.append(reader.lock(wanted))
                _check_stopped(reader, wanted, pauses)
            base = take_saved(reader, wanted, locks, check) if by_saved else None
            if base is not None:
                _check_settings(base.traces[-1].settings, wanted, settings)
                lineage.reverse()
                return base, lineage
            trace = reader.read(wanted)
            check_there(trace)
        except RunNotFound:
            if not lineage:
                raise
            if whole and not finished:
                raise SourceMissing(
                    f"run {run} did not finish, and run {wanted} that it builds on is gone, so "
                    f'what that one had done is not known. Restore it, or use replay="offline", '
                    f"or start over: rollcage abandon {run}{store_option(reader)}"
                ) from None
            break
        if trace.torn:
            _log.warning("%s: its last line is torn and is left out", trace.where)
        check_attested(trace)
        finished = finished or _ended_well(trace)
        started = next(read_events(trace.data, trace.where))[1]
        _check_settings(started, wanted, settings)
        kept = {field: started.get(field) for field in SETTINGS}
        lineage.append(ReadTrace(wanted, trace.where, trace.data, kept))
        wanted = None if started["mode"] == "fork" else started.get("source")
        if wanted in seen:
            raise TraceCorrupt(trace.where, 1, f"run {wanted} would be its own source")
    lineage.reverse()
    return None, lineage


def read_answers(reader: Reader, run: str, agent: str | None) -> list[Answer]:
    """What the model answered in one run, in the order in which it was asked.

    Those of one `agent`, or of all agents but the ones inside of tools. A call that failed, or that
    nothing is known of, has no answer.

    Raises:
        StoreError: the trace can't be read, or was changed.
    """
    trace = reader.read(run)
    check_there(trace)
    check_attested(trace)
    answers: list[Answer] = []
    for step in read_run(trace, schema=False).steps:
        outcome = step.outcome
        try:
            if step.kind != "model" or not _is_asked_by(agent, step):
                continue
            if outcome is None or outcome["status"] != "ok":
                continue
            answer = outcome["answer"]
            if TAG in answer:
                answer = orjson.loads(reader.get_blob(answer["sha256"]))
            answers.append(Answer.from_data(answer, outcome.get("usage")))
        except (KeyError, TypeError, ValueError) as error:
            line = step.ended_line or step.line
            raise TraceCorrupt(trace.where, line, f"no answer of a model: {error}") from None
    return answers


def _is_asked_by(agent: str | None, step: Step) -> bool:
    return step.parent is None if agent is None else step.agent == agent


def _check_stopped(reader: Reader, run: str, pauses: list[StopOrder] | None) -> None:
    """Raise RunStopped if a run has an order to stop; note one to pause."""
    order = reader.stop_order(run)
    if order is not None and order.is_pause and pauses is not None:
        pauses.append(order)
    elif order is not None and not order.is_pause:
        raise RunStopped(run, order.by, order.reason, store_option(reader))


def _check_settings(started: Mapping[str, Any], run: str, settings: Mapping[str, Any]) -> None:
    for field, own in settings.items():
        if started.get(field) != own:
            raise SessionError(
                f"run {run} was recorded with {field}={started.get(field)!r}, this session has "
                f"{own!r}, so nothing recorded would match. Pass the recorded one, or start "
                f'a new run: replay="off"'
            )


def _ended_well(trace: RunTrace) -> bool:
    """Whether the session was left as it should be; an undo may have come after that."""
    start = trace.data.rfind(b'\n{"event":"run.finished"') + 1
    return start > 0 and b'"status":"ok"' in trace.data[start : trace.data.find(b"\n", start)]
