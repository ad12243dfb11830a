"""A worker's handling of a command, once the command is due."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rollcage import (
    ApprovalQueue,
    Halt,
    RollcageError,
    RunInUse,
    RunStopped,
    SessionHalted,
    Store,
    UndoPlan,
    aplan_undo,
    aundo_run,
    newest_run,
    run_info,
)
from rollcage.errors import (
    PlanChanged,
    RunNotFound,
    StoreError,
    ToolMissing,
    TraceCorrupt,
    TraceUnwritable,
)

from rollcage_workflow.errors import CommandCorrupt
from rollcage_workflow.flow import Waits
from rollcage_workflow.graph import Checked
from rollcage_workflow.holds import Holds
from rollcage_workflow.orders import Command, Commands
from rollcage_workflow.records import INPUT
from rollcage_workflow.running import run
from rollcage_workflow.state import Execution, execution
from rollcage_workflow.tools import declared_in

__all__ = ["Worker", "is_live"]

_log: Final = logging.getLogger("rollcage.workflow")
_UNDO_OPTIONS: Final = ("gate", "approver", "observers")


def is_live(store: Store, job: str) -> bool:
    """Return whether a process holds the lock of an execution's newest run."""
    newest = newest_run(store, job, INPUT)
    return newest is not None and store.is_live(newest.run)


@dataclasses.dataclass(frozen=True, slots=True)
class _Done:
    """The result of a command, or nothing if it stays open."""

    outcome: str
    detail: str = ""
    data: Mapping[str, Any] | None = None


_OPEN: Final = _Done("")


