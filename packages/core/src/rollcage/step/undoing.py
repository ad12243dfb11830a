"""The flow of an undo, written once for sync and async (DESIGN §6).

Everything is checked before anything is changed: the tools that are needed, what became of steps in
doubt, the states as they are now, and the verdicts on the compensating calls. These are ordinary
steps, in a branch of their own for each step that they undo, so that an interrupted undo can be
continued.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from typing import Any

from rollcage.errors import PlanChanged, SessionError
from rollcage.replay.path import Entry
from rollcage.replay.recording import Lineage, undo_paths
from rollcage.replay.steps import branches_below
from rollcage.step.capture import Setting
from rollcage.step.flow import run_step
from rollcage.step.requests import (
    BeginUndo,
    Flow,
    MarkUndone,
    Note,
    OpenUndo,
    Raised,
    Request,
    Returned,
    Rewind,
    Sync,
)
from rollcage.step.undo_checks import (
    UndoHost,
    UndoRefused,
    UndoRequest,
    denied_calls,
    looked_at,
    state_now,
)
from rollcage.trace import constructors as make
from rollcage.undo.compensation import differing
from rollcage.undo.expected import changes, stays_undone
from rollcage.undo.report import UndoneStep, UndoPlan, UndoReport
from rollcage.undo.task import Task

__all__ = ["plan_steps", "undo_orphans", "undo_steps"]


def plan_steps(request: UndoRequest, setting: Setting) -> Flow:
    """What an undo would do, without doing it: gives an `UndoPlan`."""
    try:
        tasks, _ = yield from looked_at(request, setting, records=False)
    except UndoRefused as refused:
        return Raised(refused.error)
    return Returned(_plan(request, tasks))


def undo_steps(request: UndoRequest, setting: Setting, host: UndoHost) -> Flow:
    """Undo effects: gives an `UndoReport`."""
    try:
        tasks, lineage = yield from looked_at(request, setting, records=True)
        _check_expected(request, tasks, lineage, setting)
        stopped = denied_calls(tasks, host) or [
            task.ended(task.state, task.reason, task.differs)
            for task in tasks
            # A block is all or nothing: as long as an outcome is unknown, nothing is undone.
            if task.state == "conflict" or (task.state == "unknown" and request.branch)
        ]
        for each in stopped:  # nothing is changed at all
            yield Note(_finished(each), each.name)
        done = stopped or (yield from _carried_out(tasks, lineage, request, setting, host))
    except UndoRefused as why:
        return Raised(why.error)
    if setting.barrier:
        yield Sync()
    seen = {(each.run, each.step) for each in done}
    left = [(*task.origin, task.entry.name) for task in tasks if task.origin not in seen]
    report = UndoReport(run=request.run, to=request.to, steps=tuple(done), left=tuple(left))
    return Returned(report)


def _plan(request: UndoRequest, tasks: list[Task[Entry]]) -> UndoPlan:
    steps = tuple(task.planned() for task in tasks)
    return UndoPlan(run=request.run, to=request.to, steps=steps)


def _check_expected(
    request: UndoRequest, tasks: list[Task[Entry]], lineage: Lineage, setting: Setting
) -> None:
    """Refuse an undo that differs from the plan that was seen; the run is locked, so it stays so.

    Raises:
        UndoRefused: it would do something else.
    """
    if request.expected is None:
        return
    found = changes(request.expected, _plan(request, tasks))
    if found:
        undone = lineage.undone.done | lineage.undone.begun
        raise UndoRefused(
            PlanChanged(
                f"an undo of run {request.run} would do something else than what was seen: "
                f"{'; '.join(found)}. {stays_undone(request.expected, undone).capitalize()}: look "
                f"at it again, with rollcage undo {request.run} --plan{setting.at}"
            )
        )


def _carried_out(
    tasks: list[Task[Entry]],
    lineage: Lineage,
    request: UndoRequest,
    setting: Setting,
    host: UndoHost,
) -> Generator[Request, Any, list[UndoneStep]]:
    """Undo one step after the other, up to the first that fails."""
    yield BeginUndo(undo_paths(lineage.entries))
    done: list[UndoneStep] = []
    for task in tasks:
        each = yield from _undone(task, setting, host)
        yield Note(_finished(each), each.name)
        done.append(each)
        if each.status in ("verified", "compensated"):
            yield MarkUndone(*task.origin)
        elif each.status in ("failed", "conflict"):
            return done
    if request.only is None:
        incomplete = any(each.status not in ("verified", "compensated") for each in done)
        yield Note(
            make.run_rewound(
                to=request.to or 0,
                branch=request.branch,
                incomplete=incomplete,
                again=request.again,
            )
        )
        if not request.branch:
            yield Rewind()
        elif not incomplete:
            for entry in _ahead_in(request.branch, request.run, lineage):
                yield MarkUndone(entry.run, entry.step)
    return done


def _ahead_in(branch: str, run: str, lineage: Lineage) -> list[Entry]:
    """The scopes of a branch that was undone as a whole, and its joins, in the runs before.

    If they lie ahead of this run, nobody asks for them any more.
    """
    names = branches_below(branch, lineage.entries) or set()
    return [
        entry
        for entry in lineage.entries
        if entry.has_effect and entry.run != run
        if (entry.kind == "branch" and entry.name == branch)
        or (entry.branch in names and (entry.kind == "branch" or entry.effect == "scope"))
    ]


def undo_orphans(
    request: UndoRequest, setting: Setting, host: UndoHost
) -> Generator[Request, Any, str]:
    """Undo effects that a new write would leave behind; what is left of them, as text."""
    answer: Returned | Raised = yield from undo_steps(request, setting, host)
    if isinstance(answer, Raised):
        if not isinstance(answer.error, Exception):
            raise answer.error
        return str(answer.error)
    report: UndoReport = answer.value
    if not report.complete:
        return str(report)
    joins = [e for e in request.only or () if e.kind == "branch"]
    for entry in joins:  # what they restored is gone
        yield MarkUndone(entry.run, entry.step)
    return ""


# --- one step ------------------------------------------------------------------------------------


def _undone(
    task: Task[Entry], setting: Setting, host: UndoHost
) -> Generator[Request, Any, UndoneStep]:
    """Undo one step, and check whether that worked."""
    if task.state == "nothing":
        if not (yield from _is_there_still(task, setting)):
            return task.ended("compensated" if task.was is None else "verified", task.reason)
        task.reason = ""
    if task.state in ("irreversible", "unknown"):
        return task.ended("unknown" if task.state == "unknown" else "irreversible", task.reason)
    looks = task.contract is not None and task.was is not None
    if looks:
        changed = yield from _changed_meanwhile(task, setting)
        if changed is not None:
            return changed
    calls = task.calls
    yield Note(make.undo_started(of=task.origin, calls=len(calls)))
    name: str = yield OpenUndo(task.entry.fingerprint, task.attempt)
    for tool, values in calls:
        progress, verdict = host.compensating(tool, values, name, task.origin)
        body = tool.body
        assert body is not None
        is_async = inspect.iscoroutinefunction(body)
        answer = yield from run_step(body, setting, None, False, progress, verdict, is_async)
        if isinstance(answer, Raised):
            if not isinstance(answer.error, Exception):
                raise answer.error
            message = f"{tool.contract.name}: {type(answer.error).__name__}: {answer.error}"
            return task.ended("failed", message)
    if not looks:
        return task.ended("compensated", "nothing observes what it changes")
    try:
        now = yield from state_now(task, setting)
    except SessionError as error:
        return task.ended("failed", str(error), {})
    assert task.was is not None
    differs = differing(task.was, now)
    if differs:
        return task.ended("failed", "the state is not what it was before", differs)
    return task.ended("verified", task.reason)


def _is_there_still(task: Task[Entry], setting: Setting) -> Generator[Request, Any, bool]:
    """Whether the state that a step left is still there, though it should be gone by now.

    That happens if its tool observes different things under one name.
    """
    if task.put_back or task.happened is False or not (task.was and task.contract and task.calls):
        return False
    try:
        now = yield from state_now(task, setting)
    except SessionError:
        return True  # the next check says so
    return bool(differing(task.was, now))


def _changed_meanwhile(
    task: Task[Entry], setting: Setting
) -> Generator[Request, Any, UndoneStep | None]:
    """Check again, right before: the later steps are undone by now."""
    assert task.was is not None
    try:
        now = yield from state_now(task, setting)
    except SessionError as error:
        return task.ended("failed", str(error))
    if not differing(task.was, now):
        return task.ended("verified", "the state is as it was before")
    if task.after is None or task.begun or task.entry.status == "unknown":
        return None
    strange = {
        r: fields
        for r, fields in differing(task.after, now).items()
        if now.get(r) != task.was.get(r)
    }
    if strange:
        return task.ended("conflict", "somebody else has changed it since", strange)
    return None


def _finished(each: UndoneStep) -> dict[str, Any]:
    return make.undo_finished(
        of=(each.run, each.step), status=each.status, reason=each.reason, differs=each.differs
    )
