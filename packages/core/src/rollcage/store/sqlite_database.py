"""The file of a SQLite store: its schema, its connections, and the file of its locks.

SQLite knows no lock that outlives a transaction and ends with its process. A run that is being
written, or resumed, is locked in a file next to the database, `<name>-runs`: one byte a run, at the
run's place, by a lock of the open file, which the system releases when the process dies. Byte 0
is held while a session opens.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rollcage.errors import StoreError, StoreInvalid, StoreReadOnly, TraceUnwritable
from rollcage.store import disk, layout
from rollcage.store.sqlite_schema import bring_up, check_tables, make_tables

__all__ = ["RunLock", "SqliteDatabase", "failed", "identity", "unwritable"]

WAIT: Final = 30.0  # seconds for another process that writes just now
_IDLE: Final = 32  # connections that are kept open while nobody uses them
_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, length, process
_databases: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()
_left: Final[list[sqlite3.Connection]] = []  # the parent's, in a forked child: never closed there


def _leave_to_parent() -> None:
    """In a forked child: what the parent has open stays the parent's."""
    for database in list(_databases):
        database.forget()
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_leave_to_parent)


def _close(connections: list[sqlite3.Connection]) -> None:
    """Close what nobody uses any more: its database is gone, or the process is at its end."""
    while connections:
        connections.pop().close()


