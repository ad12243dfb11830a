"""Somebody who pauses runs of a universe and lets them go on later, and how calls wait for that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

from rollcage import OrderRefused, RollcageError, RunPruned
from rollcage.errors import TraceCorrupt
from rollcage.step.pausing import Pausing
from rollcage.store import pause_run

from tests.simulation.outside import Worker

if TYPE_CHECKING:
    from tests.simulation.universe import Universe

__all__ = ["Overseer"]

LOOKS = 0.5  # seconds after which who waits looks again


class Overseer:
    """Pauses runs, and lifts each pause after a while, whatever has become of the run by then.

    In about half of all universes there is none, and chance takes the same way as without it.
    """

    def __init__(self, universe: Universe) -> None:
        self._universe = universe
        chance = Random(f"rollcage pauses {universe.seed}")  # noqa: S311 - reproducible
        self.left = chance.choice((0, 0, 0, 1, 2, 4))
        self.paused: dict[str, int] = {}  # the runs that wait, and from which point on
        self._ordered: set[str] = set()  # runs that nobody let go on since
        self._stops = 0  # so many orders to stop were on their way

    def stops(self) -> None:
        """A run is about to be told to stop: for it, and all that build on it, that replaces any
        pause; and whoever lifts the stop lets them go on.
        """
        self._stops += 1
        self.paused.clear()

    def oversees(self, worker: Worker) -> None:
        """What its process does."""
        universe = self._universe
        for run in sorted(self._ordered):  # by one who was killed
            self._lifts(worker, run)
        while not universe.is_done and self.left:
            universe.scheduler.sleep(2 * universe.random.random() ** 4)
            runs = universe.attempt(worker.store.runs) or []
            if runs:
                self.left -= 1
                self._pauses(worker, universe.random.choice((*runs, *[runs[-1]] * len(runs))).run)

    def _pauses(self, worker: Worker, run: str) -> None:
        universe, stops = self._universe, self._stops
        note, time = universe.scheduler.note, universe.scheduler.now // 1000
        self._ordered.add(run)
        try:
            pause_run(worker.store, run, by="overseer", reason="by chance", time=time)
        except OrderRefused as error:
            note(f"{run} is not paused: {error}")
            self._ordered.discard(run)
            return
        except RollcageError as error:  # nobody knows whether it is told
            universe.expected(error)
            note(f"{run} may not be paused: {type(error).__name__}")
        else:
            note(f"{run} is paused")
            if stops == self._stops:
                self.paused[run] = universe.scheduler.points
            universe.scheduler.sleep(universe.random.random() * 10)
        self._lifts(worker, run)

    def _lifts(self, worker: Worker, run: str) -> None:
        self.paused.pop(run, None)
        while True:
            try:
                worker.store.lift(run, "pause")
            except RollcageError as error:
                self._universe.expected(error)
                if isinstance(error, TraceCorrupt | RunPruned):  # nobody goes on with it any more
                    return
                self._universe.scheduler.sleep(1)
            else:
                self._ordered.discard(run)
                self._universe.scheduler.note(f"{run} is paused no more")
                return

    @contextmanager
    def there(self) -> Iterator[None]:
        """Calls wait in the time of the universe, each process in its own loop."""
        scheduler = self._universe.scheduler

        def over(self: Pausing) -> Future[None]:
            if self._over is None:
                self._over = Future()
                asyncio.get_running_loop().call_soon(look, self, self._over)
            return self._over

        def look(pausing: Pausing, waits: Future[None]) -> None:
            stands = False
            try:
                scheduler.sleep(LOOKS)
                with pausing._lock:
                    stands = bool(pausing._holds())
            finally:  # one that was killed finds out at its next point
                if stands:
                    asyncio.get_running_loop().call_soon(look, pausing, waits)
                else:
                    pausing._over = None
                    waits.set_result(None)

        with patch.object(Pausing, "over", over):
            yield
