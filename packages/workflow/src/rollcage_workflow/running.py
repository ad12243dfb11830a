"""Run a plan: one attempt at an execution, which continues the previous one."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from rollcage import (
    Halt,
    Options,
    RunStopped,
    Session,
    SessionHalted,
    Store,
    UndoIncomplete,
    UndoReport,
    aundo_run,
    open_store,
)
from rollcage.trace.store import store_option

from rollcage_workflow.approvals import Approvals, close
from rollcage_workflow.check import Tools, Workflows, check
from rollcage_workflow.diverging import name_ways_out
from rollcage_workflow.errors import (
    ExecutionFailed,
    WorkflowError,
)
from rollcage_workflow.failures import on_failure, type_name
from rollcage_workflow.files import Document
from rollcage_workflow.flow import CutOff, CutOffs, Waits
from rollcage_workflow.forking import before_fork, fork_of
from rollcage_workflow.governed import governed
from rollcage_workflow.graph import Checked, blocks_in, signals_of
from rollcage_workflow.holds import Hold, Holds
from rollcage_workflow.inputs import check_same_inputs, digests_of, given_inputs
from rollcage_workflow.interpret import Interpreter
from rollcage_workflow.outline import keep_outline
from rollcage_workflow.plan import Plan
from rollcage_workflow.records import ENDED, INPUT, PLAN, nothing
from rollcage_workflow.signals import Signals
from rollcage_workflow.starting import start_of
from rollcage_workflow.state import Execution, as_of, execution
from rollcage_workflow.tools import declared_in

__all__ = ["run", "run_sync"]

Where = str | os.PathLike[str] | Store
OnStep = Callable[[str, str], None]
Ends = Callable[[], str]


def _nobody(path: str, state: str) -> None:
    del path, state


def _goes_on() -> str:
    return ""


def _kept(waits: Waits) -> None:
    del waits


async def run(
    plan: Plan | Checked | Document | str | Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    *,
    id: str,  # noqa: A002 - what it is called everywhere
    store: Where = "./.rollcage",
    tools: Tools = (),
    workflows: Workflows | None = None,
    again: bool = False,
    start: str = "",
    given: Mapping[str, Any] | None = None,
    patience: float = 60.0,
    on_step: OnStep = _nobody,
    ends: Ends = _goes_on,
    waits: Callable[[Waits], None] = _kept,
    clock: Callable[[], int] = time.time_ns,
    **session: Any,
) -> Execution:
    """Run an execution of a plan, or continue it.

    The first call with an `id` starts the execution. Each further call continues it, however the
    last attempt ended: recorded steps are not done again. For a completed execution it returns the
    recorded output, and runs nothing.

    Args:
        plan: a plan, its data, or the path of its file.
        inputs: by name.
        id: the id of the execution.
        store: the store of its runs: a folder, a URL or a `Store`.
        tools: the tools of its steps, agents included.
        workflows: the plans that its `workflow:` steps name.
        again: whether to run a failed execution once more: its successful steps are not done again.
        start: a step of the plan: a new execution starts there. The steps before it do not
            run; their results are in `given`.
        given: by name, the results of all steps before `start` that make calls.
        patience: the process waits for a time that is no further off (seconds). For a later time,
            and
            for a signal, the attempt ends, and the execution is `waiting`.
        on_step: called as each step begins and ends, with its path and its state.
        ends: asked before each step. If it returns a reason, the step does not begin and the
            attempt ends; the next attempt continues.
        waits: called with the reasons if the attempt ended to wait.
        clock: the time now (Unix, ns).
        **session: further arguments of each attempt's `rollcage.Session`: `gate=`, `approver=`,
            `observers=`, `on_divergence=` and the like; `stages=` as a function that makes new
            ones. With `fork=`, a `rollcage_fork.Fork`, it is a fork of the execution, which takes
            no signal from it, asks no person, and undoes nothing of it.

    Returns:
        Its state: `completed`, `waiting`, or `paused` or `cancelled` by others; a fork's
        state is recorded in the fork.

    Raises:
        PlanInvalid: the plan has problems; nothing ran.
        InputsInvalid: the inputs are not as declared; nothing ran.
        RunInUse: another attempt at it is running.
        ToolRefused: the facade does not give the plan; nothing ran.
        ExecutionFailed: the execution had failed before, and `again` is not set.
        UndoIncomplete: the execution failed, and could not be undone completely.
        Halt: a person has to decide first: the error names the question.
        Exception: the error of the failed step; a note names the step.
    """
    checked = plan if isinstance(plan, Checked) else check(plan, tools, workflows)
    own = open_store(store)
    fork = fork_of(session)
    if fork is None:
        before = await asyncio.to_thread(execution, own, id)
    else:
        before, again = await before_fork(fork, id, own), True
    if before.plan and before.plan != checked.plan.name:
        raise WorkflowError(
            f"{id!r} is an execution of the plan {before.plan!r}, and this is "
            f"{checked.plan.name!r}: give it another id"
        )
    wanted = given_inputs(checked, (before.inputs or {}) if inputs is None else inputs)
    start, results = start_of(checked, before, start, given)
    check_same_inputs(before, own, wanted, results, given_now=inputs is not None, again=again)
    if before.status == "completed":
        return before
    if before.status == "paused" and await asyncio.to_thread(Holds(own, id).read) is not None:
        return before
    if before.status == "cancelled" or (before.status == "rolled_back" and not before.error):
        raise ExecutionFailed(f"the execution {id!r} was {before.waits}; start one of another id")
    if before.status in ("failed", "rolled_back") and not again:
        await _roll_back(checked, own, before, session)
        error = before.error or {}
        at = f", in step {error['step']}" if error.get("step") else ""
        raise ExecutionFailed(
            f"the execution {id!r} failed before{at}: "
            f"{error.get('type')}: {error.get('message')}. To run it once more: again=True; or: "
            f"rollcage workflow run PLAN {shlex.quote(id)} --again{store_option(own)}"
        )
    options = session
    if session.get("gate"):
        options = await asyncio.to_thread(governed, checked, session, own)
    begun = start, results
    attempt = _Attempt(checked, wanted, begun, id, own, patience, on_step, ends, waits, clock,
                       options, before=before, retries=again)  # fmt: skip
    try:
        return await attempt.run()
    # another attempt ended the execution since the check: it was the extra attempt, if any
    except _Over:
        return await run(checked, inputs, id=id, store=own, start=start, given=given,
                         patience=patience, on_step=on_step, ends=ends, waits=waits, clock=clock,
                         **session)  # fmt: skip


def run_sync(
    plan: Plan | Checked | Document | str | Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    **given: Any,
) -> Execution:
    """Call `run` without an event loop."""
    return asyncio.run(run(plan, inputs, **given))


class _Over(Exception):
    """The execution of an attempt is over already."""


class _Attempt:
    """One attempt at an execution."""

    def __init__(
        self,
        checked: Checked,
        inputs: dict[str, Any],
        start: tuple[str, dict[str, Any]],
        id: str,  # noqa: A002
        store: Store,
        patience: float,
        on_step: OnStep,
        ends: Ends,
        waits: Callable[[Waits], None],
        clock: Callable[[], int],
        options: Mapping[str, Any],
        *,
        before: Execution,
        retries: bool,
    ) -> None:
        self.checked = checked
        self.inputs = inputs
        self.start, self.given = start
        self.rows = {block.at: block.is_row for block in blocks_in(checked.graph)}
        self.rows |= before.rows
        self.before = before
        self.id = id
        self.store = store
        self.patience = patience
        self.on_step = on_step
        self.ends = ends
        self.waits = waits
        self.clock = clock
        self.options = options
        self.is_fork = options.get("fork") is not None
        self.session = Session(
            id,
            store=store,
            replay="continue",
            input=INPUT,
            options=dataclasses.replace(
                options.get("options", Options()),
                before_resume=None if self.is_fork else self._check_goes_on,
                retry_failed=None if retries else False,
                tools=_tools(checked, options),
            ),
            **{name: each for name, each in options.items() if name not in _OWN},
            stages=[*_stages(options)["stages"], CutOffs()],
        )

    async def run(self) -> Execution:
        try:
            async with self.session as session:
                hold = await asyncio.to_thread(self._begun)
                try:
                    if hold is not None:
                        raise Waits([f"was {hold}"])
                    output = await self._through(session)
                except Waits as waits:
                    session.pause(str(waits))
                    self.waits(waits)
                except CutOff:
                    raise asyncio.CancelledError from None
                except (Halt, SessionHalted):
                    raise
                except Exception as error:
                    if session.halted is None:
                        how = on_failure(error) or self.checked.plan.on_failure
                        failure, rollback = _error_fields(error), how == "rollback"
                        await self._ended(status="failed", error=failure, rollback=rollback)
                    raise
                else:
                    await self._ended(status="completed", output=output)
                finally:
                    name_ways_out(session.halted, self.id, self.store)
        except (Halt, SessionHalted) as error:
            if isinstance(error, RunStopped) and await asyncio.to_thread(self._hold) is not None:
                return await asyncio.to_thread(execution, self.store, self.id)
            raise
        except Exception as error:
            await self._failed(error)
            raise
        found = await asyncio.to_thread(self._found)
        if found.status == "halted":
            raise WorkflowError(f"the execution {self.id!r}: {found.waits}")
        return found

    def _check_goes_on(self, run: str) -> None:
        """Check that no attempt has ended it since the last check; now that it is locked, none can.

        Raises:
            _Over: an attempt has ended it.
        """
        del run  # the execution's run
        now, before = execution(self.store, self.id), self.before
        if now.is_over and (now.status, now.attempts) != (before.status, before.attempts):
            raise _Over
        self.before = now

    async def _failed(self, error: Exception) -> None:
        """Undo the attempt's effects, if requested."""
        if not self.session.run_id or self.is_fork:
            return  # it did not open; or it is a fork, which undoes nothing of the execution
        try:
            now = await asyncio.to_thread(execution, self.store, self.id)
            await _roll_back(self.checked, self.store, now, self.options)
        except Exception as left:
            left.add_note(f"the execution failed before that: {type_name(error)}: {error}")
            raise left from error

    def _found(self) -> Execution:
        if self.is_fork:
            return as_of(self.store, self.session.run_id, self.id)
        return execution(self.store, self.id)

    def _begun(self) -> Hold | None:
        """Return the hold against the attempt; later holds see the run."""
        keep_outline(self.store, self.checked)
        return self._hold()

    def _hold(self) -> Hold | None:
        return None if self.is_fork else Holds(self.store, self.id).read()

    async def _through(self, session: Session) -> Any:
        plan = self.checked.plan
        digests = digests_of(self.store, self.inputs, self.given)
        by = str(self.options.get("actor") or self.id)
        interpreter = Interpreter(
            session,
            Signals(self.store, self.id, keeps=not self.is_fork),
            self.clock,
            self.patience,
            self.on_step,
            Approvals(
                self.store,
                self.id,
                plan.name,
                plan.digest,
                digests,
                by,
                self.clock,
                self.before.answered,
            ),
            self.ends,
            self.rows,
            self.given,
        )
        fields: dict[str, Any] = {"name": plan.name, "digest": plan.digest, "inputs": self.inputs}
        fields["digests"] = digests
        fields["rows"] = self.rows
        fields["signals"] = signals_of(self.checked.graph)
        fields["attempt"] = session.attempt.run.attempts  # so that each one is on record
        if self.start:
            fields |= {"start": self.start, "given": self.given}
        await session.arun_call(PLAN, fields, nothing)
        return await interpreter.plan(self.checked, self.inputs)

    async def _ended(self, **fields: Any) -> None:
        fields["attempt"] = self.session.attempt.run.attempts
        await self.session.arun_call(ENDED, fields, nothing)
        if not self.is_fork:
            await asyncio.to_thread(close, self.store, self.id)


