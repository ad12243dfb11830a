"""Run the steps of a plan, each as a call of a session, in an order that their results allow.

If each step of a block depends on the one before it, they are calls one after the other. In any
other block, each step runs in a branch of its own, after the branches of its dependencies: its
calls are matched after a crash, whatever ran concurrently. The first attempt decides between the
two forms, however the plan is edited later.

A failure never interrupts other steps in flight: no other step begins, and started steps end.

The work of each kind of step is in `kinds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from rollcage import Halt, Session, SessionHalted

from rollcage_workflow.approvals import Approvals
from rollcage_workflow.errors import ExpressionFailed, StepFailed
from rollcage_workflow.expressions import fill, is_true
from rollcage_workflow.failures import is_worth, notes_of, on_failure, say, settle, type_name
from rollcage_workflow.flow import (
    NO_FAILURES,
    BlockPlace,
    Branches,
    Done,
    Flow,
    Lost,
    NotReached,
    Waits,
    breakable,
    cut_off,
    ending,
    raise_first,
    values_of,
)
from rollcage_workflow.graph import Checked, Graph, Loop, Node, Unit, names_of
from rollcage_workflow.kinds import KINDS
from rollcage_workflow.plan import OnFailure, PlanStep, Retry
from rollcage_workflow.records import GIVEN, NOW, UNTOLD, nothing, utc
from rollcage_workflow.signals import Signals
from rollcage_workflow.timing import within

__all__ = ["Interpreter"]

_HERE: Final = contextlib.nullcontext()


class Interpreter:
    """Runs a checked plan in an open session.

    Args:
        session: the open session; all calls go through it.
        signals: the signals to the execution.
        clock: the time now (Unix, ns).
        patience: how long the process waits for a time (seconds); for a later time,
            the attempt ends.
        on_step: called as each step begins and ends: path, state.
        approvals: the questions to people.
        ends: returns a reason if no further step is to begin.
        rows: by block that was reached before, whether its steps ran in a row.
        given: the results of steps that do not run, because the execution starts after them.
    """

    def __init__(
        self,
        session: Session,
        signals: Signals,
        clock: Callable[[], int],
        patience: float,
        on_step: Callable[[str, str], None],
        approvals: Approvals,
        ends: Callable[[], str],
        rows: Mapping[str, bool] = MappingProxyType({}),
        given: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.session = session
        self.signals = signals
        self._clock = clock
        self.patience = patience
        self._on_step = on_step
        self.approvals = approvals
        self._ends = ends
        self._rows = rows
        self._given = given

    async def plan(
        self, checked: Checked, inputs: Mapping[str, Any], flow: Flow | None = None, path: str = ""
    ) -> Any:
        """Run the whole plan; return its output.

        Raises:
            Waits: the plan is not finished: a step waits.
            Exception: the error of the first step that failed.
        """
        place = BlockPlace({"inputs": dict(inputs)}, flow or Flow(), path=path)
        limit = checked.plan.time_limit
        if limit is None:
            return await self.block(checked.graph, place)
        ends = await self.ends_at("", limit)
        timeout = asyncio.timeout(ends - self.now())
        try:
            async with timeout:
                with ending(Flow(place.flow, timeout=timeout)) as inner:
                    return await self.block(checked.graph, dataclasses.replace(place, flow=inner))
        except TimeoutError:
            if not timeout.expired():
                raise
        except Waits as waits:
            if self.now() < ends:  # the next attempt is made at that time, to end it
                until = ends if waits.until is None else min(ends, waits.until)
                raise Waits(waits.reasons, until, waits.approvals) from None
        what = path.removesuffix(".") or "the execution"
        raise StepFailed(f"{what} took longer than {limit:g} s")

    def now(self) -> float:
        """Return the time now (Unix, seconds)."""
        return self._clock() / 1e9

    async def reached(self, step: str) -> float:
        """Return when a step, or a plan, was reached first (Unix, seconds)."""

        async def now(**_: object) -> str:
            return utc(self._clock())

        reached = await self.session.arun_call(NOW, {"step": step}, now)
        return dt.datetime.fromisoformat(reached).timestamp()

    async def ends_at(self, step: str, limit: float) -> float:
        """Return when the time of a step, or of a plan, is up (Unix, seconds)."""
        began = await self.reached(step)
        if self.session.copier is not None:  # recorded steps took their time before the fork
            began = self.now()
        return began + limit

    # --- blocks ----------------------------------------------------------------------------------

    async def block(self, graph: Graph, place: BlockPlace) -> Any:
        """Run the steps of a block; return its result."""
        done = await self.steps(graph, place)
        if graph.result is None:
            return done[graph.last]
        return fill(graph.result, {**place.variables, **done})

    async def steps(self, graph: Graph, place: BlockPlace) -> dict[str, Any]:
        """Run the steps of a block; return their results, by name."""
        async with self.undoing(f"{UNTOLD}{place.round}", where=graph.undoes):
            if self.is_row(graph):
                return values_of(await self._row(graph, dataclasses.replace(place, in_row=True)))
            return values_of(await self._units(graph, place))

    @contextlib.asynccontextmanager
    async def undoing(
        self, name: str, *, where: bool, otherwise: OnFailure | None = None, always: bool = False
    ) -> AsyncGenerator[None]:
        """Undo the calls of a block in which a step fails, if the failed step says so.

        Args:
            name: the name of the transaction.
            where: whether there may be something to undo; otherwise no transaction is opened.
            otherwise: the effect if the failed step says nothing.
            always: undo, whatever the failed step says.
        """
        if not where:
            yield
            return
        kept: Exception | None = None
        async with self.session.transaction(name):
            try:
                with cut_off():
                    yield
            except NO_FAILURES:
                raise
            except Exception as error:
                if always or (on_failure(error) or otherwise) == "rollback":
                    settle(error)
                    raise
                kept = error
        if kept is not None:
            raise kept

    def is_row(self, graph: Graph) -> bool:
        """Return whether the steps of a block run one after the other, in the open branch."""
        return self._rows.get(graph.at, graph.is_row)

    async def _row(self, block: Graph | Loop, place: BlockPlace) -> dict[str, Done]:
        """Run units one after the other in the open branch; return the result of each step."""
        seen = dict(place.variables)
        here = dataclasses.replace(place, variables=seen)
        done: dict[str, Done] = {}
        for unit in block.units:
            place.flow.check()
            if isinstance(unit, Node):
                done[unit.name] = found = await self.step(unit, here)
                seen[unit.name] = found.value
                if found.jumps:
                    here = dataclasses.replace(here, jumped=here.jumped | {unit.name})
            else:
                of_loop = await self._loop(unit, here)
                done |= of_loop
                seen |= values_of(of_loop)
                jumped = {name for name, each in of_loop.items() if each.jumps}
                here = dataclasses.replace(here, jumped=here.jumped | jumped)
        return done

    async def _units(self, block: Graph | Loop, place: BlockPlace) -> dict[str, Done]:
        """Run units, each as soon as its dependencies are done; return the result of each step."""
        flow = Flow(place.flow)
        # Within other units, a loop's steps belong to their turn: the set of ended steps at the
        # loop's beginning is random, and another attempt would begin the loop elsewhere.
        is_within = isinstance(block, Loop)
        turn = contextlib.nullcontext() if is_within else self.session.turn(opens=block.opens)
        place = dataclasses.replace(place, flow=flow, in_row=False, round="")
        waiting: dict[str, asyncio.Future[Done]] = {}
        loop = asyncio.get_running_loop()
        for unit in block.units:
            waiting.update((name, loop.create_future()) for name in names_of(unit))
        with turn:  # all of them begin in one world
            tasks = [asyncio.create_task(self._unit(unit, place, waiting)) for unit in block.units]
            try:
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise
        raise_first(ended)
        return {name: future.result() for name, future in waiting.items()}

    async def _unit(
        self, unit: Unit, place: BlockPlace, waiting: Mapping[str, asyncio.Future[Done]]
    ) -> None:
        names = names_of(unit)
        try:
            before = {name: await _of(waiting[name]) for name in unit.before if name in waiting}
            place.flow.check()
            after = _nearest((b for each in before.values() for b in each.after), place)
            jumped = place.jumped.union(name for name, each in before.items() if each.jumps)
            here = place.with_(values_of(before), after=after, jumped=jumped)
            if isinstance(unit, Loop):
                found = await self._loop(unit, here)
            else:
                found = {unit.name: await self.step(unit, here)}
        except BaseException as error:
            if not isinstance(error, (NotReached, Waits)):
                place.flow.end()
            for name in names:
                waiting[name].set_exception(NotReached())
                waiting[name].exception()  # raised at the step that needs the result
            raise
        for name in names:
            waiting[name].set_result(found[name])

    async def _loop(self, loop: Loop, place: BlockPlace) -> dict[str, Done]:
        """Run the steps of a jump, as often as the jump is taken."""
        last: Any = None
        most = loop.jump.most or 0  # a jump back has a bound
        for number in range(1, most + 2):
            suffix = place.suffix if number == 1 else f"{place.suffix}.{number}"
            here = place.with_({"last": last}, suffix=suffix)
            found = await (self._row if place.in_row else self._units)(loop, here)
            jumps = found[loop.last]
            if number == 1 and f"{place.path}{loop.last}" in self._given:
                return found  # whether the step jumped was decided before
            last = jumps.value
            seen = {**place.variables, **values_of(found), "last": last}
            if number > most or not is_true(loop.jump.when, seen):
                if number > most and is_true(loop.jump.when, seen):
                    raise StepFailed(
                        f"{place.path}{loop.last}: would go back to {loop.first} once more, and "
                        f"has done so {most} times, the most that is allowed"
                    )
                return found
            place = dataclasses.replace(place, after=_nearest(jumps.after, place))
        raise AssertionError("unreachable")

    # --- a step ----------------------------------------------------------------------------------

    async def step(self, node: Node, place: BlockPlace) -> Done:
        """Run a step: it is skipped, kept though it failed, retried, or done."""
        step, path = node.step, f"{place.path}{node.name}{place.suffix}"
        if path in self._given:
            return await self._give(node, place)
        try:
            if node.skipped_by & place.jumped:
                self._on_step(path, "skipped")
                return Done(None, place.after)
            if step.when is not None and not is_true(step.when, place.variables):
                self._on_step(path, "skipped")
                return Done(None, place.after)
            if ends := self._ends():
                raise Waits([ends])
            self._on_step(path, "running")
            if step.retry is None:
                done = await self._once(node, place)
            else:
                done = await self._attempts(node, step.retry, place)
        except ExpressionFailed as error:
            if step.on_failure != "keep":
                self._failed(step, path, error)
                raise
            done = Done(None, place.after, error)
        except (Waits, NotReached, Lost, asyncio.CancelledError):
            self._on_step(path, "waiting")
            raise
        except (Halt, SessionHalted):
            self._on_step(path, "halted")
            raise
        except Exception as error:
            self._failed(step, path, error)
            raise
        self._on_step(path, "completed" if done.error is None else "failed")
        return self._jumping(node, place, done if step.on_failure != "keep" else _kept(done))

    def _jumping(self, node: Node, place: BlockPlace, done: Done) -> Done:
        """Find out whether a step jumps ahead."""
        jump = node.step.next
        if not node.skips or jump is None:
            return done
        try:
            seen = {**place.variables, node.name: done.value, "last": done.value}
            return done._replace(jumps=is_true(jump.when, seen))
        except ExpressionFailed as error:
            self._failed(node.step, f"{place.path}{node.name}{place.suffix}", error)
            raise

    async def _give(self, node: Node, place: BlockPlace) -> Done:
        """Record a step whose result is given, in its place."""
        value = self._given[node.name]
        fields = {"step": node.name, "value": value}
        if place.in_row:
            with self.session.place(call_id=node.name):
                await self.session.arun_call(GIVEN, fields, nothing)
            after = place.after
        else:
            with self.session.branch(node.name, after=place.after) as branch:
                await self.session.arun_call(GIVEN, fields, nothing)
            after = (branch,)
        self._on_step(node.name, "given")
        return self._jumping(node, place, Done(value, after))

    def _failed(self, step: PlanStep, path: str, error: Exception) -> None:
        self._on_step(path, "failed")
        if not any(note.startswith("in step ") for note in notes_of(error)):
            error.add_note(f"in step {path} of the plan")
        if not step.undoes_itself:
            say(error, step.on_failure)

    async def _attempts(self, node: Node, retry: Retry, place: BlockPlace) -> Done:
        """Run a step as often as it may be retried; if its error is kept, return the last error."""
        wait, attempt = retry.wait, 1
        while True:
            failed: Exception
            try:
                done = await self._once(node, place, "" if attempt == 1 else f"~{attempt}")
                if done.error is None:
                    return done
                failed = done.error
            except NO_FAILURES:
                raise
            except Exception as error:  # noqa: BLE001 - raised again below, or worth a retry
                done, failed = None, error
            ended = attempt == retry.attempts or self.session.halted is not None
            if ended or not is_worth(retry, failed):
                if done is None:
                    raise failed
                return done
            await breakable(asyncio.sleep(wait), place.flow, "sleeps")
            wait *= retry.factor
            attempt += 1
            place.flow.check()

    async def _once(self, node: Node, place: BlockPlace, mark: str = "") -> Done:
        """Run one attempt at a step; if its error is kept, return it: its effects stay."""
        step = node.step
        if step.kind == "value":
            return Done(await KINDS["value"].run(self, node, place), place.after)
        around: contextlib.AbstractContextManager[Any]
        if place.in_row:
            # A tool call passes its id itself, which is faster than a place of its own.
            if node.body is not None and step.retry is None:
                around = _HERE
            else:
                around = self.session.place(call_id=place.call_id(node.name) + mark)
        else:
            name = f"{node.name}{place.suffix}{mark}"
            around = self.session.branch(name, after=place.after)
        with around as branch:
            after = place.after if branch is None else (branch,)
            try:
                inside = f"{UNTOLD}{place.round}{node.name}{place.suffix}{mark}"
                async with self.undoing(inside, where=step.undoes_itself, always=True):
                    value = await self._within_its_time(node, place)
            except NO_FAILURES:
                raise
            except Exception as error:
                if self.session.halted is not None:  # the next attempt sees the outcome
                    raise NotReached from error
                if step.on_failure != "keep":
                    raise
                return Done(None, after, error)
            return Done(value, after)

    async def _within_its_time(self, node: Node, place: BlockPlace) -> Any:
        limit = node.step.timeout
        if limit is None:
            return await KINDS[node.step.kind].run(self, node, place)
        timeout: asyncio.Timeout | None = None
        try:
            async with within(self.session, limit) as timeout:
                with ending(Flow(place.flow, timeout=timeout)) as flow:
                    here = dataclasses.replace(place, flow=flow)
                    return await KINDS[node.step.kind].run(self, node, here)
        except TimeoutError:
            if timeout is None or not timeout.expired():
                raise
            message = f"{place.path}{node.name}: took longer than {limit:g} s"
            raise StepFailed(message) from None


def _kept(done: Done) -> Done:
    """Return a step whose error is kept, with its result."""
    if done.error is None:
        return Done({"ok": True, "value": done.value}, done.after)
    fields = {"type": type_name(done.error), "message": str(done.error)}
    return Done({"ok": False, "error": fields}, done.after)


async def _of(future: asyncio.Future[Done]) -> Done:
    return await asyncio.shield(future)


def _nearest(after: Iterable[Any], place: BlockPlace) -> Branches:
    """Return the branches before a step, without those that stand before its whole block.

    So the record of a loop's round does not grow with the number of rounds.
    """
    return tuple(dict.fromkeys(each for each in after if each not in place.after)) or place.after
