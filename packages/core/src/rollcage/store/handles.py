"""What a store gives to whoever writes: the lock of a run, its writer, a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from rollcage.store.records import StopOrder

__all__ = ["Line", "Lock", "Log", "Writer"]

Line = tuple[int, dict[str, Any]]
"""The number of a log's line (from 1), and what it holds."""


class Lock(Protocol):
    """A run that nobody else can write or resume until `release`."""

    def release(self) -> None:
        """Let others have it."""
        ...


class Writer(Protocol):
    """The one live writer of a run. Not thread-safe: its session has the lock."""

    run: str
    buffered: bool  # whether `append` may return before the line is in the store
    waits: bool  # whether `append` may wait for somebody else: for a lock, or for a server

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, which must not write."""
        ...

    def queue(self) -> None:
        """Wait for nobody in `append` from now on: be `buffered`, where that would be needed.

        Asked for where tasks make the calls: their event loop must go on. It may wait for what
        never takes long, as a write to a file of one's own.
        """
        ...

    def append(self, event: dict[str, Any]) -> None:
        """Add an event; when this returns, a killed process loses nothing of it.

        Where it is `buffered`, that is so when the next `sync` returns, or a `send` is true: a
        session waits for a `sync` before a write runs, and for either before its outcome counts.

        Raises:
            TraceUnwritable: it is not in the trace: that can't be written, or somebody else has
                removed or changed it, which is seen at the latest before a body runs.
        """
        ...

    def send(self) -> bool:
        """Put what was appended where a killed process loses nothing of it, without a wait.

        False where it takes one, or can't be done: then `sync` waits, or says why.
        """
        ...

    def sync(self) -> None:
        """Wait until all that was appended is on the disk; callers at once share one wait.

        Raises:
            TraceUnwritable: it can't be written.
        """
        ...

    def synced(self) -> Future[None] | None:
        """As `sync`, done when that would return; None where only a thread can wait for it."""
        ...

    def stop_order(self, *, closely: bool = False) -> StopOrder | None:
        """Whether the run has an order to stop or pause. Looked up for each call: one system call.

        Where a body is about to run it is looked at `closely`: could an order still be seen?

        Raises:
            ControlLost: nobody could stop the run any more: what says so is gone.
        """
        ...

    def attest(self, status: str) -> None:
        """Note the trace's count and head in the index: from now on a truncation shows.

        Raises:
            TraceUnwritable: that can't be written, or the trace is not what was written to it.
        """
        ...

    def close(self) -> None:
        """Give the run up."""
        ...


class Log(Protocol):
    """An append-only list of JSON lines that any number of processes write.

    Each line holds the hash of the one before, as those of a trace do, and how many there are is
    attested, so that what is cut off from the end shows, too.
    """

    where: str  # a name for it in messages

    def read(self) -> list[Line]:
        """Its lines; none where it was never written.

        Raises:
            RegistryCorrupt: the first line that breaks the chain, or that lines are gone.
            StoreError: it can't be read.
        """
        ...

    def append(
        self, make: Callable[[list[Line]], Sequence[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Add lines, once nobody else does: `make` is called with what is there, and gives them.

        When this returns, they are on the disk. What `make` raises ends it; nothing is written.

        Returns:
            The lines that were added.

        Raises:
            RegistryCorrupt: as in `read`; nothing is written.
            StoreError: they are not in the log, and it is as it was.
        """
        ...
