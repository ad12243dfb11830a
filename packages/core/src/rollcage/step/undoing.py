"""The flow of an undo, written once for sync and async (DESIGN §6).

Everything is looked at before anything is changed: the tools that are needed, what became of steps
in doubt, the states as they are now, and what the rules say of the compensating calls. These are
ordinary steps, in a branch of their own for each step that they undo, so that an undo which
was cut off goes on where it was.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Generator, Mapping
from hashlib import sha256
from typing import Any, Protocol

import orjson

from rollcage.contract.contract import Contract
from rollcage.errors import PlanChanged, RollcageError, SessionError, ToolMissing, ToolRefused
from rollcage.fingerprint.identity import idempotency_key
from rollcage.gate import Verdict
from rollcage.replay.finding import ProbeResult
from rollcage.replay.path import Entry
from rollcage.replay.recording import Lineage, undo_paths
from rollcage.replay.steps import Origin
from rollcage.step.call import Progress
from rollcage.step.capture import Setting, observed, plan_late, probed, revived
from rollcage.step.flow import happened, run_step
from rollcage.step.requests import (
    BeginUndo,
    Flow,
    Note,
    OpenUndo,
    Raised,
    Recall,
    Request,
    Returned,
    Rewind,
    Sync,
    TakenBack,
)
from rollcage.trace import constructors as make
from rollcage.undo.assessment import assess
from rollcage.undo.compensation import (
    DidNotHappen,
    Happened,
    PlannedCall,
    Tool,
    arguments_of,
    differing,
    digests_of,
)
from rollcage.undo.expected import changes, stays_undone
from rollcage.undo.report import InDoubt, UndoneStep, UndoPlan, UndoReport
from rollcage.undo.targets import targets, without_calls
from rollcage.undo.task import Task
from rollcage.values.decoding import decode

__all__ = ["UndoHost", "UndoRequest", "plan_steps", "take_back", "undo_steps"]


class UndoHost(Protocol):
    """What an undo needs of its session."""

    def compensating(
        self, tool: Tool, arguments: Mapping[str, Any], branch: str, origin: Origin
    ) -> tuple[Progress, Verdict]:
        """A compensating call, and what the rules say of it."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoRequest:
    """What is to be undone, in which run and how: what every way to ask for an undo comes to.

    Attributes:
        run: whose effects; `to` is one of its steps.
        to: the last of its steps that stays; None: everything is undone.
        branch: only what is in it, and below; empty: all.
        only: these effects, and what is below them; None: all.
        in_doubt: see `InDoubt`.
        expected: the plan that was seen, or its digest: nothing else is done, but the rest of it.
        again: whether a resume runs the branch again, whatever came after it: the run was stopped.
        is_async: whether async functions can be called.

    Raises:
        SessionError: `to` is not the number of a step.
    """

    run: str
    to: int | None = None
    branch: str = ""
    only: tuple[Entry, ...] | None = None
    in_doubt: InDoubt = "list"
    expected: UndoPlan | str | None = None
    again: bool = False
    is_async: bool = False

    def __post_init__(self) -> None:
        if self.to is not None and self.to < 1:
            raise SessionError(f"to={self.to} is not a step; steps count from 1")


