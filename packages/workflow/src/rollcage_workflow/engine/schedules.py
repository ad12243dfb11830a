"""Schedules: plans that are started repeatedly, as documents in the store."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

import orjson
from rollcage import Store
from rollcage.trace.store import drop, every_key

from rollcage_workflow.engine.times import Times, utc_text
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.expressions import is_finite

__all__ = ["Entry", "Missed", "Overlap", "Progress", "Schedule", "Schedules"]

Missed = Literal["newest", "all", "none"]
Overlap = Literal["skip", "allow"]

_KIND: Final = "schedules"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_DAY: Final = 86_400.0
_MOST_BYTES: Final = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """A plan that is started at certain times.

    Attributes:
        name: the name of the schedule; each execution is `NAME@2027-01-31T08:00:00Z`, by its time
            in UTC.
        plan: the plan's name.
        cron: minute, hour, day, month, weekday; or with seconds before them.
        by: the person for whom it runs.
        inputs: the inputs of each execution.
        zone: IANA name of the time zone; empty for UTC.
        missed: which times are started if several have passed since a worker last looked:
            `newest`; `all`; `none`: the newest, unless it is over a minute old (or two looks of the
            worker).
        catchup: a time that passed longer ago is not started (seconds).
        overlap: whether a time is started while the execution of the time before is not over:
            `skip` or `allow`.
    """

    name: str
    plan: str
    cron: str
    by: str
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    zone: str = ""
    missed: Missed = "newest"
    catchup: float = _DAY
    overlap: Overlap = "skip"

    def id_at(self, time: int) -> str:
        """Return the id of the execution of a time (Unix, seconds)."""
        return f"{self.name}@{utc_text(time)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far the times of a schedule were handled.

    Attributes:
        handled: the last time that was decided on (Unix, seconds); at first, when it was put.
        due: the times that are to be started, decided on before they are.
        started: the id of the newest execution; empty without one.
        left_out: how many times were left out.
        is_more: whether there were more, too many to be counted.
        why: why the last of these was left out.
    """

    handled: int
    due: tuple[int, ...] = ()
    started: str = ""
    left_out: int = 0
    is_more: bool = False
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """The document of a schedule in the store.

    Attributes:
        schedule: what was put.
        progress: how far it was handled; None if an older version put it.
        times: its times.
        data: the document.
    """

    schedule: Schedule
    progress: Progress | None
    times: Times
    data: bytes


