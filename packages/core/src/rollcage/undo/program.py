"""Undo effects, the newest first: an undo is a program that an attempt walks.

Everything is examined before anything is touched: the required tools, the outcomes of steps in
doubt, the current states, and the verdicts on the compensating calls. Then `undoing` names the
steps on record, `back` says of each how well it was taken back, and `undone` (or `rolled`, of a
transaction) ends the undo. Compensating calls are steps themselves, in a branch named for the step
that they undo: after a kill, the next session that opens the run resumes the undo like any other
program.

A step that is not taken back goes on holding: it answers calls, and a new effect in front of it
halts. An undo that has touched a step without restoring it stays open: nothing runs before the undo
is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from rollcage.contract.compensation import (
    DidNotHappen,
    Digests,
    Happened,
    PlannedCall,
    Tool,
    arguments_of,
    differing,
    is_keyed,
    recorded_states,
    states_of,
)
from rollcage.errors import (
    Diverged,
    Halt,
    PlanChanged,
    RollcageError,
    SessionError,
    SessionHalted,
    StepNotFound,
    ToolMissing,
    UndoIncomplete,
)
from rollcage.replay.call import Call, Place, here
from rollcage.replay.outcome import given, success
from rollcage.replay.walk import Turn
from rollcage.trace.claims import Claim, Use, uses
from rollcage.trace.endings import check_performed
from rollcage.trace.store import store_option
from rollcage.trace.threads import apart
from rollcage.undo.assessment import Task, Undoable, assess
from rollcage.undo.plan import consult, fetched, looking, plain, plan_of, revived
from rollcage.undo.report import InDoubt, UndoneStep, UndoPlan, UndoReport, changes, stays_undone
from rollcage.undo.targets import (
    after_step,
    around,
    blocks_named,
    keeps_place,
    newest_first,
    of_blocks,
)
from rollcage.values.hiding import hidden

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.calls.driver import Flow
    from rollcage.contract.contract import Contract
    from rollcage.session.session import Session
    from rollcage.trace.run import Event, Run, Step
    from rollcage.trace.store import Store
    from rollcage.undo.report import UndoStatus

__all__ = ["Request", "open_undo", "plan", "take_back", "undo"]

_WITHHELD: Final = "withheld: it may quote the secret of a state"
_DONE: Final = ("verified", "compensated", "accepted")
_ACCEPTED: Final = "somebody has put it right by hand, or accepts it as it is"


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Describe a requested undo.

    Attributes:
        to: the last step that stays; None: everything is undone.
        branch: only the effects of blocks with this name, and later effects.
        within: only the steps of this branch: a nested session undoes its own steps.
        in_doubt: the response to a step of unknown outcome: list it, or restore the state before
            it.
        expected: a plan that a person has seen, or its digest: nothing else, or only the rest of
            it, is undone.
        accept: steps that count as undone, because a person has repaired them by hand.

    Raises:
        SessionError: `to` is not the number of a step.
    """

    to: int | None = None
    branch: str | None = None
    within: str = ""
    in_doubt: InDoubt = "list"
    expected: UndoPlan | str | None = None
    accept: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.to is not None and self.to < 1:
            raise SessionError(f"to={self.to} is not a step; steps count from 1")

    def covers(self) -> Event:
        """Return the limits of the request as fields of lines; empty for a whole run."""
        limits = {"to": self.to, "branch": self.branch, "within": self.within or None}
        return {name: each for name, each in limits.items() if each is not None}


# --- requested undos ----------------------------------------------------------------------------


def undo(attempt: Attempt, request: Request, *, is_async: bool) -> Flow:
    """Take back the requested effects, and return an `UndoReport`.

    Raises:
        SessionError: undo is not possible from here.
        PlanChanged: the undo would differ from the expected plan; nothing was touched.
        ToolMissing: a required tool is missing; nothing was touched.
    """
    if attempt.closed:
        raise SessionError("the session has ended: undo_run undoes what it did")
    if not attempt.live or attempt.dry or attempt.log is None:
        raise SessionError("a session that runs nothing has nothing to undo")
    if attempt.halted is not None:
        raise SessionHalted(f"the session was halted: {attempt.halted}") from attempt.halted
    with attempt.lock:
        gone = [s for s in _wanted(attempt.run, request) if not _is_open_block(attempt, s)]
        for step in gone:
            if _is_running(attempt, step):
                raise SessionError(f"{step.name} can't undo the run that it is in: it still runs")
    found: UndoReport = yield from take_back(
        attempt, gone, why="undo", forgive=True, is_async=is_async, request=request
    )
    return found


def plan(attempt: Attempt, request: Request, *, is_async: bool) -> Flow:
    """Return the `UndoPlan` of a requested undo, by the current states."""
    run = attempt.run
    check_performed(run, attempt.store)
    numbers = _numbers(run, _wanted(run, request), whole=True)
    look = _Look(attempt, request, is_async=is_async, records=False)
    tasks = yield from look.tasks(numbers)
    return _planned(run, request, tasks)


def _wanted(run: Run, request: Request) -> list[Step]:
    found = after_step(run, request.to or 0, request.within)
    if request.branch is None:
        return found
    late = {step.n for step in found}
    return [step for step in of_blocks(run, blocks_named(run, request.branch)) if step.n in late]


def _numbers(run: Run, steps: Iterable[Step], *, whole: bool) -> set[int]:
    """Return the numbers of the steps to undo, with the steps of an undo that has not ended."""
    found = {step.n for step in steps if step.gone in ("", "left")}
    if run.undoing is not None:
        found.update(run.undoing["steps"])
        if "block" in run.undoing:
            found.add(run.undoing["block"])
    if not whole:
        return found
    for n in list(found):  # steps rolled back in a block go with it
        found.update(step.n for step in run.body(run.steps[n]) if step.rolled)
    return found - run.reopened(found)


