"""Runs a plan: one attempt at an execution, which goes on where the last one ended."""

from __future__ import annotations

import asyncio
import dataclasses
import os
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
    aundo_run,
    open_store,
)

from rollcage_workflow.approvals import Approvals
from rollcage_workflow.check import Tools, Workflows, check
from rollcage_workflow.errors import (
    ExecutionFailed,
    WorkflowError,
)
from rollcage_workflow.failures import on_failure, type_name
from rollcage_workflow.files import Document
from rollcage_workflow.flow import Waits
from rollcage_workflow.forking import before_fork, fork_of
from rollcage_workflow.governed import governed
from rollcage_workflow.graph import Checked, blocks_in
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
    """Run an execution of a plan, or go on with it.

    The first call with an `id` starts it. Each further one goes on where the last one ended,
    however that was: what is recorded is not done again. Of one that is completed it gives the
    recorded output, and runs nothing.

    Args:
        plan: a plan, its data, or the path of its file.
        inputs: by name.
        id: of the execution.
        store: where its runs are kept: a folder, a URL or a `Store`.
        tools: what its steps call, agents included.
        workflows: the plans that its `workflow:` steps name.
        again: run an execution that failed once more: what ended well in it is not done again.
        start: a step of the plan: an execution that is new starts there. Those before it are not
            done; their results are in `given`.
        given: by name, the results of all the steps before `start` that call something.
        patience: a time that is no further off is waited for here (seconds). For one that is, and
            for a signal, the attempt ends, and the execution is `waiting`.
        on_step: is called as each step begins and ends, with its path and its state.
        ends: is asked before each step. Where it gives a reason, the step does not begin and the
            attempt ends; the next one goes on.
        waits: is called with what the attempt ended for, if it waits for something.
        clock: the time now (Unix, ns).
        **session: further arguments of each attempt's `rollcage.Session`: `gate=`, `approver=`,
            `observers=` and the like; `stages=` as a function that makes them anew. With
            `fork=`, a `rollcage_fork.Fork`, it is a fork of the execution, which takes no signal
            from it, asks nobody, and undoes nothing of it.

    Returns:
        Its state: `completed`, `waiting`, or `paused` or `cancelled` by somebody else; that of a
        fork of it stands.

    Raises:
        PlanInvalid: something is wrong with the plan; nothing was run.
        InputsInvalid: the inputs are not what it declares; nothing was run.
        RunInUse: another attempt at it goes on right now.
        ToolRefused: a facade is given that does not give the plan; nothing was run.
        ExecutionFailed: it had failed before, and `again` is not given.
        UndoIncomplete: it failed, and not all that it did could be undone.
        Halt: somebody has to decide something first: the error says what.
        Exception: what the step raised that it failed with; a note says which one that was.
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
            f"{error.get('type')}: {error.get('message')}. To run it once more: again=True, or "
            f"rollcage workflow run --again"
        )
    options = session
    if session.get("gate"):
        options = await asyncio.to_thread(governed, checked, session, own)
    begun = start, results
    attempt = _Attempt(checked, wanted, begun, id, own, patience, on_step, ends, waits, clock,
                       options, before=before, retries=again)  # fmt: skip
    try:
        return await attempt.run()
    except _Over:  # another attempt ended it since it was looked at: that was the one more, if any
        return await run(checked, inputs, id=id, store=own, start=start, given=given,
                         patience=patience, on_step=on_step, ends=ends, waits=waits, clock=clock,
                         **session)  # fmt: skip


def run_sync(
    plan: Plan | Checked | Document | str | Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    **given: Any,
) -> Execution:
    """`run`, where there is no event loop."""
    return asyncio.run(run(plan, inputs, **given))


class _Over(Exception):
    """An execution that an attempt was to go on with is over by now."""


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
            **_stages(options),
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
        """See that nobody has ended it since it was looked at; now that it is locked, nobody can.

        Raises:
            _Over: it was.
        """
        del run  # that of the execution
        now, before = execution(self.store, self.id), self.before
        if now.is_over and (now.status, now.attempts) != (before.status, before.attempts):
            raise _Over

    async def _failed(self, error: Exception) -> None:
        """Undo what the attempt did, where that was asked for."""
        if not self.session.run_id or self.is_fork:
            return  # it did not open; or of the execution, nothing is undone
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
        """What the attempt is not to go on for; whoever holds the execution now sees the run."""
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
            Approvals(self.store, self.id, plan.name, plan.digest, digests, by, self.clock),
            self.ends,
            self.rows,
            self.given,
        )
        fields: dict[str, Any] = {"name": plan.name, "digest": plan.digest, "inputs": self.inputs}
        fields["digests"] = digests
        fields["rows"] = self.rows
        fields["attempt"] = session.attempt.run.attempts  # so that each one is on record
        if self.start:
            fields |= {"start": self.start, "given": self.given}
        await session.arun_call(PLAN, fields, nothing)
        return await interpreter.plan(self.checked, self.inputs)

    async def _ended(self, **fields: Any) -> None:
        fields["attempt"] = self.session.attempt.run.attempts
        await self.session.arun_call(ENDED, fields, nothing)


_OWN: Final = ("fork", "options", "stages")


def _stages(options: Mapping[str, Any]) -> dict[str, Any]:
    """The stages of one session: each knows what it was told of one run."""
    given, fork = options.get("stages", ()), options.get("fork")
    stages = cast("Iterable[Any]", given() if callable(given) else given)
    return {"stages": stages if fork is None else (fork, *stages)}


def _tools(checked: Checked, options: Mapping[str, Any]) -> Any:
    """Where an undo looks for tools: among those of the steps, then among all of this process.

    The tool that undoes another one is not called by a step, so nobody has to give it.
    """
    given = options.get("options", Options()).tools
    return [*declared_in(checked.tools.values()), ...] if given is None else given


async def _roll_back(
    checked: Checked, store: Store, now: Execution, options: Mapping[str, Any]
) -> None:
    """Undo what a failed execution did, or finish that, where the plan or the step asked for it.

    Raises:
        UndoIncomplete: not everything could be undone.
    """
    if now.status != "failed" or not now.rolls_back:
        return
    given = {name: options[name] for name in ("gate", "approver", "observers") if name in options}
    given |= _stages(options)
    report = await aundo_run(store, now.run, tools=_tools(checked, options), **given)
    if not report.complete:
        raise UndoIncomplete(f"the execution {now.id!r} could not be rolled back: {report}")


def _error_fields(error: Exception) -> dict[str, str]:
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("in step ")]
    step = notes[0].removeprefix("in step ").removesuffix(" of the plan") if notes else ""
    return {"step": step, "type": type_name(error), "message": str(error)}
