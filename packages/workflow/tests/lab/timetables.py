"""Schedules told plainly: their times, minute by minute, and what workers start of them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import zoneinfo
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

from rollcage.trace.folder import Folder
from rollcage_workflow.engine import Schedule

__all__ = ["KINDS", "Death", "Died", "Model", "Place", "times_between"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A cron expression: which minutes it names, and whether it names every hour."""

    names: Callable[[dt.datetime], bool]
    is_each_hour: bool = False


KINDS: Final = {
    "*/20 * * * *": Kind(lambda t: t.minute % 20 == 0, is_each_hour=True),
    "5 * * * *": Kind(lambda t: t.minute == 5, is_each_hour=True),
    "30 2 * * *": Kind(lambda t: (t.hour, t.minute) == (2, 30)),
    "10,50 2,3 * * *": Kind(lambda t: t.hour in (2, 3) and t.minute in (10, 50)),
    "0 */2 * * *": Kind(lambda t: t.hour % 2 == 0 and t.minute == 0),
    "*/15 1-3 * * *": Kind(lambda t: 1 <= t.hour <= 3 and t.minute % 15 == 0),
    "0 0 * * *": Kind(lambda t: (t.hour, t.minute) == (0, 0)),
    "45 23 * * 0": Kind(lambda t: (t.weekday(), t.hour, t.minute) == (6, 23, 45)),
}
_MINUTE: Final = dt.timedelta(minutes=1)


@functools.lru_cache(maxsize=512)
def times_between(cron: str, zone: str, after: int, until: int) -> tuple[int, ...]:
    """Return the times of a schedule by looking at each minute.

    A local time that is left out as clocks are set forward counts as they are; a local time that
    comes twice counts the first time, unless every hour counts.
    """
    kind, where = KINDS[cron], zoneinfo.ZoneInfo(zone) if zone else dt.UTC
    found: list[int] = []
    for minute in range(after // 60 + 1, until // 60 + 1):
        here = dt.datetime.fromtimestamp(minute * 60, where)
        local = here.replace(tzinfo=None)
        before = dt.datetime.fromtimestamp(minute * 60 - 60, where).replace(tzinfo=None)
        locals_ = [local]
        while not kind.is_each_hour and before + _MINUTE < local:
            before += _MINUTE
            locals_.append(before)
        if any(map(kind.names, locals_)) and (kind.is_each_hour or not here.fold):
            found.append(minute * 60)
    return tuple(found)


class Died(BaseException):
    """A worker died."""


@dataclasses.dataclass(frozen=True)
class Death:
    """Where a worker dies: before or after it has stored the n-th thing of a kind."""

    when: Literal["before", "after"]
    kind: Literal["schedules", "commands"]
    n: int


class Place(Folder):
    """A store in which a worker dies, or another one looks in between.

    Attributes:
        death: where the worker dies, if it does.
        meets: by number of the swap of a schedule, what another worker does before it.
        swaps: how often this worker stored things, by kind.
    """

    death: Death | None = None

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.meets: dict[int, Callable[[], object]] = {}
        self.swaps = {"schedules": 0, "commands": 0}

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        if kind not in self.swaps:
            return super().swap(kind, key, was, new)
        if kind == "schedules":
            self.meets.pop(self.swaps[kind] + 1, lambda: None)()
        self.swaps[kind] += 1
        now = (kind, self.swaps[kind])
        if self.death is not None and self.death.when == "before":
            self._die_if((self.death.kind, self.death.n) == now)
        done = super().swap(kind, key, was, new)
        if self.death is not None:
            self._die_if((self.death.kind, self.death.n) == now)
        return done

    @staticmethod
    def _die_if(dies: bool) -> None:
        if dies:
            raise Died


class Model:
    """A schedule and the workers that look at it, told plainly.

    Attributes:
        started: by time, when its execution was started.
        left_out: how many times were left out.
    """

    def __init__(self, schedule: Schedule, put: int, durations: Callable[[int], int]) -> None:
        self.schedule = schedule
        self.handled = put
        self.durations = durations
        self.due: list[int] = []
        self.last: int | None = None
        self.started: dict[int, int] = {}
        self.left_out = 0

    def is_over(self, time: int, now: int) -> bool:
        """Whether the execution of a time is over."""
        return time in self.started and now >= self.started[time] + self.durations(time)

    def look(self, now: int, death: Death | None = None) -> None:
        """Do what a worker does that looks now, until it dies."""
        stored = {"schedules": 0, "commands": 0}
        for kind, store in self._looks(now):
            stored[kind] += 1
            is_it = death is not None and (death.kind, death.n) == (kind, stored[kind])
            if is_it and death is not None and death.when == "before":
                return
            store()
            if is_it:
                return

    def _looks(self, now: int) -> Iterator[tuple[str, Callable[[], None]]]:
        if self.due:
            yield from self._starts(now)
        passed = times_between(self.schedule.cron, self.schedule.zone, self.handled, now)
        if passed:
            chosen = self._chosen(passed, now)

            def decide() -> None:
                self.handled, self.due = passed[-1], chosen
                self.left_out += len(passed) - len(chosen)
                self.last = chosen[-1] if chosen else self.last

            yield "schedules", decide
            if chosen:
                yield from self._starts(now)

    def _starts(self, now: int) -> Iterator[tuple[str, Callable[[], None]]]:
        for each in self.due:
            if each not in self.started:
                yield "commands", functools.partial(self.started.__setitem__, each, now)
        yield "schedules", lambda: self.due.clear()  # noqa: PLW0108 - the list that is there then

    def _chosen(self, passed: tuple[int, ...], now: int) -> list[int]:
        chosen = [each for each in passed if each >= now - self.schedule.catchup]
        if self.schedule.missed == "newest":
            chosen = chosen[-1:]
        if self.schedule.missed == "none":
            chosen = [each for each in chosen[-1:] if each >= now - 60]
        if self.schedule.overlap == "skip":
            chosen = chosen[:1]
            if self.last is not None and not self.is_over(self.last, now):
                chosen = []
        return chosen
