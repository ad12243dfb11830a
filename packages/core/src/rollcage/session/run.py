"""A run that is open: where it is kept, what it builds on, and the locks that it holds."""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rollcage.errors import RunNotFound, SessionError, StoreReadOnly
from rollcage.fingerprint.identity import uuid7
from rollcage.replay.recording import Lineage, Recording, read
from rollcage.session.job import JobRequest
from rollcage.session.lineage import (
    SourceRun,
    check_newest,
    read_forked,
    read_lineage,
    read_traces,
    take_source,
)
from rollcage.step.clock import Clock
from rollcage.step.driver import Driver
from rollcage.store.at_once import WouldWait, at_once
from rollcage.store.protocol import Lock, RunTrace, StopOrder, Store, Writer, check_attested
from rollcage.trace.reader import ended

__all__ = ["Key", "OpenRun"]


class Key:
    """The key of a store: it makes the HMACs that replace secrets.

    `instead` is the store that has it if the first has none and can't be written.
    """

    def __init__(self, store: Store) -> None:
        self.instead: Store | None = None
        self._store = store
        self._key: bytes | None = None

    def sign(self, secret: str) -> str:
        """The HMAC of a secret (hex)."""
        if self._key is None:
            try:
                self._key = self._store.secret_key()
            except StoreReadOnly:  # nothing in it was secret
                if self.instead is None:
                    raise
                self._key = self.instead.secret_key()
        return hmac.new(self._key, secret.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


class OpenRun:
    """A run that is open: recorded now, opened again to be appended to, or only inspected.

    Attributes:
        id: the run's id.
        root: the first run of its lineage.
        epoch: how often the lineage was undone down to some step before this run began.
        store: where it is kept, and its large values.
        source: what it replays, and how; None if it is not recorded now.
        writer: appends to its trace; None before that has begun, or if it is only inspected.
        pause: the order of a run that it resumes, with which it begins.
    """

    def __init__(
        self, store: Store, run: str, root: str, source: SourceRun | None, locks: list[Lock]
    ) -> None:
        self.id = run
        self.root = root
        self.epoch = 0
        self.store = store
        self.source = source
        self.writer: Writer | None = None
        self.pause: StopOrder | None = None
        self._locks = locks
        self._attested: str | None = None  # how it had ended, if it was opened again

    # --- opening ---------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        job: JobRequest,
        store: Store,
        kept: Store,
        clock: Clock,
        *,
        settings: Mapping[str, Any],
        retry_failed: bool | None,
    ) -> tuple[OpenRun, SourceRun, Recording | None]:
        """A new run of a job, its source, and what that holds; nothing is written yet.

        Args:
            job: its source is found by it.
            store: where that is looked for.
            kept: where the run will be kept.
            clock: gives its id.
            settings: what its source must have been recorded with.
            retry_failed: see `Session`.
        """
        locks: list[Lock] = []
        try:
            source = take_source(store, job, locks)
            run = root = uuid7(clock.wall() // 1_000_000, clock.random(10))
            recording: Recording | None = None
            pauses: list[StopOrder] = []
            if source.run is not None and job.fork is not None:
                recording = read_forked(source, job, store, settings=settings)
            elif source.run is not None:
                recording = read_lineage(
                    source,
                    job,
                    store,
                    settings=settings,
                    retry_failed=retry_failed,
                    locks=locks,
                    pauses=pauses,
                )
                root = str(recording.run_settings.get("root") or source.run)
        except BaseException:
            _release(locks)
            raise
        opened = cls(kept, run, root, source, locks)
        opened.epoch = 0 if recording is None else recording.rewinds
        if pauses:  # that of another store can't be lifted in this one: here, it is its own
            own = pauses[0] if source.reader is kept else replace(pauses[0], run=run)
            opened.pause = own
        return opened, source, recording

    @classmethod
    def reopen(cls, store: Store, run: str) -> tuple[OpenRun, Writer, Lineage]:
        """A finished run, to be appended to: it and all that it builds on are locked.

        Raises:
            StoreError: it, or a run that it builds on, is gone, in use or corrupt.
            SessionError: it only looked back, or another one builds on it.
        """
        writer = store.reopen(run)
        locks: list[Lock] = []
        try:
            trace, lineage = _looked_up(store, run)
            locks += map(store.lock, lineage.runs[:-1])
        except BaseException:
            _release(locks)
            writer.close()
            raise
        reopened = cls(store, run, str(lineage.settings["root"]), None, locks)
        reopened.writer = writer
        reopened._attested = None if trace.info is None else trace.info.status
        return reopened, writer, lineage

    @classmethod
    def inspect(cls, store: Store, run: str) -> tuple[OpenRun, Lineage]:
        """A finished run, to be inspected: nothing is locked, nothing is written.

        Raises as `reopen` does, except for a run in use.
        """
        _, lineage = _looked_up(store, run)
        return cls(store, run, str(lineage.settings["root"]), None, []), lineage

    # --- what it holds ---------------------------------------------------------------------------

    def recall(self) -> Lineage:
        """What the run and its lineage hold."""
        return read(self.traces())

    def traces(self) -> list[tuple[str, bytes]]:
        """The traces of the run and of all that it builds on, oldest first."""
        if self.source is None:
            self._catch_up()
            return read_traces(self.store, self.id, locks=None, whole=True)
        own = self._own()
        traces = [(own.where, own.data)]
        if self.source.run is not None and self.source.mode != "fork":
            with contextlib.suppress(RunNotFound):  # what was replayed of it is in the own one
                traces = read_traces(self.source.reader, self.source.run, locks=None) + traces
        return traces

    # --- leaving ---------------------------------------------------------------------------------

    def finish(
        self, driver: Driver, event: dict[str, Any] | None, status: str
    ) -> Generator[Callable[[], None], None, None]:
        """Write its last line, if any, and attest how it has ended; work that waits is yielded."""
        with driver.lock:
            driver.closed = True  # first: nothing comes after this line, from whichever thread
            if event is not None:
                driver.writer.append(event if driver.seal is None else driver.seal.event(event))
        yield driver.writer.sync
        if status:
            attest = partial(driver.writer.attest, status)
            try:
                with at_once():
                    attest()
            except WouldWait:
                yield attest

    @property
    def status_again(self) -> str:
        """How a run that was opened again has ended by now; empty if that was not attested."""
        return "" if self._attested is None else ended(self._own().data) or ""

    def _own(self) -> RunTrace:
        self._catch_up()
        return self.store.read(self.id)

    def _catch_up(self) -> None:
        """See that the store has all that was written by now."""
        if self.writer is not None and self.writer.buffered:
            self.writer.sync()

    def close(self) -> None:
        """Release the trace and the locks."""
        if self.writer is not None:
            self.writer.close()
        _release(self._locks)


def _looked_up(store: Store, run: str) -> tuple[RunTrace, Lineage]:
    """A finished run, and what its lineage holds, for an undo of it."""
    trace = store.read(run)
    check_attested(trace)
    lineage = read(read_traces(store, run, locks=None, whole=True))
    settings = lineage.settings
    if settings["mode"] == "imported":
        raise SessionError(
            f"run {run} was imported: Rollcage performed none of its calls and does not know how "
            f"to undo their effects"
        )
    if settings["mode"] in ("offline", "verify"):
        raise SessionError(
            f"run {run} was a replay only ({settings['mode']}): undo the run that it replayed, "
            f"{settings['source']}"
        )
    check_newest(store, run, "undo")
    return trace, lineage


def _release(locks: list[Lock]) -> None:
    for lock in locks:
        lock.release()
    locks.clear()
