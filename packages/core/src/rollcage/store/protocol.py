"""What a store does. One synchronous protocol; each store passes the same tests (DESIGN §4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, runtime_checkable

from rollcage.errors import StoreError
from rollcage.store.handles import Line, Lock, Log, Writer
from rollcage.store.records import (
    Measured,
    OrderKind,
    Pruned,
    Repair,
    RunInfo,
    RunTrace,
    StopOrder,
    check_attested,
    check_order,
)

__all__ = [
    "Line",
    "Lock",
    "Log",
    "Measured",
    "OrderKind",
    "Pruned",
    "Reader",
    "Repair",
    "RunInfo",
    "RunTrace",
    "StepsStore",
    "StopOrder",
    "Store",
    "Writer",
    "check_attested",
    "check_document",
    "check_order",
    "is_run_id",
]

_RUN_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KIND: Final = re.compile(r"[a-z]{1,32}")
_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def is_run_id(text: str) -> bool:
    """Whether this is the form of a run id; no other text becomes part of a path."""
    return _RUN_ID.fullmatch(text) is not None


def check_document(kind: str, key: str) -> None:
    """Refuse what can't be the name of a document; no other text becomes part of a path.

    Raises:
        StoreError: it can't name one.
    """
    if _KIND.fullmatch(kind) is None or _KEY.fullmatch(key) is None:
        raise StoreError(f"{key!r} is not a valid key for documents of kind {kind!r}")


class Reader(Protocol):
    """Where recorded runs come from."""

    def read(self, run: str, *, after: int = 0) -> RunTrace:
        """A run's trace, or what follows its first `after` lines.

        To follow a live run, pass the number of lines already read: they are not read again.

        Raises:
            RunNotFound: there is no such run.
            TraceCorrupt: it has fewer lines than that: it was cut off.
            StoreError: it can't be read.
        """
        ...

    def get_blob(self, digest: str) -> bytes:
        """A large value, found to be what its digest says. Raises StoreError."""
        ...

    def stop_order(self, run: str) -> StopOrder | None:
        """Whether a run has an order to stop or pause that was not lifted.

        Raises:
            StoreError: it can't be determined.
        """
        ...

    def lock(self, run: str) -> Lock:
        """Keep a run from being written or resumed by others, its torn tail set aside.

        Raises:
            RunInUse: it has a live writer, or is being resumed.
            RunNotFound: there is no such run, or it was pruned.
            StoreError: it can't be determined whether it has one.
        """
        ...


@runtime_checkable
class Store(Reader, Protocol):
    """Where runs are kept."""

    url: str  # by which `open_store` finds it again
    waits: bool  # whether it may wait for others, or a network, so that it is for threads only

    def exists(self) -> bool:
        """Whether there is such a store; nothing is made by asking."""
        ...

    def opening(self) -> AbstractContextManager[None]:
        """Held while a session looks for its source and creates its run, across processes."""
        ...

    def info(self, run: str) -> RunInfo:
        """What the index knows of a run, at a cost that does not grow with the others.

        Raises:
            RunNotFound: there is no such run.
            StoreError: it can't be determined.
        """
        ...

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
        """Runs in the order in which they began; never by their times: clocks go back.

        Args:
            name: only those of this job.
            status: only those with this one; `unfinished` for those that have none.
            source: only those that replay this run.
            since: only those that began then or later (Unix, µs).
            before: only those that began earlier than that (Unix, µs).
            limit: of all these, only so many of the newest; what they cost does not grow with the
                older ones.

        Raises:
            StoreError: it can't be determined.
        """
        ...

    def live(self, run: str) -> bool:
        """Whether somebody writes, resumes or undoes a run now; to ask is in nobody's way.

        Raises:
            RunNotFound: there is no such run.
            StoreError: it can't be determined.
        """
        ...

    def newest(self, name: str, of: str | None) -> RunInfo | None:
        """What `newest_run` finds in `runs`, at a cost that does not grow with other jobs' runs.

        Args:
            name: of the job.
            of: the digest of its input; None where it has none.
        """
        ...

    def create(self, started: dict[str, Any], order: StopOrder | None = None) -> Writer:
        """A new run, begun with its run.started event.

        Args:
            started: that event.
            order: of a run that it resumes, and that holds for it too, until that is lifted.
        """
        ...

    def reopen(self, run: str) -> Writer:
        """A dead run, to append to. Raises RunInUse, RunNotFound."""
        ...

    def stop(self, order: StopOrder) -> None:
        """Stop or pause a run, and each that is resuming it by now: seen at their next call.

        No session resumes a run that has an order to stop; the calls of one that resumes a paused
        run wait. A second order replaces the first, but no pause replaces a stop. See
        `rollcage.store.pause`, which also looks whether there is anything to pause.

        Raises:
            OrderRefused: who says so, and why, is too long.
            RunNotFound: there is no such run.
            OrderRefused: it is to be paused, and has an order to stop.
            StoreError: the order can't be given, or not to all that resume it.
        """
        ...

    def lift(self, run: str, kind: OrderKind | None = None) -> bool:
        """Withdraw the order that was given to this run; whether there was one.

        Calls that wait for that go on. What was halted stays so: a new session resumes the run.

        Args:
            run: its id.
            kind: only an order of this kind; None for whichever there is.

        Raises:
            RunNotFound: there is no such run.
            StoreError: the order can't be given.
        """
        ...

    def put_once(self, kind: str, key: str, data: bytes) -> bool:
        """Keep a small document, on the disk.

        It is written once: of all who try, in whichever process, one gets True.

        Args:
            kind: what it is, a lower-case word (`approvals`).
            key: letters, digits, `-`, `_` and `.`; at most 128.
            data: all of it.

        Raises:
            StoreError: it can't be kept.
        """
        ...

    def get(self, kind: str, key: str) -> bytes | None:
        """A document; None where there is none.

        Raises:
            StoreError: it can't be determined.
        """
        ...

    def keys(self, kind: str) -> Sequence[str]:
        """The keys of all documents of a kind, sorted.

        Raises:
            StoreError: it can't be determined.
        """
        ...

    def drop(self, kind: str, key: str) -> None:
        """Remove a document, if it is there: one of what is pruned.

        Raises:
            StoreError: it can't be removed.
        """
        ...

    def log(self, name: str, begins: str) -> Log:
        """An append-only list of lines, apart from the runs; `begins` is the event of its first."""
        ...

    def put_blob(self, digest: str, data: bytes) -> None:
        """Keep a large value under its SHA-256 (hex)."""
        ...

    def blobs(self) -> Sequence[str]:
        """The digests of all large values that are kept, whether they are whole or not.

        Raises:
            StoreError: it can't be determined.
        """
        ...

    def drop_blob(self, digest: str) -> None:
        """Remove a large value, if it is there. The caller knows that no run holds it.

        Raises:
            StoreError: it can't be removed.
        """
        ...

    def secret_key(self) -> bytes:
        """The key of the store's HMACs (32 bytes), made when first asked for."""
        ...

    def take_key(self, key: bytes) -> bool:
        """Have the HMACs made with this key, where there is none yet; whether it is the store's.

        Raises:
            StoreError: it can't be determined, or can't be kept.
        """
        ...

    def restore(self, trace: RunTrace) -> bool:
        """Keep a copy of a run that is not live, from another store: all of it, or nothing.

        A shorter copy of the same run that is here already is continued. `trace.info` is what is
        attested of it, and whether it was pruned. It is listed after all runs that are here.

        Returns:
            False where nothing was to be done: it is here, or what is here goes farther.

        Raises:
            RunConflict: what is here of this run is something else.
            RunInUse: what is here of this run is being written or resumed.
            StoreError: it can't be kept.
        """
        ...

    def prune(self, run: str, *, by: str, time: int, skeleton: bytes = b"") -> None:
        """Remove the trace of a run that has ended; what `info` gives of it stays.

        From then on nobody resumes it, undoes it or writes to it. The caller has seen to it that
        nobody needs to. Once begun, it is brought to an end by being asked for again.

        Args:
            run: its id.
            by: who says so.
            time: when (Unix, µs).
            skeleton: whole lines, in a chain of their own, that are left in its place.

        Raises:
            RunInUse: it is being written or resumed.
            RunNotFound: there is no such run.
            StoreError: it has not ended with its end attested, a run that is not pruned builds on
                it, or it can't be removed.
        """
        ...

    def check(self) -> Repair:
        """What `repair` would find; nothing is changed.

        Raises:
            StoreError: it can't be read.
        """
        ...

    def repair(self) -> Repair:
        """Rebuild what is derived from the traces, where it is damaged, lost or out of date.

        Raises:
            StoreError: it can't be read, or the store can't be written.
            TraceUnwritable: it can't be written.
        """
        ...


@runtime_checkable
class StepsStore(Store, Protocol):
    """A store that keeps the parsed steps of a trace next to it: it opens faster as a source.

    They are derived and signed: without them the trace is parsed, so a store may lack this.
    """

    def measure(self, run: str) -> Measured | None:
        """A trace without its lines; None if its last line is torn.

        Raises:
            RunNotFound: there is no such run.
            StoreError: it can't be read.
        """
        ...

    def head(self, run: str) -> str:
        """The hash of a trace's last line (hex), at a cost that does not grow with the trace.

        Empty if that line is torn.

        Raises:
            RunNotFound: there is no such run.
            StoreError: it can't be read.
        """
        ...

    def get_steps(self, run: str) -> bytes | None:
        """What is kept next to a trace; None if nothing is, or it can't be read."""
        ...

    def put_steps(self, run: str, data: bytes | None) -> None:
        """Keep it, or with None remove it; if it can't be written, it is not kept."""
        ...
