"""Adds to a SQLite file what tasks have queued: their event loop must not wait for it.

To commit, SQLite waits for whoever writes just now, and now and then for the disk. So a thread does
it, in one transaction for all sessions of the process. It ends when it has long had nothing to do.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final

from rollcage.errors import StoreError, TraceUnwritable
from rollcage.store.held import Held, Row
from rollcage.store.sql import ATTEST
from rollcage.store.sqlite_database import SqliteDatabase, identity, unwritable

__all__ = ["APPEND", "SqliteCommitter", "changed", "committer_of"]

# A line is added after the one that this writer wrote last, or not at all.
APPEND: Final = (
    "INSERT INTO lines SELECT ?1, ?2, ?3"
    " WHERE ?2 = 1 + (SELECT max(number) FROM lines WHERE place = ?1)"
)
_STANDS: Final = "SELECT number, line FROM lines WHERE place = ? AND number >= ? ORDER BY number"
_IDLE: Final = 5.0  # seconds
_SOON: Final = 0.05  # seconds after which a line is added that nobody waits for


class SqliteCommitter:
    """Adds the lines of all runs that tasks of this process write to one file."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._file = identity(database)
        self._held: dict[int, Held] = {}
        self._turn = threading.Lock()  # whoever has it writes
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether somebody waits
        self._rung = self._hurries = False
        self._connection: sqlite3.Connection | None = None
        _committers.add(self)

    # --- for any thread --------------------------------------------------------------------------

    def take(self, held: Held) -> None:
        """Write the lines of this run, too."""
        self._held[held.place] = held

    def leave(self, held: Held) -> None:
        """Write no more lines of this run."""
        with self._turn:
            self._held.pop(held.place, None)
            connection = None if self._held else self._connection
            if connection is not None:
                self._connection = None
                self._database.give_back(connection)

    def add(self, held: Held, row: Row) -> None:
        """Add a row after the last one; it is in the store when `sync` or `synced` says so."""
        held.queue.append(row)
        self._ring(hurries=False)

    def synced(self, held: Held) -> Future[None]:
        """Done when all that was added to a run is in the store; a TraceUnwritable, if it can't be.

        It stays queued then, and is added as soon as it can be.
        """
        done = held.wait()
        if not done.done():
            self._ring(hurries=True)
        return done

    def sync(self, held: Held) -> None:
        """Have all that was added to a run in the store, in this thread. Raises TraceUnwritable."""
        with self._turn:
            self._add_to(held)
        held.check()

    def forget(self) -> None:
        """In a forked child: the runs, the connection and its thread are the parent's."""
        self._turn, self._guard = threading.Lock(), threading.Lock()
        self._held.clear()
        self._thread, self._connection = None, None

    def _ring(self, *, hurries: bool) -> None:
        with self._guard:
            if self._thread is None:
                name = f"rollcage commits to {self._database.path.name}"
                self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._thread.start()
            elif self._rung and self._hurries >= hurries:
                return
            self._rung, self._hurries = True, self._hurries or hurries
        self._bell.put(hurries)

    # --- the thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                hurries = self._bell.get(timeout=_IDLE)
                while not hurries:  # who hurries does the rest, too
                    with contextlib.suppress(queue.Empty):
                        hurries = self._bell.get(timeout=_SOON)
                        continue
                    break
            except queue.Empty:
                with self._guard:
                    if self._bell.empty():
                        self._thread = None
                        return
                continue
            with self._guard:
                self._rung = self._hurries = False  # first: what comes from here on rings again
            with self._turn:
                self._add_all()

    def _add_all(self) -> None:
        """Add what is queued; where that fails for all of them, run by run."""
        batch = [held for held in list(self._held.values()) if held.queue and not held.lost]
        rows = {held.place: list(held.queue) for held in batch}
        if len(batch) > 1:
            with contextlib.suppress(Exception):
                if self._commit((place, row) for place in rows for row in rows[place]):
                    for held in batch:
                        held.settle(rows[held.place])
                    return
        for held in batch:
            try:
                self._add_to(held)
            except TraceUnwritable as error:
                held.fail(error)
            except Exception as error:  # noqa: BLE001 - whoever waits gets it, whatever it is
                held.fail(TraceUnwritable(f"the trace of run {held.run}: {error!r}"))

    # --- whoever has the turn --------------------------------------------------------------------

    def _add_to(self, held: Held) -> None:
        """Add what is queued for one run. Raises TraceUnwritable."""
        try:
            while held.queue and not held.lost:
                rows = list(held.queue)
                if self._commit((held.place, row) for row in rows):
                    held.settle(rows)
                else:
                    self._examine(held)
        except (sqlite3.Error, OSError) as error:
            raise unwritable(held.run, error) from error
        except StoreError as error:  # there is no file any more
            raise TraceUnwritable(f"the trace of run {held.run}: {error}") from error

    def _commit(self, rows: Iterable[tuple[int, Row]]) -> bool:
        """Add rows in one transaction; False where one of them does not fit, and none was added."""
        given = [(place, row.number, row.line) for place, row in rows]
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            fits = connection.executemany(APPEND, given).rowcount == len(given)
            fits = fits and identity(self._database) == self._file
            connection.execute("COMMIT" if fits else "ROLLBACK")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return fits

    def _examine(self, held: Held) -> None:
        """See whether what stands after the last line is ours: the run is lost where it is not."""
        held.settle(())
        place, end = held.place, held.end
        stands = self._connected().execute(_STANDS, (place, max(end.number, 1))).fetchall()
        own = [end, *held.queue]
        same = stands and stands[0][1][-67:-3] == end.head.hex().encode()
        ours = [(row.number, row.line) for row in own[1 : len(stands)]]
        if same and ours == stands[1:] and identity(self._database) == self._file:
            held.settle(own[1 : len(stands)])
            return
        with contextlib.suppress(sqlite3.Error):
            given = ("halted", end.number, end.head.hex(), place)
            self._connected().execute(ATTEST, given)
        held.lose(changed(self._database, end.number))

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._database.borrow()
        return self._connection


def changed(database: SqliteDatabase, count: int) -> str:
    """Why a run is not written any more whose lines are not those that were written."""
    return (
        f"somebody else changed it while the run was live ({database.url}). Nothing more runs in "
        f"it; bring it back as it was, with {count} lines, to resume it"
    )


_committers: weakref.WeakSet[SqliteCommitter] = weakref.WeakSet()
_by_file: weakref.WeakValueDictionary[object, SqliteCommitter] = weakref.WeakValueDictionary()
_finding = threading.Lock()


def _leave_to_parent() -> None:
    """In a forked child: what tasks have queued is the parent's."""
    global _finding  # noqa: PLW0603 - another thread of the parent may have had it
    _finding = threading.Lock()
    _by_file.clear()
    for committer in list(_committers):
        committer.forget()


os.register_at_fork(after_in_child=_leave_to_parent)


def committer_of(database: SqliteDatabase) -> SqliteCommitter:
    """The one of this process for this file."""
    key = (database.path, identity(database))
    with _finding:
        committer = _by_file.get(key)
        if committer is None:
            committer = _by_file[key] = SqliteCommitter(database)
        return committer
