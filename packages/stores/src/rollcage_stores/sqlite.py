"""Runs in one SQLite file, in WAL mode.

**The fence** is the statement that inserts a line: it inserts only if the previous line has the
head that the writer knows, and the line's number is free. Each line is a transaction of its own, so
it survives the death of the process once `append` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal
from urllib.parse import unquote

from rollcage.errors import (
    Fenced,
    Forked,
    RollcageError,
    RunInUse,
    RunNotFound,
    StoreError,
    StoreInvalid,
    StoreReadOnly,
    TraceUnwritable,
)
from rollcage.trace.bell import heard_at, ring_at
from rollcage.trace.chain import HASH, ROOT
from rollcage.trace.keys import check_key, check_run, own_files
from rollcage.trace.processes import keep_from_children
from rollcage.trace.store import Ends

from rollcage_stores.liveness import Liveness

__all__ = ["Sqlite", "SqliteLog"]

_APPLICATION: Final = 0x526C6367
"""The mark in the header of a store's file ("Rlcg")."""

_VERSION: Final = 1
_WAIT: Final = 30.0  # seconds for another process that is writing
_SCHEMA: Final = f"""
CREATE TABLE log_lines (run TEXT, seq INTEGER, line BLOB NOT NULL, PRIMARY KEY (run, seq))
    WITHOUT ROWID;
CREATE TABLE log_values (kind TEXT, key TEXT, value BLOB NOT NULL, PRIMARY KEY (kind, key))
    WITHOUT ROWID;
CREATE TABLE log_bell (rung INTEGER NOT NULL);
INSERT INTO log_bell VALUES (0);
CREATE TABLE log_version (version INTEGER NOT NULL);
INSERT INTO log_version VALUES ({_VERSION});
PRAGMA application_id = {_APPLICATION};
"""
_APPEND: Final = """INSERT INTO log_lines SELECT ?1, ?2 + 1, ?3 WHERE ?2 = 0 OR EXISTS
(SELECT 1 FROM log_lines WHERE run = ?1 AND seq = ?2 AND substr(line, -67, 64) = ?4)
ON CONFLICT DO NOTHING"""
_RUNS: Final = """WITH RECURSIVE ids (run, n) AS (
    SELECT max(run), 1 FROM log_lines{}
    UNION ALL
    SELECT (SELECT max(run) FROM log_lines WHERE run < ids.run), n + 1 FROM ids
    WHERE ids.run IS NOT NULL AND n < ?2)
SELECT run, (SELECT line FROM log_lines WHERE run = ids.run AND seq = 1),
    (SELECT line FROM log_lines WHERE run = ids.run ORDER BY seq DESC LIMIT 1)
FROM ids WHERE run IS NOT NULL AND n <= ?2"""
"""Steps from id to id by the primary key, and reads no line between the first and the last."""

_ENDS: Final = """SELECT (SELECT line FROM log_lines WHERE run = ?1 AND seq = 1),
    (SELECT line FROM log_lines WHERE run = ?1 ORDER BY seq DESC LIMIT 1)"""
