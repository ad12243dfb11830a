"""The runs of both cores in one store: which core has a run, and what is known of it.

Until the old core goes, a store may hold its runs (`rollcage/1`) beside those of the heart
(`rollcage/2`). A run's id is unique over both, and this module alone decides whose a run is:
whatever lists, reads or steers runs asks here.
"""
# until the old core goes: then a store is `rollcage.heart.Store`, and this module is gone

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from rollcage import Store as Heart
from rollcage import open_store as open_heart
from rollcage.errors import RollcageError, RunNotFound, StoreInvalid
from rollcage.heart import listing
from rollcage.heart.folder import Folder
from rollcage.heart.listing import all_runs, run_info
from rollcage.heart.stages.orders import order_of
from rollcage.store import RunInfo, RunTrace, StopOrder, Store, job_name
from rollcage.store import open_store as open_old

__all__ = ["Both", "LogInfo", "heart_of", "heart_with", "info_of", "open_store"]

_PATIENCE: Final = ("store_timeout", "silence_timeout")  # parameters of a database's URL


def open_store(where: str | os.PathLike[str], *, patience: float | None = None) -> Both:
    """Return the store at a folder or URL, with the runs of both cores.

    Args:
        where: the folder or URL.
        patience: seconds for which a database may be down, or silent, where its URL does not say.

    Raises:
        StoreInvalid: no store is known for it.
    """
    old, heart = open_old(where, patience=patience), None
    with contextlib.suppress(StoreInvalid):
        heart = open_heart(where if patience is None else _patient(os.fspath(where), patience))
    return Both(old, heart)


def _patient(url: str, patience: float) -> str:
    """The URL of a database with how long it may be away, where it does not say that."""
    if not url.startswith(("postgres://", "postgresql://")):
        return url
    where, _, query = url.partition("?")
    parts = [*filter(None, query.split("&"))]
    known = {part.partition("=")[0] for part in parts}
    added = [f"{name}={patience:g}" for name in _PATIENCE if name not in known]
    return f"{where}?{'&'.join([*parts, *added])}"


def heart_of(store: Store) -> Heart | None:
    """Return the heart's store at the same place; None if the heart knows no such store."""
    if isinstance(store, Both):
        return store.heart
    with contextlib.suppress(StoreInvalid):
        return open_heart(store.url)
    return None


def heart_with(store: Store, run: str) -> Heart | None:
    """Return the heart's store if it has a run; None if the run is the old core's, or nobody's.

    Raises:
        StoreError: it can't be determined.
    """
    heart = heart_of(store)
    if heart is not None:
        with contextlib.suppress(RunNotFound):
            heart.ends(run)
            return heart
    return None


class Both:
    """A store with the runs of both cores, as a `rollcage.store.Store` of the old one.

    What it lists and reads is of both; what else is asked of it, the old core's store answers.
    """

    url: str  # this, and what follows, the old core's store has
    waits: bool
    opening: Any
    create: Any
    reopen: Any
    stop: Any
    lift: Any
    put_once: Any
    get: Any
    keys: Any
    drop: Any
    log: Any
    put_blob: Any
    blobs: Any
    drop_blob: Any
    secret_key: Any
    take_key: Any
    restore: Any
    prune: Any
    check: Any
    repair: Any
    lock: Any

    def __init__(self, old: Store, heart: Heart | None) -> None:
        self.old = old
        self.heart = heart

    def __getattr__(self, name: str) -> Any:
        return getattr(self.old, name)

    def exists(self) -> bool:
        """Return whether there is such a store."""
        return self.old.exists()

    def read(self, run: str, *, after: int = 0) -> RunTrace:
        """Return a run's whole lines; see `Store.read`."""
        heart = self._with(run)
        if heart is None:
            return self.old.read(run, after=after)
        lines = heart.read(run, after)
        info = None if after else info_of(run_info(heart, run))
        where = heart.path_of(run) if isinstance(heart, Folder) else f"{heart.url}#{run}"
        return RunTrace(run, where, b"".join(lines), b"", info, after)

    def info(self, run: str) -> RunInfo:
        """Return what is known of a run; see `Store.info`."""
        heart = self._with(run)
        if heart is None:
            return self.old.info(run)
        return info_of(run_info(heart, run))

    def runs(
        self,
        *,
        name: str | None = None,
        status: str | None = None,
        source: str | None = None,
        since: int | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> Sequence[RunInfo]:
        """Return the runs of both cores, oldest first; see `Store.runs`."""

        def wanted(info: RunInfo) -> bool:
            return (
                (name is None or job_name(info.name) == job_name(name))
                and (status is None or status == (info.status or "unfinished"))
                and (source is None or info.source == source)
                and (since is None or info.time >= since)
                and (before is None or info.time < before)
            )

        theirs = [*itertools.islice(filter(wanted, self._heart_runs()), limit)]
        ours = self.old.runs(
            name=name, status=status, source=source, since=since, before=before, limit=limit
        )
        found = [*heapq.merge(reversed(theirs), ours, key=lambda info: info.run)]
        return found if limit is None else found[max(len(found) - limit, 0) :]

    def newest(self, name: str, of: str | None) -> RunInfo | None:
        """Return the newest run of a job; see `Store.newest`."""
        return self.old.newest(name, of)

    def live(self, run: str) -> bool:
        """Return whether somebody is at a run; see `Store.live`."""
        heart = self._with(run)
        return self.old.live(run) if heart is None else heart.is_live(run)

    def stop_order(self, run: str) -> StopOrder | None:
        """Return the order that a run has; see `Store.stop_order`."""
        heart = self._with(run)
        if heart is None:
            return self.old.stop_order(run)
        order = order_of(heart, run)
        return None if order is None else StopOrder(run, **dataclasses.asdict(order))

    def get_blob(self, digest: str) -> bytes:
        """Return a large value; see `Reader.get_blob`."""
        if self.heart is not None:
            with contextlib.suppress(RollcageError):
                data = self.heart.get("blobs", digest)
                if data is not None:
                    return data
        return self.old.get_blob(digest)

    def _with(self, run: str) -> Heart | None:
        return heart_with(cast("Store", self), run)

    def _heart_runs(self) -> Iterator[RunInfo]:
        """The runs of the heart, newest first."""
        if self.heart is not None:
            yield from map(info_of, all_runs(self.heart))


@dataclasses.dataclass(frozen=True, slots=True)
class LogInfo(RunInfo):
    """What a list says of a run of the heart.

    Attributes:
        attempts: how many there were.
        waits: what a paused run waits for, if that was said.
    """

    attempts: int = 1
    waits: str = ""


def info_of(of: listing.RunInfo) -> LogInfo:
    """Return what a list says of a run of the heart, in the old core's terms."""
    return LogInfo(
        run=of.run,
        name=of.name,
        mode="fork" if of.fork else "resume" if of.origin else "record",
        source=of.origin or None,
        time=of.begun,
        status=of.status,
        input=of.input or None,
        attempts=of.attempts,
        waits=of.waits,
    )