class Schedules:
    """The schedules in a store.

    Args:
        store: the store of the runs.
        clock: the time now (Unix, seconds).
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def put(self, schedule: Schedule) -> None:
        """Store a schedule, in place of the one with its name.

        It begins with the first time from now on. With the same times as before, it goes on where
        it was.

        Raises:
            WorkflowError: a field of it can't be used.
            StoreError: it can't be stored.
        """
        times, now = _times_of(schedule), int(self._clock())
        if next(times.after(now), None) is None:
            raise WorkflowError(f"{schedule.cron!r} is not a cron expression of any time to come")
        while True:
            held = self._store.get(_KIND, schedule.name)
            before = _entry_or_none(schedule.name, held)
            data = _document(schedule, _progress_from(before, schedule, now))
            if len(data) > _MOST_BYTES:
                raise WorkflowError(f"{schedule.name!r}: the inputs have over {_MOST_BYTES} bytes")
            if self._store.swap(_KIND, schedule.name, held, data):
                return

    def drop(self, name: str) -> bool:
        """Remove a schedule, a damaged one as well; return whether it existed."""
        return self.data(name) is not None and drop(self._store, _KIND, name)

    def get(self, name: str) -> Schedule | None:
        """Return a schedule, by its name.

        Raises:
            WorkflowError: the stored document is not a schedule.
        """
        found = self.entry(name)
        return None if found is None else found.schedule

    def names(self) -> list[str]:
        """Return the names of all schedules."""
        return [*every_key(self._store, _KIND)]

    def all(self) -> list[Schedule]:
        """Return all schedules, by name.

        Raises:
            WorkflowError: one of the stored documents is not a schedule.
        """
        found = (self.get(key) for key in self.names())
        return [each for each in found if each is not None]

    def data(self, name: str) -> bytes | None:
        """Return the document of a schedule."""
        return self._store.get(_KIND, name) if _NAME.fullmatch(name) else None

    def entry(self, name: str) -> Entry | None:
        """Return a schedule, with its progress.

        Raises:
            WorkflowError: the stored document is not a schedule.
        """
        held = self.data(name)
        return None if held is None else _entry(name, held)

    def move(self, entry: Entry, progress: Progress) -> bool:
        """Store the progress of a schedule; return False if its document has changed."""
        data = _document(entry.schedule, progress)
        return self._store.swap(_KIND, entry.schedule.name, entry.data, data)


def _progress_from(before: Entry | None, schedule: Schedule, now: int) -> Progress:
    """Return the progress with which a schedule takes the place of another one."""
    if before is None or before.progress is None:
        return Progress(now)
    if (schedule.cron, schedule.zone) == (before.schedule.cron, before.schedule.zone):
        return before.progress
    return Progress(now, due=before.progress.due, started=before.progress.started)


def _document(schedule: Schedule, progress: Progress) -> bytes:
    fields = dataclasses.asdict(schedule) | {"progress": dataclasses.asdict(progress)}
    return orjson.dumps(fields)


def _entry_or_none(name: str, held: bytes | None) -> Entry | None:
    try:
        return None if held is None else _entry(name, held)
    except WorkflowError:  # whoever puts another one in its place repairs it
        return None


def _entry(name: str, held: bytes) -> Entry:
    try:
        fields = orjson.loads(held)
        kept = fields.pop("progress", None)
        schedule = Schedule(**fields)
        times = _times_of(schedule)
        progress = None if kept is None else _progress(kept)
        if schedule.name != name:
            raise ValueError("its name is another one")
    except (ValueError, TypeError, LookupError, AttributeError, WorkflowError) as error:
        raise WorkflowError(
            f"the store's document of the schedule {name} is damaged ({error}); put another one in "
            f"its place: rollcage workflow schedule {name} PLAN CRON"
        ) from None
    return Entry(schedule, progress, times, held)


def _progress(kept: dict[str, Any]) -> Progress:
    """Return what was stored as progress. Raises ValueError, TypeError."""
    found = Progress(**{**kept, "due": tuple(kept["due"])})
    numbers, texts = (found.handled, found.left_out, *found.due), (found.started, found.why)
    is_whole = all(type(each) is int for each in numbers) and type(found.is_more) is bool
    if not is_whole or not all(type(each) is str for each in texts):
        raise TypeError("its progress is not as it was stored")
    return found


def _times_of(schedule: Schedule) -> Times:
    """Return the times of a schedule.

    Raises:
        WorkflowError: a field of the schedule can't be used.
    """
    name = schedule.name
    texts: tuple[Any, ...] = (name, schedule.plan, schedule.cron, schedule.by, schedule.zone)
    if not all(isinstance(each, str) for each in texts):
        raise WorkflowError(f"name, plan, cron, by and zone of the schedule {name!r} are texts")
    if _NAME.fullmatch(name) is None:
        raise WorkflowError(f"{name!r} can't name a schedule: letters, digits, - and _, up to 64")
    for field, value, known in (
        ("missed", schedule.missed, get_args(Missed)),
        ("overlap", schedule.overlap, get_args(Overlap)),
    ):
        if value not in known:
            raise WorkflowError(f"{field} of {name!r} is {value!r}: it is one of {_listed(known)}")
    span: Any = schedule.catchup
    if isinstance(span, bool) or not isinstance(span, int | float) or not 0 < span < math.inf:
        raise WorkflowError(f"catchup of {name!r} is {span!r}: it is a number of seconds, over 0")
    try:
        orjson.dumps(dict(schedule.inputs))
    except (TypeError, ValueError) as error:
        raise WorkflowError(f"the inputs of {name!r} are not JSON: {error}") from None
    if not is_finite(dict(schedule.inputs)):
        raise WorkflowError(f"the inputs of {name!r} are not JSON: NaN and infinity are not")
    return Times(schedule.cron, schedule.zone)


def _listed(known: tuple[str, ...]) -> str:
    return f"{', '.join(known[:-1])} or {known[-1]}"