def _is_open_block(attempt: Attempt, step: Step) -> bool:
    """Tell whether a block is open in this attempt: the block stays, and its effects are undone."""
    walk = attempt.branches.get(step.inner) if step.effect == "branch" else None
    return walk is not None and walk.opening is step and not walk.exited


def _is_running(attempt: Attempt, step: Step) -> bool:
    """Tell whether the body of a call is running."""
    if step.effect not in ("write", "scope") or step.status != "unknown" or not step.taken:
        return False
    walk = attempt.branches.get(step.branch)
    return walk is not None and walk.running > 0


def _planned(run: Run, request: Request, tasks: Iterable[Task]) -> UndoPlan:
    return UndoPlan(run=run.id, to=request.to, steps=tuple(task.planned() for task in tasks))


# --- the flow ------------------------------------------------------------------------------------


def take_back(
    attempt: Attempt,
    steps: Iterable[Step] | None = None,
    *,
    why: str,
    is_async: bool,
    block: Step | None = None,
    forgive: bool = False,
    request: Request = Request(),
) -> Flow:
    """Take steps back, the newest first; or go on with the begun undo of the run.

    Args:
        attempt: the attempt that makes the undo.
        steps: the steps to undo; None: the steps of the begun undo.
        why: `undo`, `divergence` or `transaction`.
        is_async: whether the session awaits.
        block: the transaction to roll back, if any.
        forgive: whether steps that can't be taken back are only listed; otherwise such a step
            prevents the undo, and nothing is touched.
        request: the request, if a person made one.

    Returns:
        An `UndoReport`.

    Raises:
        Diverged: not all of the steps to be left behind can be taken back; nothing was touched.
        UnknownOutcome: the outcome of a step is unknown; nothing was touched.
        UndoIncomplete: a block can't be rolled back; or an undo can't be finished.
        PlanChanged: the undo would differ from the expected plan; nothing was touched.
        ToolMissing: a required tool is missing; nothing was touched.
    """
    own = yield from _enter(attempt, is_async=is_async)
    before, token = attempt.run.undoing, _part_of.set((*_part_of.get(), own))
    alone = apart.set(True)
    try:
        flow = _Undo(attempt, own, why, block, request, forgive=forgive, is_async=is_async)
        return (yield from flow.run(steps))
    except BaseException as error:
        begun = attempt.run.undoing
        if begun is not None and begun is not before and attempt.halted is None:
            attempt.halt(
                UndoIncomplete(
                    f"an undo of run {attempt.run.id} was cut off by {type(error).__name__}: the "
                    f"next session of it finishes that first"
                )
            )
        raise
    finally:
        with contextlib.suppress(ValueError):  # closed from another context
            _part_of.reset(token)
            apart.reset(alone)
        with attempt.lock:
            attempt.undo = None
        own.ended.set_result(None)