class Worker:
    """Carries out commands. Two workers may take the same command: a run has one lock.

    Args:
        store: the store of the runs and the commands.
        plans: by name, the plans that it runs.
        tools: tools for undoing runs of other jobs; the tools of its plans are known.
        name: its name in results.
        patience: how long an attempt waits for a time in memory (seconds).
        session: further arguments of each attempt's `rollcage.Session`.
    """

    def __init__(
        self,
        store: Store,
        plans: Mapping[str, Checked],
        *,
        tools: Iterable[Any] = (),
        name: str = "",
        patience: float = 2.0,
        session: Mapping[str, Any] | None = None,
    ) -> None:
        self.store = store
        self.commands = Commands(store)
        self.plans = dict(plans)
        self.name = name
        self.ending = ""
        self._patience = patience
        self._session = dict(session or {})
        own = [tool for plan in self.plans.values() for tool in plan.tools.values()]
        self._tools = declared_in([*tools, *(each for each in own if each not in [*tools])])
        self._warned: set[str] = set()

    def end(self, why: str) -> None:
        """Begin no further step: attempts end at the next one, and other workers continue them."""
        self.ending = why

    def plan_of(self, command: Command) -> str:
        """Return the name of a command's plan; empty without one."""
        if command.do in ("plan", "undo"):
            return ""
        return command.plan or execution(self.store, command.execution).plan

    def is_due(self, command: Command, now: float) -> bool:
        """Return whether the command's waits are over (`now`: Unix, seconds)."""
        if not command.at and not command.approvals:
            return True
        if command.at and now >= command.at:
            return True
        queue = ApprovalQueue(self.store)
        asked = [queue.get(each) for each in command.approvals]
        return any(each is None or queue.decision(each) is not None for each in asked)

    async def take(self, key: str) -> str:
        """Carry out a command; return its outcome, or an empty text if it stays open.

        It stays open if another process has the same execution, if the worker is ending, or if the
        store can't be reached; then it is to be taken again.
        """
        if self.ending:
            return ""
        try:
            command = await asyncio.to_thread(self.commands.get, key)
            if command is None:
                return "done"
            done = await self._do(command)
            if not done.outcome:
                return ""
            await asyncio.to_thread(
                self.commands.done,
                command,
                done.outcome,
                done.detail,
                worker=self.name,
                data=done.data,
            )
            return done.outcome
        except CommandCorrupt as error:
            self.warn(key, str(error))
        except (StoreError, TraceUnwritable) as error:
            self.warn(key, str(error))
        return ""

    def warn(self, key: str, message: str) -> None:
        """Log something about a command once."""
        if key not in self._warned:
            self._warned.add(key)
            _log.warning("command %s stays open: %s", key, message)

    async def _do(self, command: Command) -> _Done:
        known = await asyncio.to_thread(self.commands.result, command.key)
        if known is not None:
            return _Done(known.outcome)  # the worker died after writing the result
        if command.do == "plan":
            return await self._plan(command)
        if command.do == "undo":
            return await self._undo(command, command.run)
        if command.do == "cancel":
            return await self._cancel(command)
        return await self._attempt(command)

    # --- executions ------------------------------------------------------------------------------

    async def _attempt(self, command: Command) -> _Done:
        id = command.execution  # noqa: A001
        now = await asyncio.to_thread(execution, self.store, id)
        start = await asyncio.to_thread(self.commands.started, id)
        if now.status in ("paused", "cancelled"):
            is_begun = bool(now.plan) or now.status == "cancelled"
            return _Done(now.status, now.waits) if is_begun or command.do != "start" else _OPEN
        if not now.plan and command.do != "start":
            return _Done(now.status)  # started by another open command
        plan = self.plans.get(now.plan or command.plan)
        if plan is None:
            known = ", ".join(sorted(self.plans)) or "none"
            self.warn(command.key, f"no plan {now.plan or command.plan!r} here, but {known}")
            return _OPEN
        if command.digest and command.digest != plan.plan.digest:
            message = f"it asks for the plan {command.plan!r} of digest {command.digest}"
            return _Done("refused", f"{message}, and that of this worker is {plan.plan.digest}")
        if (
            now.is_over and now.attempts != command.attempts
        ):  # run once more, and then a worker died
            command = dataclasses.replace(command, again=False)
        return await self._run(command, plan, start)

    async def _run(self, command: Command, plan: Checked, start: Command | None) -> _Done:
        options = dict(self._session)
        if start is not None and start.by:
            options.setdefault("actor", start.by)
        waited: list[Waits] = []
        is_start = command.do == "start"
        try:
            found = await run(
                plan,
                command.inputs if is_start else None,
                id=command.execution,
                store=self.store,
                again=command.again,
                start=command.start,
                given=command.given if is_start else None,
                patience=self._patience,
                ends=lambda: self.ending,
                waits=waited.append,
                **options,
            )
        except RunInUse:
            return _OPEN
        except (StoreError, TraceUnwritable):
            raise
        except Exception as error:  # noqa: BLE001 - it is what the execution failed with
            return await self._failed(command, error)
        if is_start and not found.plan and not found.is_over:
            return _OPEN  # paused before its beginning: only this command has the inputs
        if found.status == "waiting":
            if self.ending:
                return _OPEN
            return await self._waits(command, found, waited)
        return _Done(found.status, found.waits)

    async def _failed(self, command: Command, error: Exception) -> _Done:
        now = await asyncio.to_thread(execution, self.store, command.execution)
        if now.status == "running":
            return _OPEN  # another worker has continued it
        message = f"{type(error).__name__}: {error}"
        if now.status == "pending":  # nothing ran
            if isinstance(error, RunStopped) and await asyncio.to_thread(self._was_paused, error):
                return _OPEN
            return _Done("refused", message)
        if not now.is_over and not isinstance(error, (Halt, SessionHalted, RollcageError)):
            _log.error("execution %s", command.execution, exc_info=error)
        return _Done(now.status, message)

    def _was_paused(self, stopped: RunStopped) -> bool:
        """Return whether a pause stopped an attempt; if the pause is over, so is its order."""
        holds = Holds(self.store, run_info(self.store, stopped.run).name)
        if not holds.gave(stopped.reason):
            return False
        if holds.read() is None:
            holds.let_go(stopped.run)
        return True

    async def _waits(self, command: Command, found: Execution, waited: list[Waits]) -> _Done:
        """Arrange for the next attempt when the execution's waits end."""
        for waits in waited:
            if waits.until is not None or waits.approvals:
                key = await asyncio.to_thread(
                    self.commands.wake_when,
                    command.execution,
                    waits.until or 0.0,
                    waits.approvals,
                )
                if key == command.key:
                    return _OPEN
        return _Done("waiting", found.waits)

    # --- undo ------------------------------------------------------------------------------------

    async def _cancel(self, command: Command) -> _Done:
        now = await asyncio.to_thread(execution, self.store, command.execution)
        if now.status == "running":
            await asyncio.to_thread(self._stop, now)
            return _OPEN
        if now.status != "cancelled":
            return _Done(now.status, "it was over before it could be cancelled")
        if not now.run:
            return _Done("rolled_back", "it had done nothing")
        done = await self._undo(command, now.run)
        return _Done("rolled_back") if done.outcome == "undone" else done

    def _stop(self, now: Execution) -> None:
        holds = Holds(self.store, now.id)
        hold = holds.read()
        if hold is not None:
            holds.stop(now.run, hold)

    async def _plan(self, command: Command) -> _Done:
        try:
            plan = await aplan_undo(self.store, command.run, to=command.to, tools=self._tools)
        except ToolMissing as error:  # another worker may have the tool
            self.warn(command.key, str(error))
            return _OPEN
        except (StoreError, TraceUnwritable) as error:
            if not isinstance(error, RunNotFound | TraceCorrupt):
                raise
            return _Done("refused", str(error))
        except Exception as error:  # noqa: BLE001 - whoever asked for it gets it
            return _Done("refused", f"{type(error).__name__}: {error}")
        data = plan.as_data() | {"digest": plan.digest}
        return _Done("planned", data=data)

    async def _undo(self, command: Command, run_id: str) -> _Done:
        given = {name: self._session[name] for name in _UNDO_OPTIONS if name in self._session}
        try:
            seen = await self._expected(command)
            report = await aundo_run(
                self.store, run_id, to=command.to, tools=self._tools, expected=seen, **given
            )
        except PlanChanged as error:
            return _Done("changed", str(error))
        except RunInUse:
            return _OPEN
        except ToolMissing as error:  # nothing was changed, and another worker may have the tool
            self.warn(command.key, str(error))
            return _OPEN
        except (RunNotFound, TraceCorrupt) as error:
            return _Done("refused", str(error))
        except (StoreError, TraceUnwritable):
            raise
        except Exception as error:  # noqa: BLE001 - whoever asked for it gets it
            return _Done("refused", f"{type(error).__name__}: {error}")
        outcome = "undone" if report.complete else "incomplete"
        return _Done(outcome, str(report), report.as_data())

    async def _expected(self, command: Command) -> UndoPlan | str | None:
        """Return the plan that the undo must match: the confirmed plan, perhaps partly done.

        If the plan is no longer kept, return its digest; without a confirmed plan, None.
        """
        if not command.plan_digest:
            return None
        key = command.key.replace(".undo.", ".plan.")
        seen = await asyncio.to_thread(self.commands.result, key)
        if seen is not None and seen.data is not None and seen.outcome == "planned":
            plan = UndoPlan.from_data(seen.data)
            if plan.digest == command.plan_digest:
                return plan
        return command.plan_digest
