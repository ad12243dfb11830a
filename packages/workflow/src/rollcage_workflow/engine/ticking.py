"""Starting what schedules are due to start, for every kind of worker."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rollcage import Store
from rollcage.errors import StoreError, TraceCorrupt, TraceUnwritable

from rollcage_workflow.engine.schedules import Progress, Schedule, Schedules
from rollcage_workflow.engine.times import Times
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.holds import prefix_of
from rollcage_workflow.orders import Commands
from rollcage_workflow.state import execution

__all__ = ["LeftOut", "Ticker", "decided"]

_log: Final = logging.getLogger("rollcage.workflow")
_MOST: Final = 10_000  # times that are counted at once
_BATCH: Final = 100  # times that are started at once
_LATE: Final = 60.0  # seconds; a worker that is busy or has just been replaced is as late as this


@dataclasses.dataclass(frozen=True, slots=True)
class LeftOut:
    """Times of a schedule that a look left out.

    Attributes:
        schedule: its name.
        count: how many.
        is_more: whether there were more, too many to be counted.
        why: why the last of them was left out.
    """

    schedule: str
    count: int
    is_more: bool
    why: str

    def __str__(self) -> str:
        what = "time was" if self.count == 1 and not self.is_more else "times were"
        more = "more than " * self.is_more
        return f"schedule {self.schedule}: {more}{self.count} {what} left out: {self.why}"


class Ticker:
    """Looks which times have come, and has their executions started.

    A time is decided on by one worker: the decision is in the store before an execution is started.
    Whoever sees it starts what it says, which happens once, by the execution's id. So nothing is
    lost with a worker, and nothing is started twice.

    Args:
        store: the store of the runs.
        every: seconds between two looks.
        clock: the time now (Unix, seconds).
    """

    def __init__(
        self, store: Store, *, every: float = 1.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._commands = Commands(store)
        self._schedules = Schedules(store, clock)
        self._every = every
        self._tolerance = max(_LATE, 2 * every)
        self._clock = clock
        self._is_behind = False  # more is due than was started at once
        self._next: dict[str, tuple[bytes, float]] = {}  # by name: the document, the next time
        self._warned: set[tuple[str, str]] = set()

    def look(self) -> list[LeftOut]:
        """Start what is due, a limited number of each schedule; return what was left out.

        A schedule that can't be used is reported, and does not stop the others.

        Raises:
            StoreError: the schedules can't be read.
            TraceUnwritable: a decision can't be stored.
        """
        self._is_behind = False
        found: list[LeftOut] = []
        for name in self._schedules.names():
            try:
                found += self._look(name)
            except Exception as error:
                is_away = isinstance(error, StoreError | TraceUnwritable)
                if is_away and not isinstance(error, TraceCorrupt):
                    raise
                self._warn(name, str(error) or type(error).__name__)
        return found

    def once(self, told: Callable[[LeftOut], None]) -> None:
        """Start all that is due now. See `serving`."""
        self._turn(told)
        while self._is_behind and self._turn(None):
            pass

    @contextlib.contextmanager
    def serving(self, stop: threading.Event, told: Callable[[LeftOut], None]) -> Iterator[None]:
        """Look in a thread of its own, whatever the worker is busy with, until `stop` is set.

        Args:
            stop: ends it before the end of the block.
            told: called with what the first look left out: no worker looked before.
        """
        ended = threading.Event()

        def serve() -> None:
            first: Callable[[LeftOut], None] | None = told
            while not stop.is_set() and not ended.is_set():
                if self._turn(first):
                    first = None
                ended.wait(0 if self._is_behind else self._every)

        thread = threading.Thread(target=serve, name="rollcage-schedules")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _turn(self, told: Callable[[LeftOut], None] | None) -> bool:
        """Look once; return whether the store could be read."""
        try:
            found = self.look()
        except (StoreError, TraceUnwritable) as error:
            self._warn("", str(error))
            return False
        if told is not None:
            for each in found:
                told(each)
        return True

    def _look(self, name: str) -> Iterator[LeftOut]:
        """Start what is due of a schedule; yield what is left out."""
        is_decided = False
        while data := self._schedules.data(name):
            now = self._clock()
            known, next_ = self._next.get(name, (b"", 0.0))
            if known == data and now < next_:
                return
            entry = self._schedules.entry(name)
            if entry is None:
                return
            before = entry.progress or Progress(int(now))
            if before.due:
                self._schedules.move(entry, self._started(entry.schedule, before))
                continue
            if is_decided:
                return
            after = decided(
                entry.schedule, entry.times, before, now,
                tolerance=self._tolerance, unfinished=self._unfinished,
            )  # fmt: skip
            if after == entry.progress:
                next_ = next(entry.times.after(after.handled), math.inf)
                self._next[name] = entry.data, next_
                return
            if not self._schedules.move(entry, after):
                continue  # another worker has decided, or somebody put or dropped it
            is_decided = True
            self._is_behind |= len(after.due) == _BATCH
            if count := after.left_out - before.left_out:
                yield LeftOut(name, count, after.is_more, after.why)

    def _started(self, schedule: Schedule, before: Progress) -> Progress:
        """Start what was decided; return the progress after that."""
        after = dataclasses.replace(before, due=())
        for each in before.due:
            id_ = schedule.id_at(each)
            try:
                self._commands.start(schedule.plan, schedule.inputs, id=id_, by=schedule.by)
            except WorkflowError as error:  # it can't be started, now or later
                after = dataclasses.replace(after, left_out=after.left_out + 1, why=str(error))
        return after

    def _unfinished(self, id: str) -> str:  # noqa: A002 - what it is called everywhere
        """Return the status of an execution that is not over; empty if it is over."""
        command = self._commands.get(f"{prefix_of(id)}.start")  # before its state: it begins first
        found = execution(self._store, id)
        is_begun = bool(found.plan) or command is not None
        return found.status if is_begun and not found.is_over else ""

    def _warn(self, name: str, message: str) -> None:
        """Log something about a schedule once."""
        if (name, message) not in self._warned:
            self._warned.add((name, message))
            _log.warning("schedule %s: %s", name or "of any name", message)


def decided(
    schedule: Schedule,
    times: Times,
    before: Progress,
    now: float,
    *,
    tolerance: float,
    unfinished: Callable[[str], str],
) -> Progress:
    """Decide which of the times that have come are started, and which are left out.

    Args:
        schedule: the schedule.
        times: its times.
        before: how far they were handled.
        now: the time now (Unix, seconds).
        tolerance: how old a time may be that is not missed (seconds).
        unfinished: returns the status of an execution that is not over; empty if it is over.

    Returns:
        The progress with the decision; `before` if no time has come.
    """
    first = max(before.handled, math.ceil(now - schedule.catchup) - 1)
    old = _until(times.after(before.handled), first)
    young = _until(times.after(first), now)
    if not old and not young:
        return before
    is_more = max(len(old), len(young)) > _MOST
    newest = times.latest(before.handled, int(now)) if is_more else [*old, *young][-1]
    assert newest is not None  # at least one has come
    if schedule.missed == "all":
        wanted = young
    else:
        is_late = schedule.missed == "none" and now - newest > tolerance
        wanted = [newest] if young and not is_late else []
    starts, why = wanted, _why(schedule, old, young, wanted, tolerance)
    if schedule.overlap == "skip" and wanted:
        status = unfinished(before.started) if before.started else ""
        starts = [] if status else wanted[:1]
        if len(wanted) > len(starts):
            why = f"{schedule.id_at(starts[0])} is pending" if starts else (
                f"{before.started} is {status}"
            )  # fmt: skip
    handled = newest
    if len(starts) > _BATCH:
        starts = young = starts[:_BATCH]
        handled, is_more = starts[-1], len(old) > _MOST
    left_out = len(old) + len(young) - len(starts)
    return Progress(
        handled,
        tuple(starts),
        schedule.id_at(starts[-1]) if starts else before.started,
        before.left_out + left_out,
        before.is_more or is_more,
        why if left_out else before.why,
    )


def _why(
    schedule: Schedule, old: list[int], young: list[int], wanted: list[int], tolerance: float
) -> str:
    """Return why the last of the times that are not wanted is left out."""
    if not young:
        return f"no worker looked within {schedule.catchup:g} seconds (catchup)"
    if not wanted:
        return f"no worker looked within {tolerance:g} seconds (missed: none)"
    if wanted is not young and len(young) > 1:
        return f"a later time had come when a worker looked (missed: {schedule.missed})"
    return f"no worker looked within {schedule.catchup:g} seconds (catchup)" if old else ""


def _until(times: Iterable[int], end: float) -> list[int]:
    """Return the times that are not after `end`, and at most one more than are counted."""
    return [*itertools.islice(itertools.takewhile(lambda each: each <= end, times), _MOST + 1)]
