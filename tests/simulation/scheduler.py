"""Processes that run one at a time: who runs next, and who dies, is decided by a seed.

Each process is a thread of this one, and none runs but who holds the baton. It may hand it on, or
be killed, wherever it asks something of the world around it: at a *point*. So one seed gives one
order of everything that happens, however many threads there are.
"""

from __future__ import annotations

import _thread
import threading
import traceback
from collections.abc import Callable
from random import Random
from typing import NoReturn

__all__ = ["Killed", "Process", "Scheduler", "Violation"]

MOST = 25_000  # points of one universe: whoever needs more is going round in circles


class Killed(BaseException):
    """What a killed process meets at every point: nothing that it does counts any more."""


class Violation(AssertionError):
    """Something that must never be."""


class Process:
    """A process of a simulated machine, with a thread to run in."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.work = work
        self.alive = True  # a dead one may have to leave its thread yet
        self.ended = False
        self.until: Callable[[], bool] | None = None  # what it waits for
        self.wakes = 0  # when it goes on all the same (ns); 0: never
        self.go = _thread.allocate_lock()
        self.go.acquire()
        self.thread: threading.Thread | None = None

    def can_run(self, now: int) -> bool:
        if self.ended:
            return False
        return not self.alive or self.until is None or self.until() or 0 < self.wakes <= now


class Scheduler:
    """Who runs, what time it is, and what has happened."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 1_700_000_000 * 10**9  # ns
        self.log: list[str] = []
        self.points = 0
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.switches = 0.1  # how likely another process goes on at a point
        self.nature: Callable[[], None] | None = None  # may do something at each point
        self.switched: Callable[[Process | None], None] | None = None  # told who runs from now on
        self.buried: Callable[[Process], None] | None = None  # told of each process that has died
        self._main = _thread.allocate_lock()
        self._main.acquire()
        self._error: BaseException | None = None

    # --- what processes call ---------------------------------------------------------------------

    def note(self, what: str) -> None:
        """Write into the log what has happened."""
        self._log("*", what)

    def _log(self, mark: str, what: str) -> None:
        name = self.current.name if self.current is not None else "-"
        self.log.append(f"{self.points:6d} {name:<11} {mark} {what}")

    def point(self, what: str) -> None:
        """Another process may go on here, and this one may be killed.

        Raises:
            Killed: it was.
        """
        own = self.current
        if own is None:  # the one who looks at what is left, when all have ended
            return
        if not own.alive:
            raise Killed
        self.points += 1
        self.now += self.random.randrange(1_000, 2_000_000)
        self._log(" ", what)
        if self.points > MOST:
            self.fail(Violation(f"it has not come to an end after {MOST:,} points"))
        if self.nature is not None:
            self.nature()
            self.check()
        if self.random.random() < self.switches:
            self._hand_on()

    def check(self) -> None:
        """Raises Killed where the process that runs was."""
        if self.current is not None and not self.current.alive:
            raise Killed

    def wait(self, until: Callable[[], bool], what: str, *, seconds: float = 0) -> bool:
        """Let others go on until something holds, or the time is over; whether it holds."""
        self.point(what)
        own = self.current
        if own is None:  # whoever looks at what is left: nobody else goes on, but time passes
            self.now += int(seconds * 1e9)
            if self.nature is not None:
                self.nature()
            return until()
        if until():
            return True
        own.until, own.wakes = until, self.now + int(seconds * 1e9) if seconds else 0
        try:
            self._hand_on()
        finally:
            own.until, own.wakes = None, 0
        return until()

    def sleep(self, seconds: float) -> None:
        """Let that time pass."""
        self.wait(lambda: False, f"sleeps {seconds:g} s", seconds=seconds)

    def kill(self, process: Process, why: str) -> None:
        """Kill a process, wherever it is."""
        if process.alive and not process.ended:
            process.alive = False
            self.note(f"{process.name} is killed: {why}")
            if self.buried is not None:
                self.buried(process)

    def fail(self, error: BaseException) -> NoReturn:
        """End it all: nobody goes on from here."""
        self._fail(error)
        raise error if self.current is None else Killed

    # --- running ---------------------------------------------------------------------------------

    def start(self, name: str, work: Callable[[], None]) -> Process:
        """Begin a process; it runs when its turn comes."""
        process = Process(name, work)
        process.thread = threading.Thread(target=self._run, args=(process,), daemon=True, name=name)
        self.processes.append(process)
        process.thread.start()
        return process

    def run(self) -> None:
        """Until all processes have ended.

        Raises:
            Violation: they don't, or one of them has found something that must never be.
        """
        self._next(None)
        for process in self.processes:
            assert process.thread is not None
            process.thread.join()
        self.current = None
        if self._error is not None:
            raise self._error

    def _run(self, process: Process) -> None:
        process.go.acquire()
        try:
            if process.alive:
                process.work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised again by `run`
            self._fail(error)
        finally:
            process.ended = True
            self._pass_on()

    def _hand_on(self) -> None:
        """Let somebody go on, maybe the same."""
        own = self.current
        assert own is not None
        self._next(own)
        self.check()

    def _next(self, own: Process | None) -> None:
        chosen = self._choose()
        if chosen is own:
            return
        self._switch(chosen)
        (chosen.go if chosen is not None else self._main).release()
        (own.go if own is not None else self._main).acquire()

    def _pass_on(self) -> None:
        """The process that runs has ended: let another one go on, or whoever waits for all."""
        chosen = self._choose()
        self._switch(chosen)
        (chosen.go if chosen is not None else self._main).release()

    def _switch(self, chosen: Process | None) -> None:
        self.current = chosen
        if self.switched is not None:
            self.switched(chosen)

    def _choose(self) -> Process | None:
        """Who goes on; None where all have ended."""
        while True:
            left = [each for each in self.processes if not each.ended]
            if not left:
                return None
            dead = [each for each in left if not each.alive]
            able = dead or [each for each in left if each.can_run(self.now)]
            if able:
                return self.random.choice(able)
            times = [each.wakes for each in left if each.wakes]
            if times:
                self.now = max(self.now, min(times))
            else:
                waiting = ", ".join(each.name for each in left)
                self._fail(Violation(f"nobody can go on: {waiting} wait for ever"))

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            self.note("FAILS: " + traceback.format_exception_only(error)[-1].strip())
        for process in self.processes:
            process.alive = False
