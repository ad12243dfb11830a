"""A store in one SQLite file: for a service with many runs on one machine.

Its lines are those of a JSONL trace, byte for byte, one row each. Beside the file lie `-wal` and
`-shm`, which are SQLite's, and `-runs`, whose locks say which runs are live (see `database`). All
of them are for their owner alone.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import sqlite3
import stat
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rollcage.errors import (
    RunInUse,
    RunNotFound,
    StoreError,
    TraceCorrupt,
    TraceUnwritable,
)
from rollcage.store import disk, stubs
from rollcage.store.database import Database, RunLock, unwritable
from rollcage.store.jobs import job_name
from rollcage.store.protocol import (
    Repair,
    RunInfo,
    RunTrace,
    StopOrder,
    check_document,
    is_run_id,
)
from rollcage.store.sqlite_log import SqliteLog
from rollcage.store.sqlite_writer import ATTEST, SqliteWriter, order_of
from rollcage.trace.events import seal_line
from rollcage.trace.reader import ended, tail_of

__all__ = ["SqliteStore"]

_SHA256: Final = re.compile("[0-9a-f]{64}")
_RUNS: Final = (
    "SELECT place, run, name, mode, source, time, input, status, count, head,"
    " (SELECT data FROM documents WHERE kind = 'pruned' AND key = run),"
    " (SELECT max(number) FROM lines WHERE lines.place = runs.place) FROM runs"
)
_STARTED: Final = ("run", "name", "mode", "source", "time")


class SqliteStore:
    """Runs in one SQLite file; it is made when the first one begins.

    Args:
        path: of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.url = f"sqlite:///{quote(os.fspath(path))}"
        self._database = Database(Path(path), self.url)

    def exists(self) -> bool:
        return self._database.is_there

    @contextlib.contextmanager
    def opening(self) -> Generator[None]:
        with self._database.using():  # or it can't be made, and there is nothing to lock
            pass
        lock = self._database.lock(0, wait=True)
        if lock is None:
            raise StoreError(f"{self.url} can't be locked, though nobody else has it")
        try:
            yield
        finally:
            lock.release()

    # --- reading ---------------------------------------------------------------------------------

    def info(self, run: str) -> RunInfo:
        self._check_there(run)
        with self._database.reading() as db:
            row = db.execute(f"{_RUNS} WHERE run = ?", (run,)).fetchone()
            if row is None:
                raise self._not_found(run)
            return _info(db, row)

    def runs(
        self,
        *,
        name: str | None = None,
        status: str | None = None,
        source: str | None = None,
        since: int | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        if not self._database.is_there or limit == 0:
            return []
        asked = {
            "name = ?": None if name is None else job_name(name),
            "source = ?": source,
            "time >= ?": since,
            "time < ?": before,
        }
        asked = {clause: value for clause, value in asked.items() if value is not None}
        own = f"{_RUNS} WHERE {' AND '.join(asked) or '1'} ORDER BY place DESC"
        found: list[RunInfo] = []
        with self._database.reading() as db:
            for row in db.execute(own, tuple(asked.values())):
                info = _info(db, row)
                if status in (None, info.status or "unfinished"):
                    found.append(info)
                if len(found) == limit:
                    break
        return found[::-1]

    def live(self, run: str) -> bool:
        self._check_there(run)
        with self._database.using() as db:
            place = self._place(db, run)
        return self._database.is_locked(place)

    def newest(self, name: str, of: str | None) -> RunInfo | None:
        if not self._database.is_there:
            return None
        # No run stands before one that it builds on, so that the last of a job is a leaf.
        own = "WHERE name = ? AND input IS ? AND mode IN ('record', 'resume')"
        with self._database.reading() as db:
            last = f"{_RUNS} {own} ORDER BY place DESC LIMIT 1"
            row = db.execute(last, (name, of)).fetchone()
            return None if row is None else _info(db, row)

    def read(self, run: str, *, after: int = 0) -> RunTrace:
        self._check_there(run)
        where = f"run {run} of {self.url}"
        with self._database.reading() as db:
            row = db.execute(f"{_RUNS} WHERE run = ?", (run,)).fetchone()
            if row is None:
                raise self._not_found(run)
            place, lines = row[0], row[-1] or 0
            if lines < after:
                self._check_pruned(db, run)
                raise TraceCorrupt(where, lines, f"there were {after} lines, {lines} are left")
            data = _data(db, place, after)
            info = None if after else _info(db, row, data)
            if not data and not after:
                self._check_pruned(db, run)
            return RunTrace(run, where, data, b"", info, after)

    def stop_order(self, run: str) -> StopOrder | None:
        with self._database.using() as db:
            return order_of(db, self._place(db, run))

    def get_blob(self, digest: str) -> bytes:
        if _SHA256.fullmatch(digest) is None:
            raise StoreError(f"{digest!r} is not the name of a blob")
        row: tuple[bytes] | None = None
        if self._database.is_there:
            with self._database.using() as db:
                row = db.execute("SELECT data FROM blobs WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            raise StoreError(f"blob {digest} is missing")
        if sha256(row[0]).hexdigest() != digest:
            where = f"blob {digest} of {self.url}"
            raise TraceCorrupt(where, 1, "a blob that is not what its name says")
        return row[0]

    def _check_there(self, run: str) -> None:
        if not is_run_id(run):
            raise RunNotFound(f"{run!r} is not the form of a run id")
        if not self._database.is_there:
            raise self._not_found(run)

    def _not_found(self, run: str) -> RunNotFound:
        return RunNotFound(f"there is no run {run} in {self.url}")

    def _place(self, db: sqlite3.Connection, run: str) -> int:
        """Where a run stands among all. Raises RunNotFound."""
        row = db.execute("SELECT place FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None:
            raise self._not_found(run)
        place: int = row[0]
        return place

    # --- locking and writing ---------------------------------------------------------------------

    def lock(self, run: str) -> RunLock:
        return self._locked(run)[1]

    def _locked(self, run: str) -> tuple[int, RunLock]:
        self._check_there(run)
        with self._database.using() as db:
            place = self._place(db, run)
            self._check_pruned(db, run)
        lock = self._database.lock(place)
        if lock is None:
            raise _in_use(run)
        return place, lock

    def create(self, started: dict[str, Any]) -> SqliteWriter:
        run = started["run"]
        if not is_run_id(run):
            raise RunNotFound(f"{run!r} is not the form of a run id")
        line, head = seal_line(started, tail_of(b"").head)
        given = started["input"]["digest"] if "input" in started else None
        info = RunInfo(**{name: started[name] for name in _STARTED}, input=given)
        lock: RunLock | None = None
        try:
            with self._database.changing() as db:
                place = self._insert(db, info)
                lock = self._database.lock(place)
                if lock is None:
                    raise RunInUse(f"the place of run {run} in {self.url} is taken")
                db.execute("INSERT INTO lines VALUES (?, 1, ?)", (place, line))
            if started.get("durability") == "disk":
                self._database.sync()
            return SqliteWriter(self._database, run, place, lock, (1, head))
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, OSError):
                raise unwritable(run, error) from error
            raise

    @staticmethod
    def _insert(db: sqlite3.Connection, info: RunInfo) -> int:
        """Put a run behind all others; its place."""
        place = db.execute(
            "INSERT INTO runs (run, name, mode, source, time, input) VALUES (?, ?, ?, ?, ?, ?)",
            (*(getattr(info, name) for name in _STARTED), info.input),
        ).lastrowid
        assert place is not None
        return place

    def reopen(self, run: str) -> SqliteWriter:
        place, lock = self._locked(run)
        try:
            with self._database.reading() as db:
                count, last = db.execute(
                    "SELECT number, line FROM lines WHERE place = ? ORDER BY number DESC LIMIT 1",
                    (place,),
                ).fetchone()
            return SqliteWriter(self._database, run, place, lock, (count, tail_of(last).head))
        except BaseException:
            lock.release()
            raise

    # --- copying and pruning ---------------------------------------------------------------------

    def restore(self, trace: RunTrace) -> bool:
        info = trace.info
        assert info is not None
        with self.opening(), contextlib.ExitStack() as locked:
            with self._database.changing() as db:
                row = db.execute(f"{_RUNS} WHERE run = ?", (trace.run,)).fetchone()
                here = None if row is None else _info(db, row)
                if here is not None and (here.pruned or info.pruned):
                    return False
                data: bytes | None = trace.data
                if row is None:
                    place = self._insert(db, info)
                    known = 0
                else:
                    place, known = row[0], row[-1]
                    lock = self._database.lock(place)
                    if lock is None:
                        raise _in_use(trace.run)
                    locked.callback(lock.release)
                    data = stubs.goes_on(trace, _data(db, place), self.url)
                unattested = info.count is not None and (here is None or here.count is None)
                if data is None and not unattested:
                    return False
                lines = enumerate((data or b"").splitlines(keepends=True), known + 1)
                db.executemany(
                    "INSERT INTO lines VALUES (?, ?, ?)", ((place, *line) for line in lines)
                )
                if info.status is not None and (info.count is not None or info.pruned is not None):
                    ended_ = (info.status, info.count, info.head, place)
                    db.execute(ATTEST, ended_)
                if info.pruned is not None:
                    stub = (stubs.KIND, trace.run, stubs.stub_of(info))
                    db.execute("INSERT INTO documents VALUES (?, ?, ?)", stub)
            self._on_disk()
        return True

    def prune(self, run: str, *, by: str, time: int, skeleton: bytes = b"") -> None:
        self._check_there(run)
        info = self.info(run)
        if info.pruned is not None:
            return
        place, lock = self._locked(run)
        try:
            with self._database.changing() as db:
                left = stubs.pruned_of(self.info(run), by, time)
                stub = (stubs.KIND, run, stubs.stub_of(left))
                db.execute("INSERT INTO documents VALUES (?, ?, ?)", stub)
                db.execute("DELETE FROM lines WHERE place = ?", (place,))
                db.execute("DELETE FROM orders WHERE place = ?", (place,))
                tail = tail_of(skeleton)
                lines = enumerate(skeleton.splitlines(keepends=True), 1)
                db.executemany(
                    "INSERT INTO lines VALUES (?, ?, ?)", ((place, *line) for line in lines)
                )
                kept = (tail.lines, tail.head.hex()) if skeleton else (None, None)
                db.execute(ATTEST, (left.status, *kept, place))
            self._on_disk()
        finally:
            lock.release()

    def _check_pruned(self, db: sqlite3.Connection, run: str) -> None:
        """Raises RunPruned."""
        stub = "SELECT data FROM documents WHERE kind = ? AND key = ?"
        row = db.execute(stub, (stubs.KIND, run)).fetchone()
        if row is not None:
            raise stubs.gone(stubs.info_in(row[0], f"what is left of run {run}"))

    # --- stopping --------------------------------------------------------------------------------

    def stop(self, order: StopOrder) -> None:
        self._check_there(order.run)
        by, reason = _writable(order.by), _writable(order.reason)
        given = "INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?, ?)"
        with self._database.changing() as db:  # first: whoever opens now, sees it
            place = self._place(db, order.run)
            db.execute(given, (place, order.run, by, reason, order.time))
        with self.opening(), self._database.changing() as db:
            for other, ended_ in self._built_on(db, order.run):
                if ended_ is None:  # it may be live; what is dead sees it where it is resumed
                    db.execute(given, (other, order.run, by, reason, order.time))
        self._sync(order.run)

    def lift(self, run: str) -> bool:
        self._check_there(run)
        with self._database.changing() as db:
            own = (self._place(db, run), run)
            found = db.execute("DELETE FROM orders WHERE place = ? AND run = ?", own).rowcount
        with self.opening(), self._database.changing() as db:
            db.execute("DELETE FROM orders WHERE run = ?", (run,))
        self._sync(run)
        return bool(found)

    @staticmethod
    def _built_on(db: sqlite3.Connection, run: str) -> list[tuple[int, str | None]]:
        """The runs that resume this one, transitively: place and status."""
        return db.execute(
            "WITH RECURSIVE later (run) AS (VALUES (?) UNION"
            " SELECT runs.run FROM runs JOIN later ON runs.source = later.run"
            " WHERE runs.mode = 'resume')"
            " SELECT place, status FROM runs JOIN later USING (run) WHERE run != ?",
            (run, run),
        ).fetchall()

    def _sync(self, run: str) -> None:
        try:
            self._database.sync()
        except OSError as error:
            raise unwritable(run, error) from error

    # --- what goes with traces -------------------------------------------------------------------

    def put_once(self, kind: str, key: str, data: bytes) -> bool:
        check_document(kind, key)
        with self._database.changing() as db:
            made = "INSERT OR IGNORE INTO documents VALUES (?, ?, ?)"
            new = bool(db.execute(made, (kind, key, data)).rowcount)
        self._on_disk()
        return new

    def get(self, kind: str, key: str) -> bytes | None:
        check_document(kind, key)
        if not self._database.is_there:
            return None
        with self._database.using() as db:
            found = "SELECT data FROM documents WHERE kind = ? AND key = ?"
            row = db.execute(found, (kind, key)).fetchone()
        return None if row is None else row[0]

    def keys(self, kind: str) -> list[str]:
        check_document(kind, "a")
        if not self._database.is_there:
            return []
        with self._database.using() as db:
            found = "SELECT key FROM documents WHERE kind = ? ORDER BY key"
            return [row[0] for row in db.execute(found, (kind,))]

    def log(self, name: str, begins: str) -> SqliteLog:
        return SqliteLog(self._database, name, begins)

    def put_blob(self, digest: str, data: bytes) -> None:
        try:
            with self._database.changing() as db:
                db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?)", (digest, data))
        except StoreError as error:
            raise TraceUnwritable(f"blob {digest} can't be written: {error}") from error

    def blobs(self) -> list[str]:
        if not self._database.is_there:
            return []
        with self._database.using() as db:
            return [row[0] for row in db.execute("SELECT digest FROM blobs ORDER BY digest")]

    def drop_blob(self, digest: str) -> None:
        if _SHA256.fullmatch(digest) is None:
            raise StoreError(f"{digest!r} is not the name of a blob")
        with self._database.changing() as db:
            db.execute("DELETE FROM blobs WHERE digest = ?", (digest,))

    def secret_key(self) -> bytes:
        return self._secret(os.urandom(32))

    def take_key(self, key: bytes) -> bool:
        return hmac.compare_digest(self._secret(key), key)

    def _secret(self, new_key: bytes) -> bytes:
        """The key; the new one, where there is none yet."""
        with self._database.changing() as db:
            new = "INSERT OR IGNORE INTO kept VALUES ('key', ?)"
            made = db.execute(new, (new_key,)).rowcount
            key: bytes = db.execute("SELECT value FROM kept WHERE name = 'key'").fetchone()[0]
        if made:
            self._on_disk()  # what it stands for in traces must not outlive it
        path = self._database.path
        disk.check_secret(path, stat.S_IMODE(path.stat().st_mode))
        if len(key) != 32:
            raise StoreError(f"the key in {self.url} is not one of 32 bytes: restore a backup")
        return key

    def _on_disk(self) -> None:
        try:
            self._database.sync()
        except OSError as error:
            raise StoreError(f"{self.url} can't be written: {disk.said(error)}") from error

    def repair(self) -> Repair:
        """Look for damage. What SQLite itself can't read comes from a backup: nothing is derived.

        Raises:
            StoreError: it can't be read.
        """
        with self._database.reading() as db:
            wrong = [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)")]
            runs = db.execute("SELECT count(*) FROM runs").fetchone()[0]
            open_ = "SELECT run FROM runs WHERE status IS NOT NULL AND count IS NULL"
            unattested = [row[0] for row in db.execute(open_)]
        unreadable = tuple(each for each in wrong if each != "ok")
        return Repair(runs=runs, unattested=tuple(unattested), unreadable=unreadable)


def _in_use(run: str) -> RunInUse:
    return RunInUse(f"run {run} is being written or resumed by another session")


def _data(db: sqlite3.Connection, place: int, after: int = 0) -> bytes:
    own = "SELECT line FROM lines WHERE place = ? AND number > ? ORDER BY number"
    rows = db.execute(own, (place, after))
    return b"".join(line for (line,) in rows)


def _info(db: sqlite3.Connection, row: tuple[Any, ...], data: bytes | None = None) -> RunInfo:
    """What is known of a run; where more stands there than was attested, by its own lines."""
    place, run, name, mode, source, time, given, status, count, head, stub, lines = row
    if stub is not None:
        pruned = stubs.info_in(stub, f"what is left of run {run}").pruned
        return RunInfo(run, name, mode, source, time, status, count, head, given, pruned)
    if status is None or count != lines:
        status = ended(_data(db, place) if data is None else data) or status
    return RunInfo(run, name, mode, source, time, status, count, head, given)


def _writable(text: str) -> str:
    """A text without what UTF-8 can't hold (lone surrogates)."""
    return text.encode("utf-8", "replace").decode()
