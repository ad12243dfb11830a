"""Undo of a run that is not live: finished, or crashed; in whichever process has its tools."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from rollcage.errors import SessionError
from rollcage.gate import Approver, Detecting, PolicyGuard, Rule, all_given, recorded_facade
from rollcage.gate import Given as Guarded
from rollcage.replay.path import Entry
from rollcage.replay.recording import Lineage, read
from rollcage.session.lineage import check_newest, read_traces
from rollcage.session.scope import around, enter_body
from rollcage.session.session import Session
from rollcage.step.driver import Driver
from rollcage.step.ledger import Ledger
from rollcage.step.observing import Observer
from rollcage.step.undoing import Order, plan_steps
from rollcage.store.jobs import store_option
from rollcage.store.protocol import RunTrace, Store, Writer, check_attested
from rollcage.trace.reader import ended
from rollcage.undo.compensation import ToolSource
from rollcage.undo.undo import InDoubt, UndoPlan, UndoReport

__all__ = ["aplan_undo", "aundo_run", "plan_undo", "undo_run"]

Where = str | os.PathLike[str] | Store
Given = Mapping[str, ToolSource] | Iterable[ToolSource] | None


def undo_run(
    store: Where,
    run: str,
    *,
    to: int | None = None,
    tools: Given = None,
    gate: Iterable[Guarded] = (),
    policy: PolicyGuard | str | os.PathLike[str] | None = None,
    rules: Sequence[Rule] = (),
    approver: Approver | None = None,
    observers: Iterable[Observer] = (),
    in_doubt: InDoubt = "list",
    durability: Literal["os", "disk"] = "os",
) -> UndoReport:
    """Take back what a run did behind step `to`, and all of its source that it had not come to.

    The undo is appended to the run's trace; one that was cut off goes on where it was. Afterwards,
    the next session of this name replays up to `to`, and runs on.

    Args:
        store: where the run is kept.
        run: its id.
        to: the last of its steps that stays; None takes everything back.
        tools: the tools that are called and that observe: functions declared with
            `@rollcage.tool`, contracts, or a mapping of them; None: all that this process declared.
        gate: what decides on each compensating call, as in `Session`.
        policy: a policy, or the file that it is in; as the first of `gate`.
        rules: rules, as the last of `gate`.
        approver: decides where a rule asks.
        observers: each is told what becomes of each step, as in `Session`.
        in_doubt: what is done with a step whose outcome is unknown: `"list"`
            it, or `"restore"` what was before, where its plan was made by then.
        durability: as in `Session`.

    Raises:
        RunNotFound: there is no such run.
        RunInUse: it has a live writer, or is being resumed or undone.
        ToolMissing: a tool that is needed is not here, or is another version.
        SessionError: it can't be done, another run builds on it, say; nothing was changed.
    """
    order = Order(run, _step(to), in_doubt=in_doubt)
    given = all_given(gate, policy=policy, facade=None, rules=rules)
    with _Reopened(store, run, tools, given, approver, observers, durability) as reopened:
        return reopened.carry_out(order)


async def aundo_run(
    store: Where,
    run: str,
    *,
    to: int | None = None,
    tools: Given = None,
    gate: Iterable[Guarded] = (),
    policy: PolicyGuard | str | os.PathLike[str] | None = None,
    rules: Sequence[Rule] = (),
    approver: Approver | None = None,
    observers: Iterable[Observer] = (),
    in_doubt: InDoubt = "list",
    durability: Literal["os", "disk"] = "os",
) -> UndoReport:
    """`undo_run` for async tools, or sync ones in threads."""
    order = Order(run, _step(to), in_doubt=in_doubt, is_async=True)
    given = all_given(gate, policy=policy, facade=None, rules=rules)
    async with _Reopened(store, run, tools, given, approver, observers, durability) as reopened:
        return await reopened.acarry_out(order)


def plan_undo(
    store: Where,
    run: str,
    *,
    to: int | None = None,
    tools: Given = None,
    in_doubt: InDoubt = "list",
) -> UndoPlan:
    """What `undo_run` would do, by the states as they are now; nothing is changed or written.

    Raises as `undo_run` does, but for a run in use.
    """
    order = Order(run, _step(to), in_doubt=in_doubt)
    return _Looked(store, run, tools).plan(order)


async def aplan_undo(
    store: Where,
    run: str,
    *,
    to: int | None = None,
    tools: Given = None,
    in_doubt: InDoubt = "list",
) -> UndoPlan:
    """`plan_undo` for async tools, or sync ones in threads."""
    order = Order(run, _step(to), in_doubt=in_doubt, is_async=True)
    return await _Looked(store, run, tools).aplan(order)


def _step(to: int | None) -> int | None:
    if to is not None and to < 1:
        raise SessionError(f"to={to} is not a step; steps count from 1")
    return to


class _Dead(Session):
    """A session on a run that was there before it."""

    def __init__(
        self,
        store: Where,
        run: str,
        tools: Given,
        gate: Iterable[Guarded] = (),
        approver: Approver | None = None,
        observers: Iterable[Observer] = (),
        durability: Literal["os", "disk"] = "os",
    ) -> None:
        super().__init__(
            "undo",
            store=store,
            replay="off",
            gate=gate,
            approver=approver,
            observers=observers,
            durability=durability,
            tools=tools,
        )
        self.store.read(run)  # or something is made where there is no store
        self._run = run

    def _take_up(self, trace: RunTrace, lineage: Lineage, writer: Writer) -> None:
        """Go on from where the run stands."""
        settings = lineage.settings
        if settings["mode"] in ("offline", "verify"):
            raise SessionError(
                f"run {trace.run} was a replay only ({settings['mode']}): undo the run that it "
                f"replayed, {settings['source']}"
            )
        check_newest(self.store, trace.run, "undo")
        self.run_id = trace.run
        self.name = settings["name"]
        self.root = str(settings["root"])
        given = settings.get("facade")
        if given is not None:  # what was approved then, or is now, may take back what it has done
            self._facade = recorded_facade(self.store, given)
        ledger = Ledger(
            run=trace.run,
            mode="record",
            recording=None,
            chain="effects",
            on_divergence="halt",
            seed=settings["seed"],
            steps=lineage.last_step,
            turns=lineage.last_turn,
            at=store_option(self.store),
        )
        enter = functools.partial(enter_body, self)
        self._driver = Driver(
            ledger,
            writer,
            self.store,
            self.store,
            self._clock,
            enter,
            around.reset,
            self._recall,
            self._late_end,
            self._told(),
        )
        if settings.get("secrets") == "detected":
            self._seal = Detecting(self._hmac)
        self._setting = self._share()

    def _recall(self) -> Lineage:
        return read(read_traces(self.store, self.run_id, locks=None, whole=True))


class _Reopened(_Dead):
    """With the run's lock: it is appended to."""

    _attested: str | None = None

    def _open(self) -> tuple[Entry, ...]:
        writer = self.store.reopen(self._run)
        try:
            trace = self.store.read(self._run)
            check_attested(trace)
            traces = read_traces(self.store, self._run, locks=None, whole=True)
            lineage = read(traces)
            for run in lineage.runs[:-1]:
                self._locks.append(self.store.lock(run))
            self._take_up(trace, lineage, writer)
        except BaseException:
            writer.close()
            raise
        if trace.info is not None:
            self._attested = trace.info.status
        return ()

    def _finish(self, driver: Driver, error: BaseException | None) -> None:
        del error
        status = None if self._attested is None else ended(self.store.read(self.run_id).data)
        with driver.lock:
            driver.closed = True
            driver.writer.sync()
            if status is not None:
                driver.writer.attest(status)

    def carry_out(self, order: Order) -> UndoReport:
        """Undo, in this thread."""
        report: UndoReport = self._active().run(self._undo(order))
        return report

    async def acarry_out(self, order: Order) -> UndoReport:
        """Undo, in this task."""
        report: UndoReport = await self._active().arun(self._undo(order), is_async=True)
        return report


