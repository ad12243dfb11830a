"""What an undo checks before it changes anything: its steps, and what can be done with each."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Generator, Mapping
from hashlib import sha256
from typing import Any, Protocol

import orjson

from rollcage.contract.contract import Contract
from rollcage.errors import RollcageError, SessionError, ToolMissing, ToolRefused
from rollcage.fingerprint.identity import idempotency_key
from rollcage.gate import Verdict
from rollcage.replay.finding import ProbeResult
from rollcage.replay.path import Entry
from rollcage.replay.recording import Lineage
from rollcage.replay.steps import Origin
from rollcage.step.call import Progress
from rollcage.step.capture import Setting, observed, plan_late, probed, revived
from rollcage.step.flow import happened
from rollcage.step.requests import (
    Note,
    Raised,
    Recall,
    Request,
)
from rollcage.trace import constructors as make
from rollcage.undo.assessment import assess
from rollcage.undo.compensation import (
    DidNotHappen,
    Happened,
    PlannedCall,
    Tool,
    arguments_of,
    digests_of,
)
from rollcage.undo.report import InDoubt, UndoneStep, UndoPlan
from rollcage.undo.targets import targets, without_calls
from rollcage.undo.task import Task
from rollcage.values.decoding import decode

__all__ = ["UndoHost", "UndoRefused", "UndoRequest", "denied_calls", "looked_at", "state_now"]


class UndoHost(Protocol):
    """What an undo needs of its session."""

    def compensating(
        self, tool: Tool, arguments: Mapping[str, Any], branch: str, origin: Origin
    ) -> tuple[Progress, Verdict]:
        """A compensating call, and the verdict on it."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoRequest:
    """What is to be undone, in which run and how: the one form of every request for an undo.

    Attributes:
        run: whose effects; `to` is one of its steps.
        to: the last of its steps that stays; None: everything is undone.
        branch: only what is in it, and below; empty: all.
        only: these effects, and what is below them; None: all.
        in_doubt: see `InDoubt`.
        expected: the plan that was seen, or its digest: only that, or the rest of it, is done.
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


class UndoRefused(Exception):
    """It can't be done, and nothing was changed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def looked_at(
    request: UndoRequest, setting: Setting, *, records: bool
) -> Generator[Request, Any, tuple[list[Task[Entry]], Lineage]]:
    """What is to be undone, and what can be done with each step; nothing is changed."""
    lineage: Lineage | Raised = yield Recall()
    if isinstance(lineage, Raised):
        raise UndoRefused(lineage.error)
    undone = lineage.undone
    tasks: list[Task[Entry]] = []
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
            raise UndoRefused(_named(entry, error)) from error
        untouched = entry.status == "error" and task.after is not None and task.after == task.was
        if not untouched and (entry.status != "error" or task.plan or task.was):
            tasks.append(task)
    tasks = without_calls(tasks, lineage.entries)
    assess(tasks, request.in_doubt)
    return tasks, lineage


def _named(entry: Entry, error: Exception) -> Exception:
    """The error, with the step that can't be undone."""
    message = f"step {entry.step} of run {entry.run} ({entry.name}) can't be undone here: {error}"
    if isinstance(error, ToolMissing):
        return ToolMissing(message, error.tool)
    return SessionError(message)


def _known(
    task: Task[Entry], lineage: Lineage, setting: Setting, request: UndoRequest, *, records: bool
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
        task.now = yield from state_now(task, setting)


def _contract_of(entry: Entry, setting: Setting, *, needed: bool) -> tuple[Contract | None, str]:
    """The contract of a step's own tool, or why there is none; needed if it observes."""
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
    task: Task[Entry], lineage: Lineage, setting: Setting, *, records: bool
) -> Generator[Request, Any, list[dict[str, Any]] | None]:
    """Ask what became of a step in doubt; its plan, if that needed its result."""
    entry, contract = task.entry, task.contract
    assert contract is not None
    if contract.probe is None:
        return None  # what is observed is assessed with all that came after it
    key = _key(entry, lineage)
    answered = yield from probed(contract, task.values, key, entry.undo, setting.seal)
    if isinstance(answered, BaseException):
        raise UndoRefused(answered)
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
    task: Task[Entry], lineage: Lineage, setting: Setting
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
        raise UndoRefused(answered)
    if not isinstance(answered, Happened):
        return None
    result = yield from happened(contract, task.values, entry.undo, answered, setting)
    plan: list[dict[str, Any]] | None = (result.undo or {}).get("plan")
    return plan


def _planned_now(
    task: Task[Entry], setting: Setting, missing: str
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


def state_now(task: Task[Entry], setting: Setting) -> Generator[Request, Any, dict[str, Any]]:
    """The digests of the states that a step has changed, as they are now.

    Raises:
        SessionError: they can't be observed.
    """
    assert task.contract is not None
    states = yield from observed(task.contract, task.values, setting.seal)
    if isinstance(states, Raised):
        if isinstance(states.error, Exception):
            message = f"{type(states.error).__name__}: {states.error}"
            raise SessionError(f"its state can't be observed: {message}")
        raise UndoRefused(states.error)
    return digests_of(states)


def denied_calls(tasks: list[Task[Entry]], host: UndoHost) -> list[UndoneStep]:
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
