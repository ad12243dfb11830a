"""One universe: jobs, workers, an operator and what befalls them, all of it from one seed.

Every universe comes to an end: after so many faults, nature leaves it alone, stop orders are lifted
and the workers bring all jobs to their end. Then what is left is held against what must hold.
"""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

import orjson
from rollcage import (
    Approval,
    ApprovalRequired,
    Blocked,
    RollcageError,
    RunPruned,
    RunStopped,
    StepView,
    UnknownOutcome,
    Verdict,
)
from rollcage.errors import (
    ControlLost,
    RunInUse,
    StoreError,
    TraceCorrupt,
    TraceUnwritable,
    UndoIncomplete,
)
from rollcage.gate import ApprovalQueue, QueueApprover
from rollcage.step.clock import Clock
from rollcage.store import RunInfo, StopOrder, Store, check_attested, system
from rollcage.trace import Worlds, check_events

from tests.simulation import chance
from tests.simulation.outside import CURRENT, Job, Outside, Worker
from tests.simulation.pauses import Overseer
from tests.simulation.places import Place, places
from tests.simulation.scheduler import Process, Scheduler, Violation

__all__ = ["Universe", "replay"]

# What a session, or an operator, may meet: somebody else, an order, or a store that is not there.
EXPECTED = {
    ApprovalRequired, ControlLost, RunInUse, RunPruned, RunStopped, StoreError, TraceUnwritable,
    UnknownOutcome,
}  # fmt: skip
HOUR = 3_600 * 10**9  # ns


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
        self.stops_left = random.randint(0, 3)
        self.overseer = Overseer(self)
        self.rate = random.choice((0.002, 0.01, 0.03))
        self.jumps = random.random() < 0.3  # clocks do
        self.asks = not self.jumps and random.random() < 0.3  # for leave to do some calls
        self.prunes_left = random.randint(0, 2)
        self.copies_left = random.randint(0, 2)
        self.scheduler.switches = random.choice((0.02, 0.1, 0.4))
        self.scheduler.nature = self._nature
        self.scheduler.buried = self._buried
        self._names = 0
        self.pruned: set[str] = set()  # runs whose traces may be gone
        self._ordered: set[str] = set()  # runs that were told to stop, and that nobody let go on

    def _job(self, number: int, *, flat: bool) -> Job:
        is_flat = self.random.random() < 0.4 or flat
        make = chance.flat if is_flat else chance.program
        return Job(f"job-{number}", make(self.random), flat=is_flat)

    @property
    def is_done(self) -> bool:
        return all(job.is_over for job in self.jobs)

    @property
    def story(self) -> str:
        """What has happened, without the single calls."""
        return "\n".join(line for line in self.scheduler.log if " * " in line)

    # --- what befalls it -------------------------------------------------------------------------

    def _nature(self) -> None:
        """At each point: perhaps something happens."""
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
        """The processes that could be struck."""
        return [each for each in self.scheduler.processes if each.alive and not each.ended]

    def _buried(self, process: Process) -> None:
        """A process has died: what it held is free, and another one takes its place."""
        self.place.buried(process)
        self.workers.pop(process, None) if process is not self.scheduler.current else None
        if process.name.startswith("operator"):
            self._start("operator", self._operates)
        elif process.name.startswith("overseer"):
            self._start("overseer", self.overseer.oversees)
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
        worker = Worker(self, lambda: self.place.store(process), clock)
        worker.process = process or Process("-", lambda: None)
        self.workers[process] = worker
        return worker

    # --- what they do ----------------------------------------------------------------------------

    def _works(self, worker: Worker) -> None:
        """A worker: it does what is left to be done."""
        while left := [job for job in self.jobs if not job.is_over]:
            job = self.random.choice(left)
            gate = {"rules": [_asks], "approver": QueueApprover(worker.store)} if self.asks else {}
            try:
                run = worker.do(job, replay="continue", durability=self.place.durability, **gate)
            except RunPruned as error:  # by whoever saw that it is done
                self.scheduler.note(f"{job.name} was done: {_line(error)}")
                job.done = job.done or "pruned"
            except UnknownOutcome as unknown:
                self.scheduler.note(f"{job.name} does not know of step {unknown.step}")
                worker.wait_for_others(job)
                self.attempt(worker.resolve, unknown.run, unknown.step)
            except RollcageError as error:
                self.expected(error)
                job.lost = isinstance(_reason(error), TraceCorrupt)
                self.scheduler.note(f"{job.name} is left: {_line(error)}")
                self.scheduler.sleep(self.random.random() * 5)
            else:
                self.scheduler.note(f"{job.name} is done in {run}")
                if job.finished and _labels(job.given) != _labels(worker.given):
                    self._violated(f"{job.name} gave {job.given}, and now {worker.given}")
                job.done, job.given = run, worker.given
                job.finished.append(run)

    def _operates(self, worker: Worker) -> None:
        """An operator: it looks at the store, repairs it, and tells runs to stop."""
        for run in sorted(self._ordered):  # by one who was killed
            self._lifts(worker, run)
        while not self.is_done:
            self.scheduler.sleep(2 * self.random.random() ** 4)
            self._approves(worker)
            what = self.random.choice(("repair", "prune", "copy", "stop", "stop", "stop"))
            if what == "repair":
                self.attempt(worker.store.repair)
                continue
            runs = self.attempt(worker.store.runs) or []
            if what == "prune" and runs and self.prunes_left:
                self.prunes_left -= 1
                self._prunes(worker, self.random.choice(runs))
            if what == "copy" and runs and self.copies_left:
                self.copies_left -= 1
                self.attempt(self.place.copy, worker.store, self.random.choice(runs))
            if what == "stop" and runs and self.stops_left:
                self.stops_left -= 1
                self._stops(worker, self.random.choice((*runs, *[runs[-1]] * len(runs))).run)

    def _approves(self, worker: Worker) -> None:
        """Whatever is asked for may be done, once."""
        queue = ApprovalQueue(worker.store)
        for approval in self.attempt(queue.ids) or () if self.asks else ():
            queued = self.attempt(queue.get, approval)
            if queued is not None and queued.decision is None and not queued.use:
                self.scheduler.note(f"{approval} is approved")
                decide = functools.partial(queue.decide, now=queued.request.at)
                self.attempt(decide, approval, Approval(True, by="operator"))

    def _prunes(self, worker: Worker, info: RunInfo) -> None:
        """The trace of a run that has done its job goes, whoever may be about to go on with it."""
        if info.status != "ok" or not self.place.prunes:
            return
        run: str | None = info.run
        while run is not None:  # and those that it builds on, each if it may go
            self.scheduler.note(f"{run} is to be pruned")
            self.pruned.add(run)  # from now on, it may be gone
            try:
                worker.store.prune(run, by="operator", time=1)
                run = worker.store.info(run).source
            except RollcageError as error:
                self.expected(error)
                self.scheduler.note(f"{run} stays: {_line(error)}")
                return

    def _stops(self, worker: Worker, run: str) -> None:
        order = StopOrder(run, "operator", "by chance", self.scheduler.now // 1000)
        self._ordered.add(run)
        self.overseer.stops()
        try:
            worker.store.stop(order)
        except RollcageError as error:  # nobody knows whether it is told
            self.expected(error)
            self.scheduler.note(f"{run} may not be stopped: {_line(error)}")
        else:
            self.scheduler.note(f"{run} is told to stop")
            self.stopped[run] = self.scheduler.points
            self.scheduler.sleep(self.random.random() * 5)
        self._lifts(worker, run)

    def _lifts(self, worker: Worker, run: str) -> None:
        self.stopped.pop(run, None)
        while True:
            try:
                worker.store.lift(run, "stop")
            except RollcageError as error:
                self.expected(error)
                if isinstance(error, TraceCorrupt | RunPruned):  # nobody goes on with it any more
                    return
                self.scheduler.sleep(1)
            else:
                self._ordered.discard(run)
                self.scheduler.note(f"{run} may go on")
                return

    def attempt(self, what: Callable[..., Any], *given: Any) -> Any:
        try:
            return what(*given)
        except RollcageError as error:
            self.expected(error)
            self.scheduler.note(f"fails: {_line(error)}")
            return None

    def expected(self, error: RollcageError) -> None:
        """Whether an error is one that may end a session here."""
        reason = _reason(error)
        if self.place.damaged and isinstance(reason, TraceCorrupt | UndoIncomplete):
            return
        unheard = isinstance(error, Blocked) and "approver failed: StoreError" in str(error)
        if type(reason) not in EXPECTED and not unheard:
            self._violated(f"{type(error).__name__}: {error}")

    def _violated(self, what: str) -> None:
        self.scheduler.fail(Violation(what))

    def begins(self, run: str, step: int, issued: int) -> None:
        lines = self.place.recorded(run)
        wanted = f'"step":{step},'.encode()
        if not any(b'"step.started"' in line and wanted in line for line in lines.split(b"\n")):
            self._violated(f"the body of step {step} of {run} runs, and its intent is not kept")
        source: str | None = run
        while source is not None:
            for orders, what in ((self.stopped, "stop"), (self.overseer.paused, "wait")):
                since = orders.get(source)
                if since is not None and since < issued:
                    self._violated(f"a body runs in {run}, and {source} was told to {what} before")
            first = self.place.recorded(source).partition(b"\n")[0]
            source = orjson.loads(first).get("source") if first else None

    # --- from the beginning to the end -----------------------------------------------------------

    def run(self) -> None:
        """Let it happen, and look at what is left. Raises Violation."""
        with self._there():
            for _ in range(self.workers_left):
                self._start("worker", self._works)
            self._start("operator", self._operates)
            if self.overseer.left:
                self._start("overseer", self.overseer.oversees)
            self.scheduler.run()
            self.scheduler.nature = self.place.passes
            self.place.heal()
            self._look()

    @contextmanager
    def _there(self) -> Iterator[None]:
        before, collects = (system.files, system.locks), gc.isenabled()
        gc.disable()  # what is collected would come to its points in whichever process runs
        CURRENT.outside = self
        self.place.enter()
        try:
            with self.overseer.there():
                yield
        finally:
            system.files, system.locks = before
            CURRENT.outside = None
            if collects:
                gc.enable()

    def _look(self) -> None:
        """What is left, by somebody who is not in it."""
        worker = self._worker(None)
        store = worker.store
        try:
            store.repair()
            listed = {info.run: info for info in store.runs()}
        except TraceCorrupt:
            if not self.place.damaged:
                raise
            return  # nobody can tell which job it is of: that is told, and nothing is done
        self._look_at_runs(store, listed)
        self.place.look_at_copies()
        whole = [] if self.place.damaged else self.jobs
        for job in whole:
            last = listed[job.finished[-1]] if job.finished else None
            if last is not None and last.pruned is None:
                worker.do(job, replay="offline", source=(store, last.run))
                if worker.given != job.given:
                    self._violated(f"{job.name} gave {job.given}, and offline {worker.given}")
        for job in whole:  # last: elsewhere
            expected = self._reference(job)
            if job.world.effects != expected:
                self._violated(f"{job.name}: {job.world.effects} is not {expected}")

    def _look_at_runs(self, store: Store, listed: Mapping[str, RunInfo]) -> None:
        """Whether all that began are listed, as they ended, and each trace is whole."""
        there = self.place.traces() | {run for run in listed if listed[run].pruned is not None}
        if not there - self.place.damaged <= set(listed) <= there:
            self._violated(f"listed: {sorted(listed)}, there: {sorted(there)}")
        for run, info in listed.items():
            if info.pruned is None:
                self._verify(store, run)
            elif run not in self.pruned:
                self._violated(f"{run} is listed as pruned, and nobody has pruned it")
        for job in self.jobs:
            for run in job.finished:
                if run not in self.place.damaged and (
                    run not in listed or listed[run].status != "ok"
                ):
                    self._violated(f"{run} has finished, and is not listed so")

    def _verify(self, store: Store, run: str) -> None:
        """Whether a trace verifies, and whether one that has rotted does not."""
        error: TraceCorrupt | None = None
        try:
            trace = store.read(run)
            worlds = Worlds()
            for event in check_events(trace.data, trace.where):
                wrong = worlds.follow(event)
                if wrong is not None:
                    self._violated(f"{run}: {wrong}")
            check_attested(trace)
        except TraceCorrupt as corrupt:
            error = corrupt
        if (error is not None) != (run in self.place.damaged):
            self._violated(f"{run}: {error or 'something has rotted in it, and nobody can tell'}")

    def _reference(self, job: Job) -> Counter[str]:
        """The effects of a job where nothing befalls it."""
        alone = Job(job.name, job.program, flat=False)
        worker = self._worker(None)
        self.place.enter_empty()
        worker._store = None
        for _ in range(100):
            try:
                worker.do(alone, durability=self.place.durability)
            except UnknownOutcome as unknown:
                worker.resolve(unknown.run, unknown.step)
            else:
                return alone.world.effects
        raise AssertionError(job.name)


def _asks(step: StepView) -> Verdict | None:
    """Whether a call needs leave."""
    return Verdict.ask("is that so?") if step.name == "plain" else None


def _labels(given: list[str]) -> list[str]:
    """What calls gave, without their keys: what was taken back is done again with a new one."""
    return sorted(" ".join(each.partition("#")[0] for each in text.split()) for text in given)


def _reason(error: BaseException) -> BaseException:
    """What kept a transaction from being undone, where that ended a session."""
    is_undo = isinstance(error, UndoIncomplete) and error.__cause__ is not None
    return error.__cause__ or error if is_undo else error


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"


def replay(seed: int, place: str, *, flat: bool = False) -> tuple[Universe, BaseException | None]:
    """One universe, and what was wrong with it."""
    universe = Universe(seed, place, flat=flat)
    try:
        universe.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed shows it again
        return universe, error
    return universe, None