class _Refused(Exception):
    """It can't be done, and nothing was changed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def plan_steps(request: UndoRequest, setting: Setting) -> Flow:
    """What an undo would do, without doing it: gives an `UndoPlan`."""
    try:
        tasks, _ = yield from _looked_at(request, setting, records=False)
    except _Refused as refused:
        return Raised(refused.error)
    return Returned(_plan(request, tasks))


def undo_steps(request: UndoRequest, setting: Setting, host: UndoHost) -> Flow:
    """Take effects back: gives an `UndoReport`."""
    try:
        tasks, lineage = yield from _looked_at(request, setting, records=True)
        _check_expected(request, tasks, lineage, setting)
        stopped = _gated(tasks, host) or [
            task.ended(task.state, task.reason, task.differs)
            for task in tasks
            # A block is all or nothing: while it is not known what there is to undo, it stays.
            if task.state == "conflict" or (task.state == "unknown" and request.branch)
        ]
        for each in stopped:  # nothing is changed at all
            yield Note(_finished(each), each.name)
        done = stopped or (yield from _carried_out(tasks, lineage, request, setting, host))
    except _Refused as why:
        return Raised(why.error)
    if setting.barrier:
        yield Sync()
    seen = {(each.run, each.step) for each in done}
    left = [(*task.origin, task.entry.name) for task in tasks if task.origin not in seen]
    report = UndoReport(run=request.run, to=request.to, steps=tuple(done), left=tuple(left))
    return Returned(report)


def _plan(request: UndoRequest, tasks: list[Task]) -> UndoPlan:
    steps = tuple(task.planned() for task in tasks)
    return UndoPlan(run=request.run, to=request.to, steps=steps)


def _check_expected(
    request: UndoRequest, tasks: list[Task], lineage: Lineage, setting: Setting
) -> None:
    """Refuse what nobody has seen; the run is ours by now, so it stays what it is.

    Raises:
        _Refused: it would do something else.
    """
    if request.expected is None:
        return
    found = changes(request.expected, _plan(request, tasks))
    if found:
        undone = lineage.undone.done | lineage.undone.begun
        raise _Refused(
            PlanChanged(
                f"an undo of run {request.run} would do something else than what was seen: "
                f"{'; '.join(found)}. {stays_undone(request.expected, undone).capitalize()}: look "
                f"at it again, with rollcage undo {request.run} --plan{setting.at}"
            )
        )


def _carried_out(
    tasks: list[Task], lineage: Lineage, request: UndoRequest, setting: Setting, host: UndoHost
) -> Generator[Request, Any, list[UndoneStep]]:
    """Take one step back after the other, up to the first that fails."""
    yield BeginUndo(undo_paths(lineage.entries))
    done: list[UndoneStep] = []
    for task in tasks:
        each = yield from _undone(task, setting, host)
        yield Note(_finished(each), each.name)
        done.append(each)
        if each.status in ("verified", "compensated"):
            yield TakenBack(*task.origin)
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
    return done


def take_back(
    request: UndoRequest, setting: Setting, host: UndoHost
) -> Generator[Request, Any, str]:
    """Undo effects that a new write would leave behind; what is left of them, in words."""
    answer: Returned | Raised = yield from undo_steps(request, setting, host)
    if isinstance(answer, Raised):
        if not isinstance(answer.error, Exception):
            raise answer.error
        return str(answer.error)
    report: UndoReport = answer.value
    if not report.complete:
        return str(report)
    joins = [e for e in request.only or () if e.kind == "branch"]
    for entry in joins:  # what they brought back is gone
        yield TakenBack(entry.run, entry.step)
    return ""


# --- looking at everything first -----------------------------------------------------------------


def _looked_at(
    request: UndoRequest, setting: Setting, *, records: bool
) -> Generator[Request, Any, tuple[list[Task], Lineage]]:
    """What is to be undone, and what can be done with each of it; nothing was changed."""
    lineage: Lineage | Raised = yield Recall()
    if isinstance(lineage, Raised):
        raise _Refused(lineage.error)
    undone = lineage.undone
    tasks: list[Task] = []
    for entry in targets(lineage, to=request.to or 0, branch=request.branch, only=request.only):
        origin = entry.run, entry.step
        task = Task(
            entry=entry,
            begun=origin in undone.begun,
            attempt=undone.attempts.get(origin, 0),
        )
        try:
            yield from _known(task, lineage, setting, request, records=records)
        except (RollcageError, ValueError) as error:
            raise _Refused(_named(entry, error)) from error
        untouched = entry.status == "error" and task.after is not None and task.after == task.was
        if not untouched and (entry.status != "error" or task.plan or task.was):
            tasks.append(task)
    tasks = without_calls(tasks, lineage.entries)
    assess(tasks, request.in_doubt)
    return tasks, lineage


def _named(entry: Entry, error: Exception) -> Exception:
    """An error that says which step it stands in the way of."""
    message = f"step {entry.step} of run {entry.run} ({entry.name}) can't be undone here: {error}"
    if isinstance(error, ToolMissing):
        return ToolMissing(message, error.tool)
    return SessionError(message)


def _known(
    task: Task, lineage: Lineage, setting: Setting, request: UndoRequest, *, records: bool
) -> Generator[Request, Any, None]:
    """Fill in all that can be known of a task before anything is changed."""
    entry, undo = task.entry, task.entry.undo or {}
    task.contract, missing = _contract_of(entry, setting, needed="before" in undo)
    if task.contract is None and entry.status == "unknown":
        task.reason = f"its outcome is unknown, and its probe can't be called: {missing}"
    if task.contract is not None:
        args = yield from revived(entry.args)
        task.values = task.contract.bind(arguments_of(args), setting.seal).values
    if entry.effect == "scope":
        task.reason = f"what it called is in run {entry.run}, which is gone"
        task.happened = None
        entry.status = "unknown"
        return
    data = undo.get("plan")
    if entry.status == "unknown" and task.contract is not None:
        data = (yield from _asked(task, lineage, setting, records=records)) or data
    elif entry.status == "error" and data is None and undo.get("reversible"):
        data = yield from _planned_of_failed(task, lineage, setting)
    elif data is None and undo.get("reversible") and "plan" not in undo:
        data = yield from _planned_now(task, setting, missing)
    if data is not None and task.happened is not False:
        task.plan = tuple(PlannedCall(each["name"], each["version"], each["args"]) for each in data)
        for each in task.plan:
            task.calls.append((yield from _callable(each, setting, request)))
    if "before" in undo:
        before = yield from revived(undo["before"])
        task.was = digests_of(before)
        task.after = undo.get("after", task.after)
        task.now = yield from _now(task, setting)


def _contract_of(entry: Entry, setting: Setting, *, needed: bool) -> tuple[Contract | None, str]:
    """The contract of a step's own tool, or why there is none; needed where it observes."""
    try:
        tool = setting.tools.find(entry.name, entry.version)
        setting.allow(tool)
    except (ToolMissing, ToolRefused) as error:
        if needed:
            raise
        return None, str(error)
    contract = tool.contract
    if needed and contract.observe is None:
        message = f"tool {entry.name!r} observed what it changes, and declares no observe any more"
        raise ToolMissing(message, entry.name)
    return contract, ""


