"""The one live writer of a run in a SQLite store."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import weakref
from concurrent.futures import Future
from typing import Any, Final

from rollcage.errors import ControlLost, Forked, TraceUnwritable
from rollcage.store.held import Held, Row
from rollcage.store.protocol import StopOrder
from rollcage.store.sql import ATTEST, ends_again, order_of
from rollcage.store.sqlite_committer import APPEND, SqliteCommitter, changed, committer_of
from rollcage.store.sqlite_database import RunLock, SqliteDatabase, identity, unwritable
from rollcage.trace.events import seal_line

__all__ = ["SqliteWriter"]

_log: Final = logging.getLogger("rollcage")
_writers: weakref.WeakSet[SqliteWriter] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: the run stays the parent's."""
    for writer in list(_writers):
        writer.abandon()


os.register_at_fork(after_in_child=_leave_to_parent)


class SqliteWriter:
    """Adds lines to one run, whose lock it holds, each in a transaction of its own.

    Those of a task `queue`, and are committed together with those of others (see the committer).
    """

    def __init__(
        self,
        database: SqliteDatabase,
        run: str,
        place: int,
        lock: RunLock,
        end: tuple[int, bytes],
        *,
        durable: bool = False,
        reopened: bool = False,
    ) -> None:
        self.run = run
        self.forked = False
        self.buffered = False
        self.waits = True
        self._durable = durable
        self._reopened = reopened
        self._held: Held | None = None  # where its lines queue
        self._committer: SqliteCommitter | None = None
        self._database = database
        self._place = place
        self._lock = lock
        # Lines and head; set in one go, for Ctrl-C may come between any two instructions.
        self._end = self._next = end
        self._seen = -1  # the version of the data in which no order to stop was
        self._file = identity(database)
        self._connection: sqlite3.Connection | None = database.borrow()
        _writers.add(self)

    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise self._closed()
        return self._connection

    def _closed(self) -> Exception:
        if self.forked:
            return Forked(f"run {self.run} belongs to the parent process; open a session here")
        return TraceUnwritable(f"the trace of run {self.run} can't be written: it is closed")

    def queue(self) -> None:
        committer = committer_of(self._database)
        count, head = self._end
        self._held, self._committer = (
            Held(self.run, self._place, Row(count, b"", head), 0),
            committer,
        )
        self.buffered = True
        committer.take(self._held)

    def append(self, event: dict[str, Any]) -> None:
        if self._held is not None and self._committer is not None:
            self._db()
            self._held.check()
            count, _, head = self._held.last
            self._committer.add(self._held, Row(count + 1, *seal_line(event, head)))
            return
        if self._next is not self._end:
            self._recover()
        count, head = self._end
        line, head = seal_line(event, head)
        self._next = (count + 1, head)
        try:
            added = self._db().execute(APPEND, (self._place, count + 1, line)).rowcount
        except sqlite3.Error as error:
            self._next = self._end
            raise unwritable(self.run, error) from error
        if added != 1 or identity(self._database) != self._file:
            raise self._lost()
        self._end = self._next

    def _recover(self) -> None:
        """The last append was interrupted: see whether it got through."""
        last = "SELECT line FROM lines WHERE place = ? AND number = ?"
        try:
            row = self._db().execute(last, (self._place, self._next[0])).fetchone()
        except sqlite3.Error as error:
            raise unwritable(self.run, error) from error
        through = row is not None and row[0][-67:-3] == self._next[1].hex().encode()
        self._end = self._next = self._next if through else self._end

    def _lost(self) -> TraceUnwritable:
        """The trace is not what was written; from now on, its attested end shows that."""
        self._next = self._end
        count, head = self._end
        with contextlib.suppress(sqlite3.Error):
            self._db().execute(ATTEST, ("halted", count, head.hex(), self._place))
        return TraceUnwritable(
            f"the trace of run {self.run} is not what was written to it: "
            f"{changed(self._database, count)}"
        )

    def send(self) -> bool:
        return not (self.buffered or self._durable)

    def sync(self) -> None:
        self._flush()
        if self.buffered and not self._durable:
            return
        try:
            self._database.sync()
        except OSError as error:
            raise unwritable(self.run, error) from error

    def _flush(self) -> None:
        """Have all that is queued in the store."""
        if self._held is not None and self._committer is not None:
            self._db()
            self._committer.sync(self._held)
            self._end = self._next = self._held.end.number, self._held.end.head

    def synced(self) -> Future[None] | None:
        if self._held is None or self._committer is None or self._durable:
            return None
        self._db()
        return self._committer.synced(self._held)

    def stop_order(self, *, closely: bool = False) -> StopOrder | None:
        if self._connection is None:  # closed: nothing runs in it any more
            return None
        if closely and identity(self._database) != self._file:
            raise ControlLost(self.run, f"its store {self._database.url} was moved or removed")
        try:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            if version == self._seen:
                return None
            order = order_of(self._connection, self._place)
        except sqlite3.Error as error:
            raise ControlLost(self.run, f"its store can't be read: {error}") from error
        self._seen = version if order is None else -1
        return order

    def attest(self, status: str) -> None:
        self._flush()
        if self._next is not self._end:
            self._recover()
        count, head = self._end
        own = "SELECT max(number) FROM lines WHERE place = ?"
        try:
            there = self._db().execute(own, (self._place,)).fetchone()[0]
            if there != count or identity(self._database) != self._file:
                raise self._lost()
            self._db().execute(ATTEST, (status, count, head.hex(), self._place))
            if self._reopened:
                ends_again(self._db(), self.run)
        except sqlite3.Error as error:
            raise unwritable(self.run, error) from error

    def close(self) -> None:
        _writers.discard(self)
        if self._held is not None and self._committer is not None and not self.forked:
            try:
                if self._connection is not None and self._held.queue and not self._held.lost:
                    self._committer.sync(self._held)
            except TraceUnwritable as error:
                _log.warning("%s", error)
            finally:
                self._committer.leave(self._held)
        connection, self._connection = self._connection, None
        if connection is not None and not self.forked:
            self._database.give_back(connection)
        elif connection is not None:
            self._database.leave(connection)
        self._lock.release()

    def abandon(self) -> None:
        """In a forked child: the run, its lock and its connection stay the parent's."""
        self.forked = True
        self.close()