class Undoing:
    """Hold an undo in progress: a run has one at a time.

    Attributes:
        steps: the steps that it takes back: they answer no call.
        ended: has a result when the undo has ended.
        loop: the event loop on which it runs; None in a sync session.
    """

    def __init__(self, *, is_async: bool) -> None:
        self.steps: frozenset[int] = frozenset()
        self.ended: Future[None] = Future()
        self.loop = asyncio.get_running_loop() if is_async else None

    def wait(self) -> None:
        """Wait in this thread until the undo has ended.

        Raises:
            SessionError: the undo runs on the event loop of this thread, and would never end.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not None and loop is self.loop:
            raise SessionError(
                "an undo is in progress on this event loop, and has to end first: await what waits "
                "for it (acall, aundo, async with)"
            )
        self.ended.result()


def _enter(attempt: Attempt, *, is_async: bool) -> Generator[Any, Any, Undoing]:
    """Begin an undo, after the undo of another thread or task.

    Raises:
        SessionError: it was asked for in the course of an undo.
    """
    while True:
        with attempt.lock:
            if attempt.undo is None:
                attempt.undo = own = Undoing(is_async=is_async)
                return own
            if attempt.undo in _part_of.get():
                raise SessionError("a compensating call can't undo anything: it undoes a step")
        yield from await_undo(attempt, is_async=is_async)


def undoes_elsewhere(attempt: Attempt) -> bool:
    """Tell whether an undo is in progress that this thread or task is no part of."""
    undo = attempt.undo
    return undo is not None and bool(undo.steps) and undo not in _part_of.get()


def is_being_undone(attempt: Attempt, step: int) -> bool:
    """Tell whether an undo elsewhere takes a step back; to the undo itself, it is what it was."""
    undo = attempt.undo
    return undo is not None and step in undo.steps and undo not in _part_of.get()


def await_undo(attempt: Attempt, *, is_async: bool) -> Flow:
    """Wait until the undo in progress has ended; on an event loop, without a thread."""
    undo = attempt.undo
    if undo is not None:
        yield (lambda: asyncio.shield(asyncio.wrap_future(undo.ended))) if is_async else undo.wait


_part_of: Final[ContextVar[tuple[Undoing, ...]]] = ContextVar("rollcage.undo.part_of", default=())
"""The undos in whose course this context runs: one in the compensating call of another."""


class _Undo:
    """Carry one undo from the look to its last line."""

    def __init__(
        self,
        attempt: Attempt,
        own: Undoing,
        why: str,
        block: Step | None,
        request: Request,
        *,
        forgive: bool,
        is_async: bool,
    ) -> None:
        self.attempt, self.record, self.is_async = attempt, attempt.run, is_async
        self.own = own
        self.why, self.forgive, self.request = why, forgive, request
        self.block = None if block is None else block.n

    def run(self, steps: Iterable[Step] | None) -> Flow:
        """Look, refuse, or take back."""
        attempt, record = self.attempt, self.record
        begun = record.undoing
        if steps is None:
            assert begun is not None
            self.why, self.forgive = begun["why"], begun["forgive"]
            self.block = begun.get("block")
            self.request = Request(
                begun.get("to"), begun.get("branch"), in_doubt=begun.get("in_doubt", "list")
            )
            numbers = set[int](begun["steps"])
            self.own.steps = frozenset(numbers)
        elif begun is not None and self.why != "undo":
            raise attempt.halt(open_undo(record, attempt.store))
        else:
            numbers = self._to_undo(steps)
        while True:
            look = _Look(attempt, self.request, is_async=self.is_async, records=True)
            try:
                tasks = yield from look.tasks(numbers)
            except RollcageError as error:
                if isinstance(error, Halt):
                    raise
                raise self._cant_look(error) from error
            if steps is None and not self.forgive and look.told and self._withdraw():
                return self._report(tasks, [])
            self._check(tasks)
            refused = self._denied(tasks)
            if not self.forgive:
                self._refuse(tasks, refused)
            stopped = refused or [
                task.ended("conflict", task.reason, task.differs)
                for task in tasks
                if task.state == "conflict"
            ]
            if stopped:
                if begun is not None and begun["forgive"]:
                    self._close(set(begun["steps"]), look, self._report(tasks, stopped))
                    self._check_ended(steps)
                return self._report(tasks, stopped)
            if steps is not None and (tasks or self.block is not None or self.request.accept):
                self._begin(numbers)
            if (yield from look.is_still_so(tasks)):
                break
            self._withdraw()  # a call of another run was answered meanwhile
        done = yield from self._carry_out(tasks)
        report = self._report(tasks, done)
        self._close(numbers, look, report)
        yield from attempt.settle(is_async=self.is_async)  # report only recorded facts
        self._check_ended(steps)
        return report

    def _to_undo(self, steps: Iterable[Step]) -> set[int]:
        """Return the numbers of the steps to undo; the ones ahead that nothing asked for since.

        From here on, they answer no call.
        """
        with self.attempt.lock:
            if self.why == "divergence":
                steps = [step for step in steps if not (step.taken or step.claimed)]
            numbers = _numbers(self.record, steps, whole=self.block is None)
            self.own.steps = frozenset(numbers)
        return numbers

    def _check_ended(self, steps: Iterable[Step] | None) -> None:
        """Refuse to go on if an undo that the session had to finish first has not ended."""
        if steps is None and self.record.undoing is not None:
            raise self.attempt.halt(open_undo(self.record, self.attempt.store))

    def _begin(self, numbers: set[int]) -> None:
        request = self.request
        line: Event = {
            "event": "undoing", "why": self.why, "steps": sorted(numbers), "forgive": self.forgive,
        }  # fmt: skip
        if self.block is not None:
            line["block"] = self.block
        line |= request.covers()
        if request.in_doubt != "list":
            line["in_doubt"] = request.in_doubt
        self.attempt.note(line)
        for n in sorted(request.accept, reverse=True):
            self.attempt.note({"event": "back", "step": n, "status": "accepted"})

    def _withdraw(self) -> bool:
        """End an undo on record that has taken nothing back; False: it has touched something."""
        run = self.record
        if run.undoing is None or any(_begun(run, n) for n in run.undoing["steps"]):
            return False
        if any(status != "accepted" for status in run.backed.values()):
            return False
        self.attempt.note({"event": "undone", "why": run.undoing["why"], "steps": []})
        return True

    # --- what refuses it before anything is touched ----------------------------------------------

    def _check(self, tasks: list[Task]) -> None:
        """Refuse an undo that nobody expected.

        Raises:
            PlanChanged: the undo would differ from the expected plan.
            StepNotFound: an accepted step is not among the steps to undo.
        """
        run, request = self.record, self.request
        for n in request.accept:
            if all(task.entry.step != n for task in tasks):
                raise StepNotFound(f"step {n} of run {run.id} is not one that would be undone")
        if request.expected is None:
            return
        found = changes(request.expected, _planned(run, request, tasks))
        if found:
            undone = {(run.id, n) for n in (run.undoing or {}).get("steps", ()) if _begun(run, n)}
            raise PlanChanged(
                f"an undo of run {run.id} would do something else than what was seen: "
                f"{'; '.join(found)}. {stays_undone(request.expected, undone).capitalize()}: look "
                f"at it again, with plan_undo or aplan_undo"
            )

    def _cant_look(self, error: Exception) -> Exception:
        """Return the error to raise after a failed look; a program can't go on behind it."""
        if self.why == "undo" or self.record.undoing is not None:
            return error
        if self.why == "divergence":
            return self.attempt.halt(Diverged(f"what lies ahead can't be taken back: {error}", ()))
        return self.attempt.halt(UndoIncomplete(f"a block can't be rolled back: {error}"))

    def _refuse(self, tasks: list[Task], refused: list[UndoneStep]) -> None:
        """Halt if a step can't be taken back."""
        attempt, run = self.attempt, self.record
        stuck = [task for task in tasks if task.state not in ("reversible", "nothing")]
        for task in stuck:
            if task.state == "unknown":
                raise attempt.halt(attempt.unknown(run.steps[task.entry.step], f": {task.reason}"))
        lines = [str(UndoReport(run=run.id, to=None, steps=tuple(refused)))] if refused else []
        for task in stuck:
            status = cast("UndoStatus", task.state)  # not `reversible`, and not `nothing`
            lines.append(_said(task.ended(status, task.reason, task.differs)))
        if not lines:
            return
        numbers = [task.entry.step for task in stuck] or [each.step for each in refused]
        said = "\n".join(lines)
        if self.why == "divergence" and run.undoing is None:
            orphans = tuple((run.id, n) for n in numbers)
            raise attempt.halt(
                Diverged(
                    f"recorded effects of run {run.id} lie ahead that can't be taken back, so "
                    f"nothing was touched:\n{said}\nTo go on, "
                    f"{_way_out(run, attempt.store, numbers)}",
                    orphans,
                )
            )
        what = "an undo can't be finished" if run.undoing is not None else "a block stays as it is"
        raise attempt.halt(
            UndoIncomplete(
                f"{what} in run {run.id}, for not everything in it can be taken back:\n{said}\n"
                f"To go on, {_way_out(run, attempt.store, numbers)}"
            )
        )

    def _denied(self, tasks: list[Task]) -> list[UndoneStep]:
        """Return the steps whose compensating calls a rule denies."""
        refused: list[UndoneStep] = []
        is_gated = self.attempt.session.gate.decides or self.attempt.inner
        for task in tasks if is_gated else ():
            for tool, values in task.calls if task.state == "reversible" else ():
                call = self._call(task, tool, values)
                verdict = call.session.gate.decide(call)
                if verdict is not None and verdict.decision == "deny":
                    message = f"a rule denies {tool.contract.name}: {verdict.reason}"
                    refused.append(task.ended("failed", message))
                    break
        return refused

    # --- taking back -----------------------------------------------------------------------------

    def _carry_out(self, tasks: list[Task]) -> Generator[Any, Any, list[UndoneStep]]:
        """Undo one step after the other, up to the first failure."""
        done: list[UndoneStep] = []
        for task in tasks:
            n = task.entry.step
            if task.reason == _ACCEPTED:
                each = task.ended("accepted", _ACCEPTED)
            else:
                each = yield from self._undone(task)
            is_touched = each.status in (*_DONE, "failed")  # otherwise the state is unchanged
            if is_touched and self.record.undoing is not None and n not in self.request.accept:
                line: Event = {"event": "back", "step": n, "status": each.status}
                if each.reason:
                    line["reason"] = each.reason
                if each.differs:
                    line["differs"] = each.differs
                if each.status == "failed" and each.differs:
                    line["spent"] = True  # its calls were made: another undo makes them anew
                self.attempt.note(line)
            done.append(each)
            if each.status in ("failed", "conflict"):
                break
        return done

    def _undone(self, task: Task) -> Generator[Any, Any, UndoneStep]:
        """Undo one step, and check the resulting state."""
        looks = task.contract is not None and task.was is not None
        if task.state == "nothing":
            if not (yield from self._is_there_still(task)):
                return task.ended("compensated" if task.was is None else "verified", task.reason)
            task.reason = ""
        if task.state in ("irreversible", "unknown"):
            return task.ended("unknown" if task.state == "unknown" else "irreversible", task.reason)
        if looks:
            changed = yield from self._changed_meanwhile(task)
            if changed is not None:
                return changed
        self._walk_again(task)
        for tool, values in task.calls:
            call = self._call(task, tool, values)
            try:
                yield from call.session.perform(call)
            except (Halt, SessionHalted):
                raise
            except Exception as error:  # noqa: BLE001 - told in the report
                said = f"{tool.contract.name}: {_described(self.attempt, error)}"
                return task.ended("failed", said)
            finally:
                self._uncount(call)
        if not looks:
            return task.ended("compensated", "nothing observes what it changes")
        try:
            now = yield from _state_now(self.attempt, task, is_async=self.is_async)
        except SessionError as error:
            return task.ended("failed", str(error))
        assert task.was is not None
        differs = differing(task.was, now)
        if differs:
            return task.ended("failed", "the state is not what it was before", differs)
        return task.ended("verified", task.reason)

    def _is_there_still(self, task: Task) -> Generator[Any, Any, bool]:
        """Tell whether a step's state is still there after the undo of a later step on it.

        A tool that observes different things under one name leaves such a state.
        """
        if task.put_back or task.happened is False or not (task.was and task.calls):
            return False
        try:
            now = yield from _state_now(self.attempt, task, is_async=self.is_async)
        except SessionError:
            return True  # the next check says so
        return bool(differing(task.was, now))

    def _changed_meanwhile(self, task: Task) -> Generator[Any, Any, UndoneStep | None]:
        """Check the state again right before the undo, when the later steps are undone."""
        assert task.was is not None
        try:
            now = yield from _state_now(self.attempt, task, is_async=self.is_async)
        except SessionError as error:
            return task.ended("failed", str(error))
        if not differing(task.was, now):
            return task.ended("verified", "the state is as it was before")
        if task.after is None or task.begun or task.entry.status == "unknown":
            return None
        strange = {
            resource: fields
            for resource, fields in differing(task.after, now).items()
            if now.get(resource) != task.was.get(resource)
        }
        if strange:
            return task.ended("conflict", "somebody else has changed it since", strange)
        return None

    def _call(self, task: Task, tool: Tool, values: Mapping[str, Any]) -> Call:
        """Return a compensating call in the branch of its step."""
        attempt = self.attempt
        name = _branch_of(self.record, task.entry.step)
        bound = tool.contract.bind(values, attempt.seal)
        contract, body = tool.contract, tool.body
        assert body is not None
        if is_keyed(task.was) or is_keyed(task.after):
            contract, body = dataclasses.replace(contract, returns=Any), _withheld(body)
        place = Place(attempt, _session_of(attempt, self.record.steps[task.entry.step]), name)
        call = Call(place, contract, bound, body, "tool", is_async=self.is_async)
        call.branch, call.turn = attempt.branch(name), Turn()  # a guard may look at them
        return call

    def _walk_again(self, task: Task) -> None:
        """Let recorded calls of an earlier undo of this step answer in this attempt, too."""
        attempt, run = self.attempt, self.record
        name = _branch_of(run, task.entry.step)
        with attempt.lock:
            for step in run.inside(name):
                run.release(step)
                attempt.branches.pop(step.inner, None)
            attempt.branches.pop(name, None)

    def _uncount(self, call: Call) -> None:
        stats = self.attempt.stats
        if call.slot >= 0:
            stats.calls -= 1
        if call.recorded is not None:
            stats.hits -= 1
        elif hasattr(call, "event"):
            stats.misses -= 1

    # --- the line that ends it -------------------------------------------------------------------

    def _close(self, numbers: set[int], look: _Look, report: UndoReport) -> None:
        """End the undo on record, unless a step is half undone.

        Raises:
            UndoIncomplete: the undo has to be finished, and is not.
        """
        attempt, run = self.attempt, self.record
        done = {n for n, status in run.backed.items() if status in _DONE}
        stays = {n for n in numbers if run.steps[n].acts} - done - look.clean
        stays -= {n for n, owner in look.covered.items() if owner in done}
        half = [n for n in sorted(stays) if run.backed.get(n) == "failed" and _begun(run, n)]
        if stays and not self.forgive:
            raise attempt.halt(
                UndoIncomplete(
                    f"not everything was taken back in run {run.id}:\n{report}\nTo go on, "
                    f"{_way_out(run, attempt.store, sorted(stays))}"
                )
            )
        if half:
            return
        if self.block is not None:
            owner = run.steps[self.block]
            attempt.note({"event": "rolled", "branch": owner.inner, "steps": sorted(numbers)})
            return
        last = max(stays, default=0)
        makers = ((n, _maker(run, run.steps[n])) for n in numbers)
        done |= {n for n, maker in makers if maker is not None and maker.n in done}
        gone = {
            n for n in numbers if n in done or (n not in stays and (n > last or run.steps[n].acts))
        }
        # The outcome of a call that stays tells of what answered in its body.
        inside = (each for n in stays for each in run.body(run.steps[n]))
        gone -= {each.n for each in inside if _is_answered(each)} - done
        reopens = run.reopened(gone)
        gone -= reopens
        line: Event = {"event": "undone", "why": self.why, "steps": sorted(gone)}
        if reopens:
            line["reopens"] = sorted(reopens)
        if self.why == "undo":
            line |= self.request.covers()
            places = [n for n in sorted(gone) if keeps_place(run, run.steps[n], gone)]
            if places:
                line["places"] = places
        steps = (run.steps[n] for n in reopens)
        ended = [step for step in steps if not step.taken or step.status != "unknown"]
        attempt.note(line)
        if self.why == "undo":
            attempt.rewind(ended)

    def _report(self, tasks: list[Task], done: list[UndoneStep]) -> UndoReport:
        seen = {each.step for each in done}
        left = tuple(
            (*task.origin, task.entry.name) for task in tasks if task.entry.step not in seen
        )
        return UndoReport(run=self.record.id, to=self.request.to, steps=tuple(done), left=left)