def _asked(
    task: Task, lineage: Lineage, setting: Setting, *, records: bool
) -> Generator[Request, Any, list[dict[str, Any]] | None]:
    """Ask what became of a step in doubt; its plan, where that needed its result."""
    entry, contract = task.entry, task.contract
    assert contract is not None
    if contract.probe is None:
        return None  # what is observed is assessed with all that came after it
    key = _key(entry, lineage)
    answered = yield from probed(contract, task.values, key, entry.undo, setting.seal)
    if isinstance(answered, BaseException):
        raise _Refused(answered)
    if isinstance(answered, str):
        task.reason = answered
        return None
    task.happened = isinstance(answered, Happened)
    outcome: dict[str, Any] = {"status": "not_started"}
    result = ProbeResult(False, outcome)
    if isinstance(answered, Happened):
        result = yield from happened(contract, task.values, entry.undo, answered, setting)
        task.after = (result.undo or {}).get("after")
    elif not isinstance(answered, DidNotHappen):
        return None
    if records and entry.run == lineage.runs[-1] and result.outcome is not None:
        digest = result.digest or sha256(orjson.dumps(result.outcome)).hexdigest()
        yield Note(
            make.step_resolved(
                step=entry.step,
                by="probe",
                outcome=result.outcome,
                digest=digest,
                marks=result.undo,
            ),
            entry.name,
        )
    return (result.undo or {}).get("plan")


def _key(entry: Entry, lineage: Lineage) -> str:
    root = str(lineage.settings.get("root") or lineage.runs[-1])
    return idempotency_key(root, entry.branch, entry.fingerprint)


