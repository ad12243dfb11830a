"""One universe: jobs, workers, an operator and what befalls them, all of it from one seed.

Every universe comes to an end: after so many faults, nature leaves it alone, orders are lifted and
the workers bring all jobs to their end. Then what is left is held against what must hold.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from rollcage import (
    Approval,
    ApprovalQueue,
    ApprovalRequired,
    Clock,
    Fenced,
    QueueApprover,
    RollcageError,
    RunStopped,
    StepNotUnknown,
    StepView,
    UndoIncomplete,
    UnknownOutcome,
    Verdict,
    lift_order,
    pause_run,
    run_info,
    stop_run,
)
from rollcage.errors import (
    ApprovalInvalid,
    ControlLost,
    OrderRefused,
    RunInUse,
    StoreError,
    TraceCorrupt,
    TraceUnwritable,
)
from rollcage.stages import once, orders, queue
from rollcage.trace import folder, seal
from rollcage.trace import resolution as resolving
from rollcage.trace.run import fold_log

from tests.laws import lab
from tests.laws.lab import Given
from tests.laws.lab import Place as At
from tests.simulation import chance
from tests.simulation.machine import System, Time
from tests.simulation.outside import CURRENT, Job, Outside, Worker
from tests.simulation.places import Place, places
from tests.simulation.scheduler import Process, Scheduler, Violation

__all__ = ["Universe", "replay"]

# What a session, or an operator, may meet: somebody else, an order, or a store that is not there.
EXPECTED = {
    ApprovalRequired, ControlLost, Fenced, OrderRefused, RunInUse, RunStopped, StepNotUnknown,
    StoreError, TraceUnwritable, UnknownOutcome,
}  # fmt: skip
HOUR = 3_600 * 10**9  # ns
TIMED = (folder, once, orders, queue, resolving)
"""The modules that look at a clock, or sleep, themselves."""


class Universe(Outside):
    """Everything that there is.

    Args:
        seed: everything follows from it.
        place: where its store is, of `places`.
        flat: all calls of a program come one after the other.
    """

    def __init__(self, seed: int, place: str, *, flat: bool = False) -> None:
        random = Random(f"rollcage {seed}")  # noqa: S311 - reproducible
        super().__init__(Scheduler(random))
        self.seed = seed
        self.random = random
        self.place: Place = places[place](self)
        self.jobs = [self._job(number, flat=flat) for number in range(random.choice((1, 1, 2)))]
        self.workers_left = random.randint(1, 3)
        self.faults_left = random.randint(0, 12)
        self.orders_left = random.randint(0, 4)
        self.rate = random.choice((0.005, 0.02, 0.08))
        self.jumps = random.random() < 0.3  # clocks do
        self.asks = not self.jumps and random.random() < 0.3  # for leave to do some calls
        self.takes = random.choice((0, 0, 0.2))  # how likely a worker takes a live run over
        self.scheduler.switches = random.choice((0.02, 0.1, 0.4))
        self.scheduler.nature = self._nature
        self.scheduler.buried = self._buried
        self._names = 0
        self.ordered: dict[str, tuple[int, str]] = {}  # runs with an order, from which point on
        self._to_lift: set[str] = set()  # runs that were given one, and that nobody let go on

    def _job(self, number: int, *, flat: bool) -> Job:
        is_flat = self.random.random() < 0.4 or flat
        make = chance.flat if is_flat else chance.program
        job = Job(f"job-{number}", make(self.random))
        job.effects.outside = self
        job.effects.is_flat = is_flat
        return job

    @property
    def is_done(self) -> bool:
        return all(job.is_over for job in self.jobs)

    @property
    def story(self) -> str:
        """Return what has happened, without the single calls."""
        return "\n".join(line for line in self.scheduler.log if " * " in line)

    # --- what befalls it -------------------------------------------------------------------------

    def _nature(self) -> None:
        """Perhaps have something happen, at each point."""
        self.place.passes()
        if self.faults_left and self.random.random() < self.rate:
            self.faults_left -= 1
            if self.random.random() < 0.4:
                self.scheduler.kill(self.random.choice(self.living()), "by chance")
            else:
                self.place.fault()
            if not self.faults_left:
                self.scheduler.note("from now on, nothing befalls it")
                self.place.heal()

    def living(self) -> list[Process]:
        """Return the processes that could be struck."""
        return [each for each in self.scheduler.processes if each.alive and not each.ended]

    def _buried(self, process: Process) -> None:
        """Free what a dead process held, and have another one take its place."""
        self.place.buried(process)
        self.workers.pop(process, None) if process is not self.scheduler.current else None
        if process.name.startswith("operator"):
            self._start("operator", self._operates)
        else:
            self._start("worker", self._works)

    def _start(self, kind: str, work: Callable[[Worker], None]) -> None:
        self._names += 1
        process: Process

        def begin() -> None:
            self.scheduler.sleep(self.random.random() ** 2 * (1 if self._names < 5 else 5))
            work(self._worker(process))

        process = self.scheduler.start(f"{kind}-{self._names}", begin)

    def _worker(self, process: Process | None) -> Worker:
        off = self.random.randint(-2, 2) * HOUR if self.jumps else 0

        def wall() -> int:
            jump = self.random.randint(-2, 2) * HOUR if self.jumps else 0
            return self.scheduler.now + off + jump

        clock = Clock(wall=wall, monotonic=lambda: self.scheduler.now, random=self.random.randbytes)
        worker = Worker(self, self.place.store, clock)
        worker.process = process or Process("-", lambda: None)
        self.workers[process] = worker
        return worker

    # --- what they do ----------------------------------------------------------------------------

    def _works(self, worker: Worker) -> None:
        """Do what is left to be done, as a worker."""
        while left := [job for job in self.jobs if not job.is_over]:
            job = self.random.choice(left)
            gate: dict[str, Any] = {}
            if self.asks:
                gate = {"gate": [_asks], "approver": QueueApprover(worker.store)}
            take = self.random.random() < self.takes
            attempt = worker.do(job, replay="continue", take=take, **gate)
            error = attempt.error
            if isinstance(error, UnknownOutcome):
                self.scheduler.note(f"{job.name} does not know of step {error.step}")
                worker.wait_for_others(job)
                self.attempt(worker.says, job, error.run, error.step)
            elif isinstance(error, RollcageError):
                self.expected(error)
                job.lost = isinstance(_reason(error), TraceCorrupt)
                self.scheduler.note(f"{job.name} is left: {_line(error)}")
                self.scheduler.sleep(self.random.random() * 5)
            elif error is not None:
                raise error
            else:
                self.scheduler.note(f"{job.name} is done in {attempt.run}")
                if job.given and _labels(attempt.given) != _labels(job.given):
                    self._violated(f"{job.name} gave {job.given}, and now {attempt.given}")
                job.given = attempt.given
                if not self.others(worker, job):
                    job.done = attempt.run
                else:  # one of them goes on with it, once nobody else is in it
                    self.scheduler.sleep(1)

    def _operates(self, worker: Worker) -> None:
        """Tell runs to stop or to wait, and approve what is asked for, as an operator."""
        for run in sorted(self._to_lift):  # by one who was killed
            self._lifts(worker, run)
        while not self.is_done:
            self.scheduler.sleep(2 * self.random.random() ** 4)
            if self.asks:
                self._approves(worker)
            runs = self.attempt(worker.store.runs) or []
            if runs and self.orders_left:
                self.orders_left -= 1
                give = self.random.choice((stop_run, pause_run))
                self._orders(worker, self.random.choice(runs).run, give)

    def _approves(self, worker: Worker) -> None:
        waiting = ApprovalQueue(worker.store)
        for request in self.attempt(waiting.waiting) or ():
            self.scheduler.note(f"{request.id} is approved")
            with contextlib.suppress(ApprovalInvalid):  # by one who was killed behind it
                self.attempt(waiting.decide, request.id, Approval(True, by="operator"))

    def _orders(self, worker: Worker, run: str, give: Callable[..., Any]) -> None:
        what = give.__name__.partition("_")[0]
        self._to_lift.add(run)
        try:
            give(worker.store, run, by="operator", reason="by chance")
        except RollcageError as error:  # nobody knows whether it is told
            self.expected(error)
            self.scheduler.note(f"{run} may not be told to {what}: {_line(error)}")
        else:
            self.scheduler.note(f"{run} is told to {what}")
            self.ordered[run] = self.scheduler.points, what
            self.scheduler.sleep(self.random.random() * 8)
        self._lifts(worker, run)

    def _lifts(self, worker: Worker, run: str) -> None:
        self.ordered.pop(run, None)
        while True:
            try:
                lift_order(worker.store, run)
            except RollcageError as error:
                self.expected(error)
                if isinstance(error, TraceCorrupt):  # nobody goes on with it any more
                    return
                self.scheduler.sleep(1)
            else:
                self._to_lift.discard(run)
                self.scheduler.note(f"{run} may go on")
                return

    def attempt(self, what: Callable[..., Any], *given: Any) -> Any:
        """Do something that may fail here; None where it does."""
        try:
            return what(*given)
        except ApprovalInvalid:
            raise
        except RollcageError as error:
            self.expected(error)
            self.scheduler.note(f"fails: {_line(error)}")
            return None

    def expected(self, error: RollcageError) -> None:
        """Check that an error is one that may end a session here."""
        reason = _reason(error)
        if self.place.damaged and isinstance(reason, TraceCorrupt | UndoIncomplete):
            return
        if type(reason) not in EXPECTED:
            self._violated(f"{type(error).__name__}: {error}")

    def _violated(self, what: str) -> None:
        self.scheduler.fail(Violation(what))

    def begins(self, run: str, step: int, issued: int) -> None:
        lines = self.place.recorded(run)
        wanted = f'"event":"step","step":{step},'.encode()
        if not any(wanted in line for line in lines.split(b"\n")):
            self._violated(f"the body of step {step} of {run} runs, and its intent is not kept")
        since, what = self.ordered.get(run, (issued, ""))
        if since < issued:
            self._violated(f"a body runs in {run}, which was told to {what} before")

    # --- from the beginning to the end -----------------------------------------------------------

    def run(self) -> None:
        """Let it happen, and look at what is left. Raises Violation."""
        with self._there():
            for _ in range(self.workers_left):
                self._start("worker", self._works)
            self._start("operator", self._operates)
            self.scheduler.run()
            self.scheduler.nature = self.place.passes
            self.place.heal()
            self._look()

    @contextmanager
    def _there(self) -> Iterator[None]:
        collects = gc.isenabled()
        gc.disable()  # what is collected would come to its points in whichever process runs
        CURRENT.outside = self
        tools: Any = lab._tools()
        before = getattr(tools, "lab", None)
        tools.lab = CURRENT  # it is the worker that runs
        clock = System(time, Time(self.scheduler))
        chance = System(os, _Chance(self.random))
        with ExitStack() as there:
            for module in TIMED:
                there.enter_context(patch.object(module, "time", clock))
            for module in (seal, orders, queue, once):
                there.enter_context(patch.object(module, "os", chance))
            there.enter_context(self.place.there())
            try:
                yield
            finally:
                for each in gc.get_objects():  # their files are no real ones
                    if isinstance(each, folder.FolderLog):
                        each._file = each._unread = -1
                CURRENT.outside = None
                tools.lab = before  # it was none before the first lab
                if collects:
                    gc.enable()

    def _look(self) -> None:
        """Look at what is left, as somebody who is not in it."""
        worker = self._worker(None)
        for ends in worker.store.runs():
            self._verify(worker, ends.run)
        whole = [] if self.place.damaged else self.jobs
        refused: list[Job] = []  # their programs were told that some calls are not made
        for job in whole:
            if any(
                b'"code":"approval_unavailable"' in each for each in worker.store.read(job.done)
            ):
                refused.append(job)
            if run_info(worker.store, job.done).status != "ok":
                self._violated(f"{job.done} has finished, and is not listed so")
            told = worker.do(job, replay="offline", run=job.done)
            if told.error is not None or told.given != job.given:
                self._violated(f"{job.name} gave {job.given}, offline {told.given}: {told.error}")
        for job in whole:  # last: elsewhere
            expected = self._reference(job)
            if job in refused and job.effects.effects <= expected:
                continue
            if job.effects.effects != expected:
                self._violated(f"{job.name}: {job.effects.effects} is not {expected}")

    def _verify(self, worker: Worker, run: str) -> None:
        """Check that a log can be read, and that one in which something has rotted can't."""
        error: TraceCorrupt | None = None
        try:
            fold_log(worker.store.read(run), run, {})
        except TraceCorrupt as corrupt:
            error = corrupt
        if (error is not None) != (run in self.place.damaged):
            self._violated(f"{run}: {error or 'something has rotted in it, and nobody can tell'}")

    def _reference(self, job: Job) -> Counter[str]:
        """Return the effects of a job where nothing befalls it."""
        alone = Job(job.name, job.program)
        self.place.empty()
        worker = self._worker(None)
        self.ordered.clear()
        for _ in range(100):
            attempt = worker.do(alone)
            if attempt.error is None:
                return alone.effects.effects
            if not isinstance(attempt.error, UnknownOutcome):
                raise attempt.error
            worker.says(alone, attempt.error.run, attempt.error.step)
        raise AssertionError(job.name)


class _Chance:
    """What is random follows from the seed."""

    def __init__(self, random: Random) -> None:
        self.urandom = random.randbytes


def _asks(step: StepView) -> Verdict | None:
    """Ask for leave for some calls."""
    return Verdict.ask("is that so?") if step.name == "plain" else None


def _labels(given: Mapping[At, Given]) -> dict[At, str]:
    """What calls gave, not which time: a block that was taken back is done again."""
    return {at: re.sub(r"\.\d+\b", "", f"{said}") for at, said in given.items()}


def _reason(error: BaseException) -> BaseException:
    """What kept a transaction from being undone, where that ended a session."""
    is_undo = isinstance(error, UndoIncomplete) and error.__cause__ is not None
    return error.__cause__ or error if is_undo else error


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"


def replay(seed: int, place: str, *, flat: bool = False) -> tuple[Universe, BaseException | None]:
    """Let one universe happen; return it, and what was wrong with it."""
    universe = Universe(seed, place, flat=flat)
    try:
        universe.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed shows it again
        return universe, error
    return universe, None