def open_undo(run: Run, store: Store) -> UndoIncomplete:
    """Return the halt of a run whose begun undo has not ended."""
    assert run.undoing is not None
    left = [n for n in run.undoing["steps"] if run.backed.get(n) == "failed"]
    listed = ", ".join(f"{n} ({run.steps[n].name})" for n in left)
    return UndoIncomplete(
        f"an undo of run {run.id} has begun and can't be finished, so nothing goes on: step "
        f"{listed or run.undoing['steps']}. Undo it again: rollcage undo {run.id}"
        f"{store_option(store)}; or {_way_out(run, store, left)}"
    )


def _branch_of(run: Run, n: int) -> str:
    """Return the branch of a step's compensating calls; a new branch after a failed try."""
    tries = run.spent[n]
    return f"-{n}.{tries}" if tries else f"-{n}"


def _begun(run: Run, n: int) -> bool:
    """Tell whether a compensating call of a step is on record, so its state may be in between."""
    return bool(run.branches.get(f"-{n}"))


def _described(attempt: Attempt, error: Exception) -> str:
    """Return an error's type and text for a report, without the secrets in it."""
    shown: str = hidden(f"{type(error).__name__}: {error}", attempt.seal).value
    return shown


def _said(each: UndoneStep) -> str:
    return str(UndoReport(run=each.run, to=None, steps=(each,)))