def _planned_of_failed(
    task: Task, lineage: Lineage, setting: Setting
) -> Generator[Request, Any, list[dict[str, Any]] | None]:
    """Plan a step that failed after its effect: its probe knows the result that it had."""
    entry, contract = task.entry, task.contract
    task.reason = "it failed, and its undo needs its result"
    if contract is None or contract.probe is None:
        return None
    answered = yield from probed(
        contract, task.values, _key(entry, lineage), entry.undo, setting.seal
    )
    if isinstance(answered, BaseException):
        raise _Refused(answered)
    if not isinstance(answered, Happened):
        return None
    result = yield from happened(contract, task.values, entry.undo, answered, setting)
    plan: list[dict[str, Any]] | None = (result.undo or {}).get("plan")
    return plan


def _planned_now(
    task: Task, setting: Setting, missing: str
) -> Generator[Request, Any, list[dict[str, Any]] | None]:
    """Plan a step that could not be planned when it ended."""
    entry, contract = task.entry, task.contract
    if contract is None or contract.undo is None or entry.status != "ok":
        task.reason = f"its plan was not made: {missing or 'its tool declares no undo now'}"
        return None
    states = yield from revived((entry.undo or {}).get("before") or {})
    value = yield from revived({"value": entry.outcome.get("value")})
    result = decode(value["value"])
    if entry.outcome.get("typed"):
        result = contract.revive(result)
    before = {resource: decode(state) for resource, state in states.items()}
    made = yield from plan_late(contract, task.values, before, result, setting)
    if made.get("plan") is None:
        task.reason = "its plan could not be made"
    plan: list[dict[str, Any]] | None = made.get("plan")
    return plan


def _callable(
    each: PlannedCall, setting: Setting, request: UndoRequest
) -> Generator[Request, Any, tuple[Tool, dict[str, Any]]]:
    """A compensating call as it will be made."""
    tool = setting.tools.find(each.name, each.version, callable_=True)
    setting.allow(tool)
    if inspect.iscoroutinefunction(tool.body) and not request.is_async:
        raise SessionError(f"{each.name} is async: await the undo (aundo, aundo_run, async with)")
    args = yield from revived(each.args)
    values = arguments_of(args)
    tool.contract.bind(values, setting.seal)  # or it is refused here
    return tool, values


def _now(task: Task, setting: Setting) -> Generator[Request, Any, dict[str, Any]]:
    assert task.contract is not None
    states = yield from observed(task.contract, task.values, setting.seal)
    if isinstance(states, Raised):
        if isinstance(states.error, Exception):
            message = f"{type(states.error).__name__}: {states.error}"
            raise SessionError(f"its state can't be observed: {message}")
        raise _Refused(states.error)
    return digests_of(states)


def _gated(tasks: list[Task], host: UndoHost) -> list[UndoneStep]:
    """The steps whose compensating calls a rule denies."""
    refused: list[UndoneStep] = []
    for task in tasks:
        for tool, values in task.calls if task.state == "reversible" else ():
            _, verdict = host.compensating(tool, values, "", task.origin)
            if verdict.decision == "deny":
                message = f"a rule denies {tool.contract.name}: {verdict.reason}"
                refused.append(task.ended("failed", message))
                break
    return refused


# --- one step ------------------------------------------------------------------------------------


def _undone(task: Task, setting: Setting, host: UndoHost) -> Generator[Request, Any, UndoneStep]:
    """Take one step back, and look whether that worked."""
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
        now = yield from _now(task, setting)
    except SessionError as error:
        return task.ended("failed", str(error), {})
    assert task.was is not None
    differs = differing(task.was, now)
    if differs:
        return task.ended("failed", "the state is not what it was before", differs)
    return task.ended("verified", task.reason)


def _is_there_still(task: Task, setting: Setting) -> Generator[Request, Any, bool]:
    """Whether what a step left is there, though it was to be gone with the steps after it.

    So it is where its tool observes things that are not the same under one name.
    """
    if task.put_back or task.happened is False or not (task.was and task.contract and task.calls):
        return False
    try:
        now = yield from _now(task, setting)
    except SessionError:
        return True  # what follows says so
    return bool(differing(task.was, now))


def _changed_meanwhile(task: Task, setting: Setting) -> Generator[Request, Any, UndoneStep | None]:
    """Look again, right before: the later steps are undone by now."""
    assert task.was is not None
    try:
        now = yield from _now(task, setting)
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
