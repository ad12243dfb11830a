"""What is outside of any trace: effects, who may ask about them, and the processes that make them.

The tools are those of the lab (`packages/core/tests/lab`): writes with a probe and without, reads,
pure calls, calls inside of calls, and what takes a write back. A request is told apart from its
repetition only by the idempotency key, and only `take_back`, which says that it is idempotent,
looks at it: a write that comes twice is done twice, and is a violation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from programs import Deed, Lab, Op, Program, Tools, World
from rollcage import current_step
from rollcage.step.clock import Clock
from rollcage.store import Store

from tests.simulation.scheduler import Process, Scheduler, Violation

__all__ = ["CURRENT", "TOOLS", "Job", "Outside", "Worker"]

_issued: ContextVar[int] = ContextVar("issued", default=0)


class Job:
    """A program that is to be done once, whoever does it."""

    def __init__(self, name: str, program: Program, *, flat: bool) -> None:
        self.name = name
        self.program = program
        self.flat = flat  # its calls come one after the other
        self.world = World()
        self.taken: set[str] = set()  # the idempotency keys of requests to take something back
        self.done = ""  # the run that finished it, until a session goes on all the same
        self.finished: list[str] = []  # all runs that have
        self.lost = False  # something has rotted that is needed to go on
        self.given: list[str] = []  # what its calls gave

    @property
    def is_over(self) -> bool:
        """Whether nobody has to go on with it."""
        return bool(self.done) or self.lost


class Outside:
    """What universes have in common: what can be asked of the one in which something happens."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.workers: dict[Process | None, Worker] = {}
        self.stopped: dict[str, int] = {}  # the runs that were told to stop, and at which point

    def begins(self, run: str, step: int, issued: int) -> None:
        """A body begins, of a call that was issued at a point: whether it may."""

    def others(self, worker: Worker, job: Job | None) -> list[Worker]:
        """Other processes that are in a session of a job, and do not just ask, too.

        One that asks may be in the middle of another call: whoever came later waits for it.
        """
        return [
            each
            for each in self.workers.values()
            if each is not worker
            and each.at is job
            and each.process.alive
            and (not each.asks or worker.at is not job or each.came < worker.came)
        ]


class Loop(asyncio.SelectorEventLoop):
    """A loop that does what belongs into threads itself: nothing happens at the same time."""

    def run_in_executor(  # type: ignore[override] # of whichever types
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            future.set_exception(error)
        return future


class Worker(Lab):
    """A process that does jobs, with a store and a clock of its own."""

    process: Process

    @property
    def tools(self) -> Tools:
        """The tools of all workers, each time on the one that runs."""
        return TOOLS

    def __init__(self, outside: Outside, store: Callable[[], Store], clock: Clock) -> None:
        super().__init__(Path("/store"))
        self.outside = outside
        self.at: Job | None = None  # in a session of which it is
        self.came = 0  # at which point
        self.asks = False  # what became of a call, and waits for the answer
        self.clock = lambda: clock
        self._make = store
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = self._make()
        return self._store

    def path(self, run: str) -> Path:
        raise AssertionError(run)  # a simulated store may have none

    @staticmethod
    def run(work: Coroutine[Any, Any, str]) -> str:
        with asyncio.Runner(loop_factory=Loop) as runner:
            loop = runner.get_loop()
            loop.set_exception_handler(lambda *_: None)  # what a killed one leaves behind
            return runner.run(work)

    async def program(self, program: Program) -> None:
        assert self.at is not None
        self.at.done = ""
        await super().program(program)

    async def op(self, op: Op) -> None:
        _issued.set(self.outside.scheduler.points)
        await super().op(op)

    def do(self, job: Job, **how: Any) -> str:
        """Do what is left of a job, in one session; the run. Raises what ends the session."""
        self.at, self.job, self.world = job, job.name, job.world
        self.came = self.outside.scheduler.points
        try:
            return self.once(job.program, **how)
        finally:
            if self.process.alive:
                self.at = None

    def wait_for_others(self, job: Job | None) -> None:
        """Until nobody else is in the job, be it in the middle of a body.

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
        process = self.outside.scheduler.current
        return self.outside.workers[process]


class _Tools(Tools):
    """The lab's tools, for whichever worker calls them."""

    lab: Any

    def __init__(self) -> None:
        self.lab = _Current()
        super().__init__()

    def body(self, label: str, does: str, inside: Iterable[str] = ()) -> str:
        worker: Worker = self.lab.worker
        outside, step = worker.outside, current_step()
        assert step is not None
        outside.begins(step.run, step.number, _issued.get())
        outside.scheduler.point(f"{label} begins: {does}")
        return super().body(label, does, inside)

    def look(self, label: str, does: str) -> str:
        self.lab.worker.outside.scheduler.point(f"{label} begins: {does}")
        return super().look(label, does)

    def probe(self, key: str) -> Any:
        self.lab.worker.wait_for_others(self.lab.worker.at)
        return super().probe(key)

    def _deed(self, token: str, sign: int) -> None:
        worker: Worker = self.lab.worker
        job, step = worker.at, current_step()
        assert step is not None
        assert job is not None
        point = worker.outside.scheduler.point
        point(f"{token[:16]} is on its way")
        if sign < 0:
            if step.idempotency_key in job.taken:
                return
            job.taken.add(step.idempotency_key)
            standing = [each for each in job.world.deeds if job.world.standing[each.token]]
            if job.flat and standing[-1].token != token:
                worker.outside.scheduler.fail(
                    Violation(f"{token} is taken back before {standing[-1].token}")
                )
        worker.outside.scheduler.note(f"{token[:16]} is {'done' if sign > 0 else 'taken back'}")
        job.world.deeds.append(Deed(step.run, step.number, len(job.world.deeds), token, sign))
        if job.world.standing[token] > 1:
            worker.outside.scheduler.fail(Violation(f"{token} is done twice"))
        point(f"{token[:16]} is acknowledged")


TOOLS = _Tools()
CURRENT: _Current = TOOLS.lab
