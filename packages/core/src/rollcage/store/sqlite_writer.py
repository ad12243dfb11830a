"""The one live writer of a run in a SQLite store."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import weakref
from typing import Any, Final

from rollcage.errors import ControlLost, Forked, TraceUnwritable
from rollcage.store.database import Database, RunLock, unwritable
from rollcage.store.protocol import StopOrder
from rollcage.store.sql import ATTEST, order_of
from rollcage.trace.events import seal_line

__all__ = ["SqliteWriter"]

# A line is added behind the one that this writer wrote last, or not at all.
_APPEND: Final = (
    "INSERT INTO lines SELECT ?1, ?2, ?3"
    " WHERE ?2 = 1 + (SELECT max(number) FROM lines WHERE place = ?1)"
)
_writers: weakref.WeakSet[SqliteWriter] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: the run stays the parent's."""
    for writer in list(_writers):
        writer.abandon()


os.register_at_fork(after_in_child=_leave_to_parent)


class SqliteWriter:
    """Adds lines to one run, whose lock it holds, each in a transaction of its own."""

    buffered = False

    def __init__(
        self, database: Database, run: str, place: int, lock: RunLock, end: tuple[int, bytes]
    ) -> None:
        self.run = run
        self.forked = False
        self._database = database
        self._place = place
        self._lock = lock
        # Lines and head; set in one go, for Ctrl-C may come between any two instructions.
        self._end = self._next = end
        self._seen = -1  # the version of the data in which no order to stop was
        self._file = _identity(database)
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

    def append(self, event: dict[str, Any]) -> None:
        if self._next is not self._end:
            self._recover()
        count, head = self._end
        line, head = seal_line(event, head)
        self._next = (count + 1, head)
        try:
            added = self._db().execute(_APPEND, (self._place, count + 1, line)).rowcount
        except sqlite3.Error as error:
            self._next = self._end
            raise unwritable(self.run, error) from error
        if added != 1 or _identity(self._database) != self._file:
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
            f"the trace of run {self.run} is not what was written to it: somebody else changed it "
            f"while the run was live ({self._database.url}). Nothing more runs in it; bring it "
            f"back as it was, with {count} lines, to resume it"
        )

    def sync(self) -> None:
        try:
            self._database.sync()
        except OSError as error:
            raise unwritable(self.run, error) from error

    def synced(self) -> None:
        """Nobody else could say so: who wants to know, waits in a thread."""

    def stop_order(self, *, closely: bool = False) -> StopOrder | None:
        if self._connection is None:  # closed: nothing runs in it any more
            return None
        if closely and _identity(self._database) != self._file:
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
        if self._next is not self._end:
            self._recover()
        count, head = self._end
        own = "SELECT max(number) FROM lines WHERE place = ?"
        try:
            there = self._db().execute(own, (self._place,)).fetchone()[0]
            if there != count or _identity(self._database) != self._file:
                raise self._lost()
            self._db().execute(ATTEST, (status, count, head.hex(), self._place))
        except sqlite3.Error as error:
            raise unwritable(self.run, error) from error

    def close(self) -> None:
        _writers.discard(self)
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


def _identity(database: Database) -> tuple[int, int] | None:
    """Which file has the store's name now; None where there is none."""
    try:
        found = os.stat(database.path)  # noqa: PTH116 - on the hot path
    except OSError:
        return None
    return found.st_dev, found.st_ino