def _way_out(run: Run, store: Store, numbers: list[int]) -> str:
    at = store_option(store)
    listed = "; ".join(f"rollcage resolve {run.id} {n}{at} --undone" for n in numbers[:3])
    return f"put the world right by hand, or accept it as it is, and say so: {listed}"


# --- looking -------------------------------------------------------------------------------------


class _Look:
    """Gather all facts about steps before anything is touched.

    Attributes:
        clean: steps that failed and changed nothing.
        covered: steps from the body of a call whose plan covers them, with the outermost such call.
        told: by number of an effect with a key, why it stays: it answered a call of another run.
    """

    def __init__(
        self, attempt: Attempt, request: Request, *, is_async: bool, records: bool
    ) -> None:
        self.attempt, self.request = attempt, request
        self.is_async, self.records = is_async, records
        self.clean: set[int] = set()
        self.covered: dict[int, int] = {}
        self.told: dict[int, str] = {}
        self._foreign: dict[int, Step] = {}  # by number, a foreign write in the body
        self._answered: dict[int, Step] = {}  # by number, what stays and was answered by a step
        self._claims: dict[int, tuple[str, bytes]] = {}  # by number, the key and its claim as seen
        self._lines: dict[int, Event] | None = None

    def tasks(self, numbers: set[int]) -> Generator[Any, Any, list[Task]]:
        """Return the steps to undo, the newest first, with the possible undo of each."""
        run = self.attempt.run
        self._foreign, self._answered = _foreign(run), _answered(run, numbers)
        done = {n for n, status in run.backed.items() if status in _DONE}
        steps = [run.steps[n] for n in numbers if run.steps[n].acts]
        for step in steps:
            for owner in around(run, step):
                if owner.n in numbers and _stands_for_calls(owner, is_undone=owner.n in done):
                    self.covered[step.n] = owner.n
        yield from self._look_at_claims(step for step in steps if step.n not in done)
        order = newest_first(steps)
        found: list[Task] = []
        for step in order:
            if step.n in done or step.n in self.covered:
                continue
            try:
                task = yield from self._task(step)
            except ToolMissing as error:
                raise ToolMissing(f"{self._named(step)}: {error}", error.tool) from error
            except (RollcageError, ValueError) as error:
                if isinstance(error, Halt):
                    raise
                raise SessionError(f"{self._named(step)}: {error}") from error
            if task is None:
                self.clean.add(step.n)
            else:
                found.append(task)
        found = self._without_calls(found)
        self._assess(found)
        return found

    def _assess(self, tasks: list[Task]) -> None:
        """Decide for each task how far it can be undone."""
        assess(tasks, self.request.in_doubt)
        while self._keep_makers(tasks):
            assess(tasks, self.request.in_doubt)
        for task in tasks:
            if self._is_accepted(task.entry.step):
                task.state, task.reason, task.differs = "nothing", _ACCEPTED, {}

    def _keep_makers(self, tasks: list[Task]) -> bool:
        """Keep the effects that answered in the body of a call which stays; False: there are none.

        The outcome of that call tells of them.
        """
        run = self.attempt.run
        going = {task.entry.step: task for task in tasks if task.state == "reversible"}
        kept = False
        for task in tasks:
            if task.state in ("reversible", "nothing"):
                continue
            for step in run.body(run.steps[task.entry.step]):
                maker = _maker(run, step)
                n = 0 if maker is None else self.covered.get(maker.n, maker.n)
                its = going.pop(n, None)
                if its is not None:
                    its.plan, its.calls, kept = None, [], True
                    its.reason = (
                        f"step {step.n} was answered with its effect, in step {task.entry.step}, "
                        f"which stays"
                    )
        return kept

    def _named(self, step: Step) -> str:
        return f"step {step.n} of run {self.attempt.run.id} ({step.name}) can't be undone here"

    def _is_accepted(self, n: int) -> bool:
        return n in self.request.accept or self.attempt.run.steps[n].accepted

    def _look_at_claims(self, steps: Iterable[Step]) -> Generator[Any, Any, None]:
        """Find out which effects with a key answered calls of other runs.

        Once the undo of an effect has begun, a mark in its claim is of a call that waits.
        """
        store, run = self.attempt.store, self.attempt.run
        for step in steps:
            if step.once is None or self._is_accepted(step.n):
                continue
            _, key, token = step.once
            seen: bytes | None = yield consult(store.get, self.is_async, "once", key)
            if seen is None or (claim := Claim.read(key, seen)).token != token:
                continue
            self._claims[step.n] = key, seen
            if claim.state or not _begun(run, step.n):
                found: list[Use] = yield consult(uses, self.is_async, store, key, claim)
                if found:
                    self.told[step.n] = found[0].reason(key, store)

    def is_still_so(self, tasks: Iterable[Task]) -> Generator[Any, Any, bool]:
        """Tell whether the claims of all effects to be taken back are as they were seen.

        A claim with a state of its own gives it up: the log of the run says what became of it.
        """
        attempt, run = self.attempt, self.attempt.run
        going = [self._step(task) for task in tasks if task.state == "reversible"]
        numbers = {each.n for step in going for each in (step, *run.body(step))}
        keyed = sorted(numbers & self._claims.keys())
        if keyed:
            yield from attempt.settle(is_async=self.is_async)
        for n in keyed:
            key, seen = self._claims[n]
            now: bytes | None = yield consult(attempt.store.get, self.is_async, "once", key)
            claim = Claim.read(key, seen)
            if now == seen and claim.state:
                new = claim._replace(state="", step=0, outcome=None).data()
                swap = attempt.store.swap
                if (yield consult(swap, self.is_async, "once", key, seen, new)):
                    continue
                return False
            if now != seen:
                return False
        return True

    def _without_calls(self, tasks: list[Task]) -> list[Task]:
        """Leave out calls from the body of a performed step whose plan covers them."""
        restores = self.request.in_doubt == "restore"
        stands = {
            task.entry.step
            for task in tasks
            if task.plan is not None
            and (task.entry.status == "ok" or task.happened or task.begun or restores)
        }
        found = []
        for task in tasks:
            owner = next(
                (o for o in around(self.attempt.run, self._step(task)) if o.n in stands), None
            )
            if owner is None:
                found.append(task)
            else:
                self.covered[task.entry.step] = owner.n
        for n in self.covered:  # a call that covers others may be covered itself
            while self.covered[n] in self.covered:
                self.covered[n] = self.covered[self.covered[n]]
        return found

    def _step(self, task: Task) -> Step:
        return self.attempt.run.steps[task.entry.step]

    def _task(self, step: Step) -> Generator[Any, Any, Task | None]:
        """Gather the facts about one step; None if the step needs no undo."""
        attempt, run = self.attempt, self.attempt.run
        undo = step.undo or {}
        recorded = undo if "args" in undo else (yield from self._line(step))
        args = yield from self._revived(recorded.get("args", {}))
        status = "ok" if step.happened is not None else step.status
        entry = Undoable(run.id, step.n, step.name, recorded.get("args", {}), status)
        task = Task(entry=entry, begun=_begun(run, step.n))
        accepted = step.accepted or step.n in self.request.accept
        task.happened = False if accepted else ("told" in undo and status == "ok") or None
        before: dict[str, Any] = {}
        if "before" in undo:
            before = yield from self._revived(undo["before"])
            task.was = recorded_states(before, undo.get("keyed", {}), attempt.seal)
            task.after = undo.get("after")
        if status == "error" and not step.unclear and task.after in (None, task.was):
            return None
        if accepted:
            return task
        task.contract, missing = self._contract(step, needed="before" in undo)
        if task.contract is not None:
            task.values = task.contract.bind(arguments_of(args), attempt.seal).values
        data = yield from self._plan(task, step, before, missing)
        if data is not None and task.happened is not False:
            task.plan = tuple(PlannedCall(c["name"], c["version"], c["args"]) for c in data)
            for each in task.plan:
                task.calls.append((yield from self._callable(each)))
        if step.unclear and task.plan is None and task.happened is None:
            task.entry = dataclasses.replace(entry, status="unknown")
        if task.was is not None:
            task.now = yield from _state_now(attempt, task, is_async=self.is_async)
        return task

    def _plan(
        self, task: Task, step: Step, before: Mapping[str, Any], missing: str
    ) -> Generator[Any, Any, list[dict[str, Any]] | None]:
        """Return the recorded plan of a step, or make a plan from the facts; None without one."""
        undo = step.undo or {}
        data: list[dict[str, Any]] | None = undo.get("plan")
        if task.entry.status == "unknown":
            if task.contract is None:
                task.reason = f"its outcome is unknown, and its probe can't be called: {missing}"
            else:
                data = (yield from self._asked(task, step, before)) or data
        elif data is None and "reversible" in undo and "plan" not in undo:
            data = yield from self._planned_late(task, step, before, missing)
        other = self._foreign.get(step.n)
        if data is not None and other is not None:
            run, n = (other.once or ("", 0))[:2]
            whose = f"step {n}" if run == self.attempt.run.id else "another run"
            task.reason = f"its plan would take back what {whose} did, too"
            return None
        if data is None:
            return None
        for each in (step, *self.attempt.run.body(step)):
            why = self._why_it_stays(each)
            if why:
                inside = "" if each is step else f"its plan would take back step {each.n}, too: "
                task.reason = inside + why
                return None
        return data

    def _why_it_stays(self, step: Step) -> str:
        """Say which call was answered with the effect of a step, and stays; empty without one."""
        answered = self._answered.get(step.n)
        if answered is not None:
            return f"step {answered.n} was answered with its effect, and stays"
        return self.told.get(step.n, "")

    def _line(self, step: Step) -> Generator[Any, Any, Event]:
        """Return the line of a step whose arguments the fold does not keep."""
        if self._lines is None:
            store, run = self.attempt.store, self.attempt.run.id
            lines: list[bytes] = yield consult(store.read, self.is_async, run)
            self._lines = {}
            for line in lines:
                if line.startswith(b'{"event":"step"'):
                    event: Event = orjson.loads(line)
                    self._lines[event["step"]] = event
        return self._lines.get(step.n, {})

    def _revived(self, values: Mapping[str, Any]) -> Generator[Any, Any, dict[str, Any]]:
        if all(not isinstance(value, dict) for value in values.values()):
            return dict(values)
        found: dict[str, Any] = yield consult(revived, self.is_async, self.attempt.store, values)
        return found

    def _contract(self, step: Step, *, needed: bool) -> tuple[Contract | None, str]:
        """Return the contract of a step's tool, or why it is missing; required to observe."""
        version = None if step.undo is None else step.undo.get("version", "")
        try:
            contract = self.attempt.tools.find(step.name, version).contract
            self.attempt.session.gate.check_undo(contract)
        except (ToolMissing, SessionError) as error:
            if needed:
                raise
            return None, str(error)
        if needed and contract.observe is None:
            message = f"tool {step.name!r} observed what it changes, and declares no observe now"
            raise ToolMissing(message, step.name)
        return contract, ""

    def _asked(
        self, task: Task, step: Step, before: Mapping[str, Any]
    ) -> Generator[Any, Any, list[dict[str, Any]] | None]:
        """Ask for the outcome of a step in doubt; return its plan, if the plan needed a result."""
        attempt, contract = self.attempt, task.contract
        assert contract is not None
        known = yield from self._probed(task, step, before)
        line: Event = {"event": "outcome", "step": step.n, "by": "probe"}
        if task.happened is False and self.records:
            attempt.note({**line, "outcome": None})
        if known is None:
            return None  # the assessment covers the observed state and all later steps
        made = None
        if contract.undo is not None and "result" in contract.undo_words:
            made = line["plan"] = plan_of(contract, _place_of(attempt, step), known)
        if self.records:
            outcome = success(contract, known["result"], attempt.seal, attempt.types)
            attempt.note(line, outcome)
        return made

    def _probed(
        self, task: Task, step: Step, before: Mapping[str, Any]
    ) -> Generator[Any, Any, dict[str, Any] | None]:
        """Ask a tool's probe whether a call happened; if so, return what its plan is made of."""
        contract = task.contract
        assert contract is not None
        if contract.probe is None:
            return None
        key = self.attempt.run.idempotency_key(step)
        known = {"args": dict(task.values), "key": key, "before": plain(before)}
        words = {word: known[word] for word in contract.probe_words}
        try:
            probe = looking(_place_of(self.attempt, step), contract, "probe")
            answer = yield consult(probe, self.is_async, **words)
        except (Halt, SessionHalted):
            raise
        except Exception as error:  # noqa: BLE001 - told in the report
            task.reason = task.reason or f"its probe failed: {_described(self.attempt, error)}"
            return None
        if isinstance(answer, (Happened, DidNotHappen)):
            task.happened = isinstance(answer, Happened)
        return {**known, "result": answer.result} if isinstance(answer, Happened) else None

    def _planned_late(
        self, task: Task, step: Step, before: Mapping[str, Any], missing: str
    ) -> Generator[Any, Any, list[dict[str, Any]] | None]:
        """Plan a step whose outcome was recorded later by a person or a probe."""
        attempt, contract = self.attempt, task.contract
        task.reason = f"its plan was not made: {missing or 'its tool declares no undo now'}"
        if contract is None or contract.undo is None:
            return None
        if step.status == "error" and step.happened is None:
            task.reason = "it failed, and its undo needs its result"
            found = yield from self._probed(task, step, before)
            return None if found is None else plan_of(contract, _place_of(attempt, step), found)
        recorded = copy.copy(step)
        recorded.outcome = step.happened or step.outcome
        try:
            result = yield consult(
                given,
                self.is_async,
                contract,
                recorded,
                attempt.types,
                functools.partial(fetched, attempt.store),
            )
            known = {"args": dict(task.values), "before": plain(before), "result": result}
            return plan_of(contract, _place_of(attempt, step), known)
        except Exception as error:  # noqa: BLE001 - said in the report
            task.reason = f"its plan could not be made: {_described(attempt, error)}"
            return None

    def _callable(self, each: PlannedCall) -> Generator[Any, Any, tuple[Tool, dict[str, Any]]]:
        """Return a compensating call in executable form."""
        tool = self.attempt.tools.find(each.name, each.version, callable_=True)
        self.attempt.session.gate.check_undo(tool.contract)
        if inspect.iscoroutinefunction(tool.body) and not self.is_async:
            raise SessionError(
                f"{each.name} is async: await the undo (aundo, aundo_run, async with)"
            )
        args = yield from self._revived(each.args)
        values = arguments_of(args)
        tool.contract.bind(values, self.attempt.seal)  # or it is refused here
        return tool, values


