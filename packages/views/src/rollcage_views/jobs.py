"""Jobs, and the runs of each; each run continues the one before."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from rollcage import RunInfo, Store, all_runs, run_info
from rollcage.errors import RollcageError
from rollcage.stages.orders import Order

from rollcage_views.infos import info_data
from rollcage_views.orders import order_data, pause_of

__all__ = ["Job", "JobRun", "job_of", "jobs_of", "newest_first"]

_CHAIN: Final = 50  # newest runs of one job that are listed


@dataclasses.dataclass(frozen=True, slots=True)
class JobRun:
    """A run of a job, with all attempts at it.

    Attributes:
        info: its entry in the store.
        status: the status of its last attempt; `running`, or `died` if the attempt has not ended
            and
            has no writer.
        pause: the order that makes its next call wait.
    """

    info: RunInfo
    status: str
    pause: Order | None = None

    @property
    def count(self) -> int:
        """The number of attempts."""
        return self.info.attempts

    def as_data(self) -> dict[str, Any]:
        """Return the run for machines."""
        return info_data(self.info) | {"status": self.status, "paused": order_data(self.pause)}


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A job with its runs, oldest first: one, unless it continues a run of another store.

    Attributes:
        attempts: the runs; the last one has its status.
        more: whether there are earlier runs that are not listed.
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
    def pause(self) -> Order | None:
        """The order that makes its next call wait."""
        return self.attempts[-1].pause

    @property
    def began(self) -> int:
        """When its first listed run began (Unix, µs)."""
        return self.attempts[0].info.begun

    def as_data(self) -> dict[str, Any]:
        """Return the job for machines."""
        attempts = [each.as_data() for each in self.attempts]
        return {
            "name": self.name, "status": self.status, "run": self.run, "began": self.began,
            "paused": order_data(self.pause), "attempts": attempts, "more_attempts": self.more,
        }  # fmt: skip


def jobs_of(store: Store, *, name: str | None = None, limit: int | None = None) -> list[Job]:
    """Return the jobs of a store, the job with the newest run first.

    The cost does not grow with the older runs of the store.

    Args:
        store: the store.
        name: only the jobs of this name.
        limit: only so many.

    Raises:
        StoreError: the store can't be read.
    """
    return list(islice(_jobs(store, name), limit))


def job_of(store: Store, info: RunInfo) -> Job:
    """Return the job whose latest run this is."""
    chain, known = [info], {info.run}
    origin = "" if info.fork else info.origin
    while origin and origin not in known and len(chain) <= _CHAIN:
        known.add(origin)
        try:
            before = run_info(store, origin)
        except RollcageError:
            break  # the run is in another store, or is gone
        chain.append(before)
        origin = "" if before.fork else before.origin
    shown = chain[:_CHAIN][::-1]
    attempts = [JobRun(each, _status(store, each)) for each in shown[:-1]]
    attempts.append(JobRun(shown[-1], _status(store, shown[-1]), pause_of(store, shown[-1])))
    return Job(attempts, more=len(chain) > _CHAIN)


def _jobs(store: Store, name: str | None) -> Iterator[Job]:
    seen: set[str] = set()
    for info in newest_first(store, name=name):
        if info.run in seen or info.fork:  # a fork is not an attempt at the job
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
    behind: str = "",
) -> Iterator[RunInfo]:
    """Yield runs, newest first, read from the store on demand.

    Args:
        store: the store.
        name: only the runs of this job.
        status: only runs with this status; `unfinished`: only runs without one.
        since: only runs that began then or later (Unix, µs).
        before: only runs that began earlier than that (Unix, µs).
        behind: the id of a run: only the runs after it in the list. Two runs that begin in one
            millisecond need not be ordered by time, so a list continues by this id.

    Raises:
        StoreError: the store can't be read.
    """
    wanted = None if name is None else unicodedata.normalize("NFC", name)
    for info in all_runs(store, behind):
        if (
            (wanted is None or info.name == wanted)
            and (status is None or (info.status or "unfinished") == status)
            and (since is None or info.begun >= since)
            and (before is None or info.begun < before)
        ):
            yield info


def _status(store: Store, info: RunInfo) -> str:
    if info.status is not None:
        return info.status
    try:
        return "running" if store.is_live(info.run) else "died"
    except RollcageError:
        return "unfinished"
