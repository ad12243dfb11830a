"""The one live writer of a run in a PostgreSQL store."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any, Final

from rollcage.errors import Forked, StoreError, TraceUnwritable
from rollcage.store.held import Held, Row
from rollcage.store.postgres_committer import PostgresCommitter
from rollcage.store.postgres_connection import Connection
from rollcage.store.postgres_taking import attest
from rollcage.store.protocol import StopOrder
from rollcage.store.sql import ends_again
from rollcage.trace.events import seal_line

__all__ = ["PostgresLock", "PostgresWriter"]


_log: Final = logging.getLogger("rollcage")


class PostgresLock:
    """A run that nobody else can write or resume until `release`."""

    def __init__(self, owner: object, committer: PostgresCommitter, held: Held) -> None:
        self._owner = owner  # with whom the committer ends
        self._committer = committer
        self._held: Held | None = held

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._committer.release(held)


class PostgresWriter:
    """Adds lines to one run, whose lock its process has; the committer writes them."""

    buffered = True
    waits = True

    def __init__(
        self,
        owner: object,
        committer: PostgresCommitter,
        held: Held,
        *,
        durable: bool = False,
        reopened: bool = False,
    ) -> None:
        self.run = held.run
        self._durable = durable
        self._reopened = reopened
        self._committer = committer
        self._held = held
        self._lock = PostgresLock(owner, committer, held)
        self._closed = False

    @property
    def forked(self) -> bool:
        return self._committer.forked

    def _check(self) -> None:
        if self.forked:
            raise Forked(f"run {self.run} belongs to the parent process; open a session here")
        self._held.check()
        if self._closed:
            raise TraceUnwritable(f"the trace of run {self.run} can't be written: it is closed")

    def queue(self) -> None:
        """All lines do."""

    def append(self, event: dict[str, Any]) -> None:
        self._check()
        last = self._held.last
        line, head = seal_line(event, last.head)
        self._committer.add(self._held, Row(last.number + 1, line, head))

    def send(self) -> bool:
        is_live = not (self.forked or self._closed or self._durable)
        return is_live and self._committer.send(self._held)

    def sync(self) -> None:
        self._check()
        self._committer.sync(self._held)

    def synced(self) -> Future[None]:
        self._check()
        return self._committer.synced(self._held)

    def stop_order(self, *, closely: bool = False) -> StopOrder | None:  # noqa: ARG002
        if self._closed or self.forked:
            return None
        self._held.check()
        self._committer.hear()
        return self._held.order

    def attest(self, status: str) -> None:
        self.sync()

        def job(connection: Connection) -> None:
            attest(self._committer.runs, connection, self._held, status)
            if self._reopened:
                ends_again(connection, self.run)

        try:
            self._committer.do(job)
        except StoreError as error:
            raise TraceUnwritable(f"the end of run {self.run} is not attested: {error}") from error

    def close(self) -> None:
        if self._closed or self.forked:
            return
        try:
            if self._held.queue and not self._held.lost:
                self.sync()
        except TraceUnwritable as error:
            _log.warning("%s", error)
        finally:
            self._closed = True
            self._lock.release()
