"""What is outside of any log: effects, who may ask about them, and the processes that make them.

The tools and programs are those of the laws' lab (`tests/laws/lab.py`), called without a loop: a
process is one thread. A write that comes twice is done twice, and is a violation.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rollcage import Clock, Options, Session, SessionHalted, Store, current_step

from tests.laws import lab
from tests.laws.lab import Attempt, Given, Lab, Place, World
from tests.laws.programs import Program
from tests.laws.timeline import Deed, Moment, Timeline
from tests.simulation.scheduler import Process, Scheduler, Violation

__all__ = ["CURRENT", "Job", "Outside", "Worker"]


class Effects(Timeline):
    """What the writes of one job have done. Each takes a while, and so does its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: Outside | None = None  # None: nobody else is there
        self.is_flat = False  # it is known which effect was the last one

    def stands(self, key: str) -> Deed | None:
        """Answer a probe, once nobody is about to do that effect."""
        worker = CURRENT.worker
        if self.outside is not None and not worker.is_in_body:
            worker.wait_for_others(worker.doing)
        return super().stands(key)

    def add(self, moment: Moment) -> None:
        outside = self.outside
        if outside is None or not isinstance(moment, Deed):
            super().add(moment)
            return
        scheduler = outside.scheduler
        scheduler.point(f"{moment.token} is on its way")
        if moment.sign > 0 and moment.key in self.by_key:
            scheduler.fail(Violation(f"{moment.label} is done twice for {moment.key}"))
        if moment.sign < 0 and self.standing[moment.token] <= 0:
            return  # by another one meanwhile: whoever takes it back looks whether it stands
        if moment.sign < 0 and self.is_flat:
            done = [each.token for each in self.by_key.values() if self.standing[each.token] > 0]
            if done[-1] != moment.token:
                scheduler.fail(Violation(f"{moment.token} is taken back before {done[-1]}"))
        super().add(moment)
        scheduler.note(f"{moment.token} is {'done' if moment.sign > 0 else 'taken back'}")
        scheduler.point(f"{moment.token} is acknowledged")


class Here(World):
    """The world of one job, for all workers that do it."""

    def do(self, label: str, does: str, inside: Any = (), *, dedups: bool = False) -> str:
        worker = CURRENT.worker
        step = current_step()
        assert step is not None
        worker.outside.begins(step.run, step.number, worker.issued)
        worker.outside.scheduler.point(f"{label} begins: {does}")
        worker.is_in_body = True
        try:
            return super().do(label, does, inside, dedups=dedups)
        finally:
            worker.is_in_body = False


class Job:
    """A program that is to be done once, whoever does it."""

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.program = program
        self.effects = Effects()
        self.world = Here(self.effects)
        self.done = ""  # the run that finished it
        self.lost = False  # something has rotted that is needed to go on
        self.given: dict[Place, Given] = {}  # what its calls gave

    @property
    def is_over(self) -> bool:
        """Return whether nobody has to go on with it."""
        return bool(self.done) or self.lost


class Outside:
    """What can be asked of the universe in which something happens."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.workers: dict[Process | None, Worker] = {}

    def begins(self, run: str, step: int, issued: int) -> None:
        """Check whether the body of a call that was issued at a point may begin."""

    def others(self, worker: Worker, job: Job | None) -> list[Worker]:
        """Return other processes that are in a session of a job, and do not just ask, too.

        One that asks may be in the middle of another call: whoever came later waits for it.
        """
        return [
            each
            for each in self.workers.values()
            if each is not worker
            and each.doing is job
            and each.process.alive
            and (not each.asks or worker.doing is not job or each.came < worker.came)
        ]


class Worker(Lab):
    """A process that does jobs, with a store and a clock of its own."""

    process: Process

    def __init__(self, outside: Outside, store: Callable[[], Store], clock: Clock) -> None:
        self.outside = outside
        self.doing: Job | None = None  # in a session of which it is
        self.came = self.issued = 0  # at which point; and its last call
        self.asks = False  # what became of a call, and waits for the answer
        self.is_in_body = False
        self.root = Path("/store")
        self.inner = {}
        self.told, self.expected = set(), Counter()
        self.is_sync, self.at_once, self.shuffles = True, False, False
        self.chance = random.Random(0)  # noqa: S311 - a reproducible order
        self._clock = clock
        self._make = store
        self._store: Store | None = None

    @property
    def store(self) -> Any:
        if self._store is None:
            self._store = self._make()
        return self._store

    @store.setter
    def store(self, store: Any) -> None:
        self._store = store

    @property
    def world(self) -> Any:  # type: ignore[override] # it is that of its job
        assert self.doing is not None
        return self.doing.world

    @property
    def timeline(self) -> Any:  # type: ignore[override] # likewise
        return self.world.timeline

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        self.issued = self.outside.scheduler.points
        return await super().call(name, arguments)

    async def together(self, calls: list[Coroutine[Any, Any, None]]) -> None:
        try:
            await super().together(calls)
        finally:
            for each in calls:  # what a killed one has not begun
                each.close()

    def do(self, job: Job, *, take: bool = False, **how: Any) -> Attempt:
        """Do all that is left of a job in one session."""
        self.doing, self.job = job, job.name
        self.came = self.outside.scheduler.points
        options = Options(tools=self.tools(sync=True), clock=self._clock, take=take)
        session = Session(job.name, store=self.store, options=options, **how)
        given: dict[Place, Given] = {}
        stays: list[str] = []

        async def main() -> None:
            with (
                lab._setting(lab._path, ()),
                lab._setting(lab._given, given),
                lab._setting(lab._stays, stays),
                lab._setting(lab._session, session),
                session,
            ):
                await self.nodes(job.program)

        error: BaseException | None = None
        try:
            lab.drive(main())
        except Exception as raised:  # noqa: BLE001 - told to whoever asked for the attempt
            error = raised
        finally:
            if self.process.alive:
                self.doing = None
        if isinstance(error, SessionHalted) and session.halted is not None:
            error = session.halted
        stats = session.stats if session.run_id else None
        return Attempt(session.run_id, given, stays, [], error, stats)

    def says(self, job: Job, run: str, step: int) -> None:
        """Say truthfully what became of a step."""
        self.doing = job
        try:
            self.resolve(run, step)
        finally:
            if self.process.alive:
                self.doing = None

    def wait_for_others(self, job: Job | None) -> None:
        """Wait until nobody else is in the job, be it in the middle of a body.

        What is asked whether something happened must not answer before that can't happen any more.
        """
        others = self.outside.others
        self.asks = True
        try:
            self.outside.scheduler.wait(lambda: not others(self, job), "asks what became of it")
        finally:
            self.asks = False


class _Current:
    """The worker that runs now."""

    outside: Outside | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    @property
    def worker(self) -> Worker:
        assert self.outside is not None
        return self.outside.workers[self.outside.scheduler.current]


CURRENT = _Current()