class _Looked(_Dead):
    """Without the lock: nothing is written."""

    def _look(self, order: Order) -> Driver:
        trace = self.store.read(self._run)
        check_attested(trace)
        lineage = read(read_traces(self.store, self._run, locks=None, whole=True))
        self._take_up(trace, lineage, _NoWriter(trace.run))
        del order
        return self._active()

    def plan(self, order: Order) -> UndoPlan:
        """Look at it, in this thread."""
        driver = self._look(order)
        assert self._setting is not None
        plan: UndoPlan = driver.run(plan_steps(order, self._setting))
        return plan

    async def aplan(self, order: Order) -> UndoPlan:
        """Look at it, in this task."""
        driver = self._look(order)
        assert self._setting is not None
        plan: UndoPlan = await driver.arun(plan_steps(order, self._setting), is_async=True)
        return plan


class _NoWriter:
    """Where nothing is to be written."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.forked = False

    def append(self, event: dict[str, Any]) -> NoReturn:
        raise AssertionError(f"a look writes nothing, not even {event['event']}")

    def sync(self) -> None:
        """Wait for nothing."""

    def stop_order(self, *, closely: bool = False) -> None:
        """Nothing runs."""
        del closely

    def attest(self, status: str) -> None:
        """Note nothing."""

    def close(self) -> None:
        """Give nothing up."""