class RunLock:
    """A byte of the file of locks, until `release` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _locks.add(self)

    def release(self) -> None:
        """Let others have it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class SqliteDatabase:
    """A SQLite file, made when something is first written to it.

    Connections are lent and returned, and used by one thread at a time.
    """

    def __init__(self, path: Path, url: str) -> None:
        self.url = url
        self.path = path.absolute()  # whatever the process's folder comes to be
        self._locks_path = self.path.with_name(f"{self.path.name}-runs")
        self._idle: list[sqlite3.Connection] = []
        self._guard = threading.Lock()
        _databases.add(self)
        self._opened: list[sqlite3.Connection] = []  # the idle ones, and those that are lent
        weakref.finalize(self, _close, self._opened)
        for suffix in ("", *layout.SIDE_FILES):
            layout.files.add(f"{self.path}{suffix}")

    # --- connections -----------------------------------------------------------------------------

    @property
    def is_there(self) -> bool:
        """Whether there is such a file; nothing is made by asking."""
        return self.path.exists()

    @contextlib.contextmanager
    def using(self) -> Iterator[sqlite3.Connection]:
        """A connection, given back afterwards; the file is made if need be.

        Raises:
            StoreError: it can't be opened or used, or is no store of this version.
        """
        connection = self.borrow()
        try:
            yield connection
        except sqlite3.Error as error:
            self._discard(connection)
            raise failed(self.url, error) from error
        except BaseException:
            self.give_back(connection)
            raise
        self.give_back(connection)

    @contextlib.contextmanager
    def changing(self, alone: str = "") -> Iterator[sqlite3.Connection]:  # noqa: ARG002 - it is
        """As `using`, in a transaction; nobody else writes then, and an exception rolls back."""
        with self.using() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """As `using`, where all that is read is of one moment."""
        with self.using() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def borrow(self) -> sqlite3.Connection:
        """A connection of one's own. Raises StoreError."""
        with self._guard:
            if self._idle:
                return self._idle.pop()
        try:
            return self._connect()
        except sqlite3.Error as error:
            raise failed(self.url, error) from error
        except OSError as error:
            raise disk.refused(f"the store {self.url} can't be opened", error) from error

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Keep a connection for whoever asks next, unless so many are kept already."""
        with self._guard:
            if len(self._idle) < _IDLE:
                self._idle.append(connection)
                return
        self._discard(connection)

    def _discard(self, connection: sqlite3.Connection) -> None:
        connection.close()
        with self._guard, contextlib.suppress(ValueError):  # forgotten, in a forked child
            self._opened.remove(connection)

    def forget(self) -> None:
        """In a forked child: leave the parent's connections alone."""
        _left.extend(self._opened)
        self._opened.clear()  # the same list stays: it is what is closed in the end
        self._idle = []
        self._guard = threading.Lock()

    @staticmethod
    def leave(connection: sqlite3.Connection) -> None:
        """In a forked child: leave one that is not among the idle ones alone."""
        _left.append(connection)

    def _connect(self) -> sqlite3.Connection:
        self._make()
        writable = os.access(self.path, os.W_OK)
        mode = "rw" if writable else "ro"
        if not writable and not self.path.with_name(f"{self.path.name}-wal").exists():
            mode = "ro&immutable=1"  # nobody writes to it: it needs no other files
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=WAIT,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA synchronous = NORMAL")  # of WAL: a kill loses nothing
            if writable:
                make_tables(connection)
            check_tables(connection, self.path, self.url)
            if writable:
                bring_up(connection)
                _write_ahead(connection)
        except BaseException:
            connection.close()
            raise
        self._opened.append(connection)
        return connection

    def _make(self) -> None:
        """Make the file, for its owner alone, where it is not there.

        It is never opened here: to close it would end the locks that SQLite has on it.
        """
        if self.is_there:
            return
        if not self.path.parent.exists():
            disk.make_folder(self.path.parent)
        new = disk.new_name(self.path, hidden=True)
        os.close(disk.open_file(new, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        try:
            with contextlib.suppress(FileExistsError):  # somebody else was first
                os.link(new, self.path)
        finally:
            new.unlink()

    # --- locks -----------------------------------------------------------------------------------

    def lock(self, place: int, *, wait: bool = False) -> RunLock | None:
        """Lock a run by its place, or the opening of sessions (0); None where somebody else has it.

        Raises:
            StoreError: it can't be determined whether somebody has it.
        """
        try:
            descriptor = disk.open_file(self._locks_path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise disk.refused(f"{self._locks_path} can't be opened", error) from error
        byte = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, byte)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return None
            message = f"{self._locks_path} can't be locked: {disk.describe(error)}"
            raise StoreError(message) from error
        return RunLock(descriptor)

    def is_locked(self, place: int) -> bool:
        """Whether somebody has the lock of a run; nobody is kept from it by being asked.

        Raises:
            StoreError: it can't be determined.
        """
        byte = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        try:
            descriptor = disk.open_file(self._locks_path, os.O_RDONLY)
            try:
                found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, byte)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return False
        except OSError as error:
            message = f"{self._locks_path} can't be locked: {disk.describe(error)}"
            raise StoreError(message) from error
        kind: int = struct.unpack(_FLOCK, found)[0]
        return kind != fcntl.F_UNLCK

    def sync(self) -> None:
        """Wait until all that was committed is on the disk. Raises OSError.

        SQLite waits for what it moves from its log to the file, and has no locks on the log.
        """
        with contextlib.suppress(FileNotFoundError):  # all of it was moved
            descriptor = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Have the database keep a log, if it has none yet: SQLite itself waits for nobody there."""
    until = time.monotonic() + WAIT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorname.startswith("SQLITE_BUSY")
            if not busy or time.monotonic() > until:
                raise
            time.sleep(0.005)
        else:
            return


def _describe(error: sqlite3.Error) -> str:
    """What SQLite says, by its name too, and what helps."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    helps = {
        "SQLITE_FULL": ": free some space, or keep the store elsewhere with store=...",
        "SQLITE_BUSY": f": another process has been writing for more than {WAIT:.0f} seconds",
        "SQLITE_READONLY": ": run as the user whom the store belongs to, or give it to this one",
        "SQLITE_CANTOPEN": ": it or its folder can't be opened by this user",
        "SQLITE_NOTADB": ": it is not an SQLite file",
        "SQLITE_CORRUPT": ": restore the file from a backup",
    }
    known = next((text for code, text in helps.items() if name.startswith(code)), "")
    return f"{error} ({name}){known}"


def failed(url: str, error: sqlite3.Error) -> StoreError:
    """The error that says what SQLite refused; its own type where nothing here may be written."""
    name = getattr(error, "sqlite_errorname", "") or ""
    kinds = {"SQLITE_READONLY": StoreReadOnly, "SQLITE_NOTADB": StoreInvalid}
    kind = next((k for code, k in kinds.items() if name.startswith(code)), StoreError)
    return kind(f"the store {url} can't be used: {_describe(error)}")


def unwritable(run: str, error: sqlite3.Error | OSError) -> TraceUnwritable:
    """The error of a line that is not in a trace."""
    text = disk.describe(error) if isinstance(error, OSError) else _describe(error)
    return TraceUnwritable(f"the trace of run {run} can't be written: {text}")


def identity(database: SqliteDatabase) -> tuple[int, int] | None:
    """Which file has the store's name now; None where there is none."""
    try:
        found = os.stat(database.path)  # noqa: PTH116 - on the hot path
    except OSError:
        return None
    return found.st_dev, found.st_ino