def _withheld(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a body that runs a compensation, and withholds its result and its error.

    It restores a state in which the log conceals a secret, and may quote that. This attempt can't
    conceal a secret that only the attempt before it was told.
    """

    @contextlib.contextmanager
    def silenced() -> Iterator[None]:
        try:
            yield
        except (Halt, SessionHalted):
            raise
        except Exception as error:  # its cause still tells whether an answer got lost
            raise RuntimeError(f"{type(error).__name__}, {_WITHHELD}") from error

    def run(**values: Any) -> str:
        with silenced():
            body(**values)
        return _WITHHELD

    async def arun(**values: Any) -> str:
        with silenced():
            await body(**values)
        return _WITHHELD

    return arun if inspect.iscoroutinefunction(body) else run


def _session_of(attempt: Attempt, step: Step) -> Session:
    """Return the innermost open session around a step, whose gate decides on its undo."""
    place = here.get()
    if place is not None and place.session.around is not None:
        return attempt.session.seen_from(place)  # the undo belongs to the nested session
    for level in attempt.run.lineage_of(step) if attempt.inner else ():
        if level.branch in attempt.inner:
            return attempt.inner[level.branch]
    return attempt.session


def _place_of(attempt: Attempt, step: Step) -> Place:
    """Return the place of a step, for the functions of its tool."""
    return Place(attempt, _session_of(attempt, step), step.branch)


def _foreign(run: Run) -> dict[int, Step]:
    """Return, by number of a call, a write in its body that another run or step has made.

    Only that run or step takes it back. The plan of a call names what answered in its body, too,
    even if a transaction in the body was rolled back behind the answer.
    """
    found: dict[int, Step] = {}
    for step in run.steps.values():
        is_answered = _is_answered(step)
        if step.effect != "write" or not (step.borrowed or is_answered):
            continue
        for owner in around(run, step):
            if not step.gone or (is_answered and step.n > owner.n):
                found.setdefault(owner.n, step)
    return found


def _is_answered(step: Step) -> bool:
    """Tell whether a call with a key was answered with the effect of another call."""
    return step.once is not None and step.once[0] != "mine"


def _answered(run: Run, numbers: set[int]) -> dict[int, Step]:
    """Return, by number of a step, a step that stays and was answered with the effect of it."""
    found: dict[int, Step] = {}
    for step in run.held():
        maker = _maker(run, step)
        if maker is not None and step.n not in numbers and not step.rolled:
            found[maker.n] = step
    return found


def _maker(run: Run, step: Step) -> Step | None:
    """Return the step of the run with whose effect a step was answered; None without one."""
    if step.once is None or step.once[0] != run.id:
        return None
    maker = run.steps[step.once[1]]
    while maker.replacement:
        maker = run.steps[maker.replacement]
    return maker


def _stands_for_calls(step: Step, *, is_undone: bool) -> bool:
    """Tell whether the plan of a call covers the calls of its body as well."""
    if step.effect != "write" or (step.undo or {}).get("plan") is None:
        return False
    return step.status == "ok" or is_undone


def _state_now(attempt: Attempt, task: Task, *, is_async: bool) -> Generator[Any, Any, Digests]:
    """Return the current states that a step has changed.

    Raises:
        SessionError: the states can't be observed.
    """
    assert task.contract is not None
    place = _place_of(attempt, attempt.run.steps[task.entry.step])
    try:
        observe = looking(place, task.contract, "observe")
        observed = yield consult(observe, is_async, dict(task.values))
        return states_of(observed, attempt).states
    except (Halt, SessionHalted):
        raise
    except Exception as error:
        message = f"its state can't be observed: {_described(attempt, error)}"
        raise SessionError(message) from error
