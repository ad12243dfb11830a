"""A run that this process has locked, where its lines queue before they are in the store."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from rollcage.errors import TraceUnwritable
from rollcage.store.protocol import StopOrder

__all__ = ["Held", "Row"]


class Row(NamedTuple):
    """A row of a run: its number, its line, and the head of the trace after it."""

    number: int
    line: bytes
    head: bytes


@dataclasses.dataclass(slots=True, eq=False)
class Held:
    """A run that this process has locked.

    Its session adds to the queue. Whoever has the connection (see the committers) takes from it;
    what that changes here can be broken off between any two instructions, and done again.

    Attributes:
        run: its id.
        place: its place among all runs.
        end: the last row that is known to be in the store, and ours.
        fences: how many rows up to there are no lines.
        queue: what is to be added after it.
        waits: who waits for a row to be in the store.
        order: the order to stop it.
        lost: why nothing can be added to it any more.
    """

    run: str
    place: int
    end: Row
    fences: int
    queue: deque[Row] = dataclasses.field(default_factory=deque[Row])
    waits: deque[tuple[int, Future[None]]] = dataclasses.field(
        default_factory=deque[tuple[int, Future[None]]]
    )
    order: StopOrder | None = None
    lost: str = ""
    _guard: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @property
    def last(self) -> Row:
        """The row that was added last, be it in the store or not."""
        try:
            return self.queue[-1]
        except IndexError:
            return self.end

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to be written, be it that nothing can be."""
        return bool(self.lost) or self.end.number >= self.last.number

    def check(self) -> None:
        """Raise TraceUnwritable where nothing can be added any more."""
        if self.lost:
            raise TraceUnwritable(self.lost)

    def wait(self) -> Future[None]:
        """Done when all that was added by now is in the store."""
        done: Future[None] = Future()
        with self._guard:
            self.waits.append((self.last.number, done))
        if self.is_settled:
            self._wake()
        return done

    def settle(self, rows: Sequence[Row]) -> None:
        """These rows, the first of the queue, are in the store."""
        if rows:
            self.end = rows[-1]  # first: what is out of the queue is the end
        while self.queue and self.queue[0].number <= self.end.number:
            self.queue.popleft()
        if self.waits:
            self._wake()

    def lose(self, reason: str) -> None:
        """Nothing can be added any more."""
        self.lost = f"the trace of run {self.run} is not written any more: {reason}"
        self._wake()

    def fail(self, error: TraceUnwritable) -> None:
        """What is queued can't be added now: whoever waits gets the error; it stays queued."""
        with self._guard:
            while self.waits:
                done = self.waits[0][1]
                if not done.done():
                    done.set_exception(error)
                self.waits.popleft()

    def _wake(self) -> None:
        """Let those know who wait for what is in the store, or can't come there."""
        with self._guard:
            while self.waits and (self.lost or self.waits[0][0] <= self.end.number):
                done = self.waits[0][1]
                if not done.done():
                    if self.end.number >= self.waits[0][0]:
                        done.set_result(None)
                    else:
                        done.set_exception(TraceUnwritable(self.lost))
                self.waits.popleft()