_LINE: Final = "SELECT line FROM log_lines WHERE run = ? AND seq = ?"
_PASSING: Final = ("SQLITE_FULL", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_READONLY")
_left: Final[list[sqlite3.Connection]] = []  # the parent's, in a forked child: never closed there


class SqliteLog:
    """The log of one run. See `Log` for what the methods promise."""

    __slots__ = (
        "__weakref__", "_appended", "_head", "_liveness", "_refusal", "_run", "_seq", "_store",
        "last", "where",
    )  # fmt: skip

    is_at_once = True

    def __init__(self, store: Sqlite, run: str, liveness: Liveness) -> None:
        self.where = f"{store.url}#{run}"
        self.last = b""
        self._appended = False
        self._head = ROOT
        self._liveness = liveness
        self._refusal: RollcageError | None = None
        self._run = run
        self._seq = 0
        self._store = store
        keep_from_children(self)

    @property
    def bell(self) -> int:
        return self._store.bell()

    def hear(self) -> Callable[[], int] | None:
        return heard_at(f"{self._store.path}-heard")

    def read(self) -> list[bytes]:
        lines = self._store.lines(self._run)
        self._seq = len(lines)
        if lines:
            self.last = lines[-1]
            self._head = lines[-1][HASH]
        return lines

    def lines(self) -> Iterator[bytes]:
        yield from self.read()

    def append(self, line: bytes) -> None:
        if self._refusal is not None:
            raise self._refusal
        head = line[HASH]
        try:
            with self._store.using() as db:
                found = db.execute(_APPEND, (self._run, self._seq, line, self._head)).rowcount
        except StoreError as error:
            cause = error.__cause__
            name = getattr(cause, "sqlite_errorname", "")
            failed = TraceUnwritable(str(error))
            if not name.startswith(_PASSING):  # it is unknown whether the line was inserted
                self._refuse(failed)
            raise failed from cause
        except BaseException:  # Ctrl-C: the line counts if it is on record
            self._look(line)
            raise
        if found != 1:
            raise self._refuse(
                Fenced(f"{self.where} is written by another session, which took its run over")
            )
        self._seq += 1
        self._head = head
        self._appended = True
        self.last = line

    def wait(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._appended:
            if not self._store.is_in_place():
                raise self._refuse(Fenced(f"{self.where} was removed, or another file is there"))
            self._appended = False

    async def settled(self) -> None:
        await asyncio.to_thread(self.wait)

    def replace(self, lines: Sequence[bytes]) -> None:
        self.wait()
        try:
            with self._store.changing() as db:
                asked = "SELECT line FROM log_lines WHERE run = ? ORDER BY seq DESC LIMIT 1"
                found = db.execute(asked, (self._run,)).fetchone()
                if (found[0][HASH] if found else ROOT) != self._head:
                    raise self._refuse(
                        Fenced(f"{self.where} is written by another session, which took it over")
                    )
                db.execute("DELETE FROM log_lines WHERE run = ?", (self._run,))
                rows = ((self._run, seq, line) for seq, line in enumerate(lines, 1))
                db.executemany("INSERT INTO log_lines VALUES (?, ?, ?)", rows)
        except StoreError as error:
            raise TraceUnwritable(str(error)) from error.__cause__
        self._seq, self._appended = len(lines), True
        self.last = lines[-1] if lines else b""
        self._head = self.last[HASH] or ROOT

    def close(self) -> None:
        try:
            if self._refusal is None:
                self.wait()
        finally:
            self._refuse(TraceUnwritable(f"{self.where} is closed"))

    def forked(self) -> None:
        """Leave the run to the parent process."""
        self._refusal = Forked(
            f"{self.where} is written by process {os.getppid()}, and this is a forked child of it: "
            f"open a session of its own here"
        )

    def __del__(self) -> None:
        # a collected session may still write, and then nothing would keep the lock
        if getattr(self, "_refusal", True) is None:
            self._refuse(TraceUnwritable(f"{self.where} is closed"))

    def _refuse(self, refusal: RollcageError) -> RollcageError:
        """Refuse all further lines, for this reason."""
        if self._refusal is None:
            self._refusal = refusal
        self._liveness.release()
        return self._refusal

    def _look(self, line: bytes) -> None:
        """Find out whether a line whose insertion was interrupted is on record."""
        with self._store.using() as db:
            found = db.execute(_LINE, (self._run, self._seq + 1)).fetchone()
        if found is not None and found[0] == line:
            self._seq += 1
            self._head = line[HASH]
            self._appended = True
            self.last = line
        elif found is not None:
            self._refuse(Fenced(f"{self.where} is written by another session"))


class Sqlite:
    """The store in a SQLite file. See `Store` for what the methods promise.

    Args:
        url: `sqlite:///runs.db`, with four slashes for an absolute path; with
            `?durability=disk`, recorded lines survive a power cut.
    """

    def __init__(self, url: str) -> None:
        path, durability = _parse(url)
        if not os.path.isabs(path):  # noqa: PTH117 - a text
            path = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - wherever it goes
        self.path: Final = os.path.normpath(path)
        self.url: Final = f"sqlite:///{self.path}"
        self.durability: Final = durability
        self._lock = threading.RLock()  # of the connection
        self._db: list[sqlite3.Connection] = []  # one, once it is used
        self._inode = 0
        weakref.finalize(self, _close, self._db)
        own_files.update(f"{self.path}{suffix}" for suffix in ("", "-wal", "-shm", "-live"))
        keep_from_children(self)

    def __repr__(self) -> str:
        return f"Sqlite({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sqlite) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def open(self, run: str, *, take: bool = False) -> SqliteLog:
        check_run(run)
        with self.using():
            pass  # the file exists now, and is ours
        liveness = Liveness(f"{self.path}-live", run)
        try:
            if not liveness.take(by_force=take):
                raise RunInUse(
                    f"{self.url}#{run} has a live writer; its lock ends with its process. To go on "
                    f"with it here all the same, take it over"
                )
        except OSError as error:
            raise StoreError(f"{self.path}-live can't be locked: {error}") from error
        return SqliteLog(self, run, liveness)

    def read(self, run: str, after: int = 0) -> list[bytes]:
        check_run(run)
        lines = self.lines(run, after) if self._is_there() else []
        if not lines and (after <= 0 or not self.lines(run, -1)):
            raise RunNotFound(f"there is no run {run} in {self.url}")
        return lines

    def runs(self, before: str = "", limit: int = 1000) -> list[Ends]:
        if not self._is_there() or limit < 1:
            return []
        asked = _RUNS.format(" WHERE run < ?1" if before else "")
        with self.using() as db:
            return [Ends(*row) for row in db.execute(asked, (before, limit))]

    def ends(self, run: str) -> Ends:
        check_run(run)
        found = None
        if self._is_there():
            with self.using() as db:
                found = db.execute(_ENDS, (run,)).fetchone()
        if found is None or found[0] is None:
            raise RunNotFound(f"there is no run {run} in {self.url}")
        return Ends(run, *found)

    def is_live(self, run: str) -> bool:
        check_run(run)
        try:
            return Liveness(f"{self.path}-live", run).is_taken()
        except OSError as error:
            raise StoreError(f"{self.path}-live can't be looked at: {error}") from error

    def get(self, kind: str, key: str) -> bytes | None:
        check_key(kind, key)
        if not self._is_there():
            return None
        with self.using() as db:
            asked = "SELECT value FROM log_values WHERE kind = ? AND key = ?"
            found: tuple[bytes] | None = db.execute(asked, (kind, key)).fetchone()
        return found[0] if found else None

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        check_key(kind, key)
        if kind != "orders":
            with self.using() as db:
                return _swap(db, kind, key, was, new)
        with self.changing() as db:
            swapped = _swap(db, kind, key, was, new)
            db.execute("UPDATE log_bell SET rung = rung + 1")
        try:
            ring_at(f"{self.path}-heard")
        except OSError as error:
            raise StoreError(f"{self.path}-heard can't be changed: {error}") from error
        return swapped

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> list[str]:
        check_key(kind, after or "-")
        if not self._is_there():
            return []
        with self.using() as db:
            asked = "SELECT key FROM log_values WHERE kind = ? AND key > ? ORDER BY key LIMIT ?"
            return [key for (key,) in db.execute(asked, (kind, after, limit))]

    def bell(self) -> int:
        if not self._is_there():
            return 0
        with self.using() as db:
            found: tuple[int] = db.execute("SELECT rung FROM log_bell").fetchone()
        return found[0]

    def lines(self, run: str, after: int = 0) -> list[bytes]:
        """Return the lines of a run, like `read`; none if there is no such run."""
        asked = "SELECT line FROM log_lines WHERE run = ?1 AND seq > ?2 ORDER BY seq"
        if after < 0:
            asked = "SELECT line FROM log_lines WHERE run = ?1 ORDER BY seq DESC LIMIT -?2"
        with self.using() as db:
            lines = [line for (line,) in db.execute(asked, (run, after))]
        return lines[::-1] if after < 0 else lines

    def is_in_place(self) -> bool:
        """Return whether the open file is still the file at this path."""
        try:
            return os.stat(self.path).st_ino == self._inode  # noqa: PTH116 - for each write
        except OSError:
            return False

    @contextlib.contextmanager
    def using(self) -> Iterator[sqlite3.Connection]:
        """Give the connection to one thread at a time; make the file if needed.

        Raises:
            StoreError: the file can't be used, or is not a store of this version.
        """
        with self._lock:
            try:
                yield self._db[0] if self._db else self._connect()
            except sqlite3.Error as error:
                raise _failed(self.url, error) from error

    @contextlib.contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Give the connection, as `using` does, in a transaction."""
        with self.using() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def forked(self) -> None:
        """Leave the connection to the parent process, and open a new one when needed."""
        _left.extend(self._db)
        self._db.clear()
        self._lock = threading.RLock()

    def _is_there(self) -> bool:
        return bool(self._db) or os.path.exists(self.path)  # noqa: PTH110 - a text

    def _connect(self) -> sqlite3.Connection:
        try:
            os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)  # noqa: PTH103, PTH120
            with contextlib.suppress(FileExistsError):  # for its owner only, like -wal and -shm
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            kind = StoreReadOnly if isinstance(error, PermissionError) else StoreError
            raise kind(f"the store {self.url} can't be made: {error.strerror}") from error
        db = sqlite3.connect(
            self.path, isolation_level=None, timeout=_WAIT, check_same_thread=False
        )
        try:
            _bring_up(db, self.url)
            db.execute(f"PRAGMA synchronous={'FULL' if self.durability == 'disk' else 'NORMAL'}")
            self._inode = os.stat(self.path).st_ino  # noqa: PTH116
        except BaseException:
            db.close()
            raise
        self._db.append(db)
        return db


def _swap(
    db: sqlite3.Connection, kind: str, key: str, was: bytes | None, new: bytes | None
) -> bool:
    if was is None and new is None:
        asked = "SELECT 1 FROM log_values WHERE kind = ? AND key = ?"
        return db.execute(asked, (kind, key)).fetchone() is None
    if was is None:
        put = "INSERT INTO log_values VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        return db.execute(put, (kind, key, new)).rowcount == 1
    if new is None:
        drop = "DELETE FROM log_values WHERE kind = ? AND key = ? AND value = ?"
        return db.execute(drop, (kind, key, was)).rowcount == 1
    change = "UPDATE log_values SET value = ? WHERE kind = ? AND key = ? AND value = ?"
    return db.execute(change, (new, kind, key, was)).rowcount == 1


def _bring_up(db: sqlite3.Connection, url: str) -> None:
    """Make the tables, unless they exist; refuse a newer file, or another program's."""
    if not _is_ours(db):
        raise StoreInvalid(f"{url} is a database of another program")
    if not _has_tables(db):
        _use_wal(db)
        db.execute("BEGIN IMMEDIATE")
        try:
            if _is_ours(db) and not _has_tables(db):  # no other process was first
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
    version = db.execute("SELECT max(version) FROM log_version").fetchone()[0]
    if version > _VERSION:
        raise StoreError(
            f"{url} is of version {version}, and this rollcage-stores knows {_VERSION}: update it "
            f"(pip install --upgrade rollcage-stores)"
        )


def _is_ours(db: sqlite3.Connection) -> bool:
    """Tell whether a file is a store, or empty."""
    # In this order: another process may make the store in between, and its tables come with its
    # number.
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    application = db.execute("PRAGMA application_id").fetchone()[0]
    return bool(application == _APPLICATION or not (application or tables))


def _has_tables(db: sqlite3.Connection) -> bool:
    asked = "SELECT count(*) FROM sqlite_schema WHERE name = 'log_version'"
    return bool(db.execute(asked).fetchone()[0])


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch a new file to WAL; SQLite does not wait for another process that does the same."""
    until = time.monotonic() + _WAIT
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > until:
                raise
        time.sleep(0.005)


def _close(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


def _failed(url: str, error: sqlite3.Error) -> StoreError:
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    text = f"the store {url} can't be used: {error} ({name})"
    if name.startswith("SQLITE_READONLY"):
        return StoreReadOnly(text)
    if name.startswith("SQLITE_NOTADB"):
        return StoreInvalid(f"{url} is not a SQLite file")
    if name.startswith("SQLITE_BUSY"):
        text += f": another process has written for {_WAIT:.0f} seconds, or was stopped within that"
    return StoreError(text)


def _parse(url: str) -> tuple[str, Literal["os", "disk"]]:
    """Return the path of a URL, and its durability."""
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    host, _, path = rest.partition("/")
    if scheme.lower() != "sqlite" or host not in ("", "localhost"):
        raise StoreInvalid(f"{url!r} is not a SQLite file: write sqlite:///, followed by the path")
    path = unquote(path)
    if not path or path.endswith("/") or "\0" in path or "#" in rest:
        raise StoreInvalid(f"{url!r} names no file; a `?` or `#` in a path is written %3F or %23")
    if query not in ("", "durability=os", "durability=disk"):
        raise StoreInvalid(f"{url!r}: SQLite knows ?durability=os and ?durability=disk only")
    return path, "disk" if query.endswith("disk") else "os"