_OWN: Final = ("fork", "options", "stages")


def _stages(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stages of one session: each belongs to one run."""
    given, fork = options.get("stages", ()), options.get("fork")
    stages = cast("Iterable[Any]", given() if callable(given) else given)
    return {"stages": stages if fork is None else (fork, *stages)}


def _tools(checked: Checked, options: Mapping[str, Any]) -> Any:
    """Return the tools for an undo: the steps' tools, then all tools of this process.

    A compensating tool is not called by a step, so it need not be passed.
    """
    given = options.get("options", Options()).tools
    return [*declared_in(checked.tools.values()), ...] if given is None else given


async def _roll_back(
    checked: Checked, store: Store, now: Execution, options: Mapping[str, Any]
) -> None:
    """Undo a failed execution, or finish its undo, if the plan or the step requires it.

    Raises:
        UndoIncomplete: the execution could not be undone completely.
    """
    if now.status != "failed" or not now.rolls_back:
        return
    given = {name: options[name] for name in ("gate", "approver", "observers") if name in options}
    given |= _stages(options)
    report = await aundo_run(store, now.run, tools=_tools(checked, options), **given)
    if not report.complete:
        message = f"the execution {now.id!r} could not be rolled back: {report}"
        raise UndoIncomplete(f"{message}{_way_on(report, store)}")


def _way_on(report: UndoReport, store: Store) -> str:
    """Return how a rollback goes on that is stuck at some steps; empty if at none."""
    done = ("verified", "compensated", "accepted")
    stuck = [(each.run, each.step) for each in report.steps if each.status not in done][:3]
    at = store_option(store)
    named = "; ".join(f"rollcage resolve {run} {step}{at} --undone" for run, step in stuck)
    if not named:
        return ""
    return (
        f"\nTo go on, put the world right by hand, or accept it as it is, and say so: {named}; "
        f"then the next run of it undoes the rest"
    )


def _error_fields(error: Exception) -> dict[str, str]:
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("in step ")]
    step = notes[0].removeprefix("in step ").removesuffix(" of the plan") if notes else ""
    return {"step": step, "type": type_name(error), "message": str(error)}
