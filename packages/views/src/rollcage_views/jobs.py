"""Jobs: what was to be done, and the attempts at it, each of which went on with the one before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from rollcage.errors import RollcageError
from rollcage.store import RunInfo, StopOrder, Store

from rollcage_views.both import LogInfo
from rollcage_views.orders import order_data, pause_of

__all__ = ["Job", "JobRun", "job_of", "jobs_of", "newest_first"]

_ATTEMPTS: Final = 50  # of one job that are listed, the newest
_BATCH: Final = 100  # runs that are asked for at first
_LOOKS: Final = ("offline", "verify", "fork")  # runs that look at others, and are no attempts


@dataclasses.dataclass(frozen=True, slots=True)
class JobRun:
    """A run, as one attempt at its job.

    Attributes:
        info: what the store knows of it.
        status: as the store has it; without one `running`, or `died` where nobody writes it.
        pause: the order by which its next call waits, or that of its resume.
    """

    info: RunInfo
    status: str
    pause: StopOrder | None = None

    @property
    def count(self) -> int:
        """How many attempts of the run this stands for: one log has all of them."""
        return self.info.attempts if isinstance(self.info, LogInfo) else 1

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        own = dataclasses.asdict(self.info) | {"status": self.status}
        return own | {"paused": order_data(self.pause)}


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A job, by its attempts, oldest first.

    Attributes:
        attempts: the runs; the last one has its status.
        more: whether there are earlier ones that are not listed.
    """

    attempts: list[JobRun]
    more: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.attempts[-1].info.name

    @property
    def run(self) -> str:
        """The id of its latest run."""
        return self.attempts[-1].info.run

    @property
    def status(self) -> str:
        """Its status."""
        return self.attempts[-1].status

    @property
    def pause(self) -> StopOrder | None:
        """The order by which its next call waits."""
        return self.attempts[-1].pause

    @property
    def began(self) -> int:
        """When its first listed attempt began (Unix, µs)."""
        return self.attempts[0].info.time

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        attempts = [each.as_data() for each in self.attempts]
        return {
            "name": self.name, "status": self.status, "run": self.run, "began": self.began,
            "paused": order_data(self.pause), "attempts": attempts, "more_attempts": self.more,
        }  # fmt: skip


def jobs_of(store: Store, *, name: str | None = None, limit: int | None = None) -> list[Job]:
    """The jobs of a store, those with the newest runs first.

    What they cost does not grow with the older runs of the store.

    Args:
        store: where they are.
        name: only those of this name.
        limit: only so many.

    Raises:
        StoreError: the store can't be read.
    """
    return list(islice(_jobs(store, name), limit))


def job_of(store: Store, info: RunInfo) -> Job:
    """The job of which this run is the latest attempt."""
    chain = [info]
    known = {info.run}
    source = info.source
    while source is not None and source not in known and len(chain) <= _ATTEMPTS:
        known.add(source)
        try:
            before = store.info(source)
        except RollcageError:
            break  # it lies in another store, or is gone
        chain.append(before)
        source = before.source
    shown = chain[:_ATTEMPTS][::-1]
    attempts = [JobRun(each, _status(store, each)) for each in shown[:-1]]
    attempts.append(JobRun(shown[-1], _status(store, shown[-1]), pause_of(store, shown[-1])))
    return Job(attempts, more=len(chain) > _ATTEMPTS)


def _jobs(store: Store, name: str | None) -> Iterator[Job]:
    seen: set[str] = set()
    for info in newest_first(store, name=name):
        if info.run in seen or info.mode in _LOOKS:
            continue
        job = job_of(store, info)
        seen.update(each.info.run for each in job.attempts)
        yield job


def newest_first(
    store: Store,
    *,
    name: str | None = None,
    status: str | None = None,
    since: int | None = None,
    before: int | None = None,
) -> Iterator[RunInfo]:
    """Runs, newest first, read from the store in growing batches.

    Args:
        store: where they are.
        name: only those of this job.
        status: only those with this one; `unfinished` for those that have none.
        since: only those that began then or later (Unix, µs).
        before: only those that began earlier than that (Unix, µs).

    Raises:
        StoreError: the store can't be read.
    """
    yielded, size = 0, _BATCH
    while True:
        found = store.runs(name=name, status=status, since=since, before=before, limit=size)[::-1]
        yield from found[yielded:]
        if len(found) < size:
            return
        yielded, size = size, size * 4


def _status(store: Store, info: RunInfo) -> str:
    if info.status is not None:
        return info.status
    try:
        return "running" if store.live(info.run) else "died"
    except RollcageError:
        return "unfinished"
