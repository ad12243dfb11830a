"""A store in one SQLite file: for a service with many runs on one machine.

Its lines are those of a JSONL trace, byte for byte, one row each. Next to it are `-wal` and
`-shm`, which are SQLite's, and `-runs`, whose locks say which runs are live (`sqlite_database`).
All of them are for their owner alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rollcage.errors import RunInUse, StoreError
from rollcage.store import disk
from rollcage.store.protocol import Repair, StopOrder
from rollcage.store.sql import goes_on, put_order
from rollcage.store.sql_repair import SqlRepair
from rollcage.store.sqlite_database import RunLock, SqliteDatabase, unwritable
from rollcage.store.sqlite_writer import SqliteWriter
from rollcage.trace.events import seal_line
from rollcage.trace.reader import tail_of

__all__ = ["SqliteStore"]


class SqliteStore(SqlRepair):
    """Runs in one SQLite file; it is made when the first one begins.

    Args:
        path: of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._database = SqliteDatabase(Path(path), f"sqlite:///{quote(os.fspath(path))}")
        super().__init__(self._database)

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

    def live(self, run: str) -> bool:
        self._check_there(run)
        with self._database.using() as db:
            place = self._place(db, run)
        return self._database.is_locked(place)

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
            raise self._in_use(run)
        return place, lock

    def create(self, started: dict[str, Any], order: StopOrder | None = None) -> SqliteWriter:
        info, run = self._begun(started), started["run"]
        line, head = seal_line(started, tail_of(b"").head)
        lock: RunLock | None = None
        try:
            with self._database.changing() as db:
                place = self._insert(db, info)
                lock = self._database.lock(place)
                if lock is None:
                    raise RunInUse(f"the place of run {run} in {self.url} is taken")
                db.execute("INSERT INTO lines VALUES (?, 1, ?)", (place, line))
                if order is not None:
                    put_order(db, place, order)
            durable = started.get("durability") == "disk"
            if durable:
                self._database.sync()
            return SqliteWriter(self._database, run, place, lock, (1, head), durable=durable)
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, OSError):
                raise unwritable(run, error) from error
            raise

    def reopen(self, run: str) -> SqliteWriter:
        place, lock = self._locked(run)
        try:
            with self._database.changing() as db:
                goes_on(db, place)
                count, last = db.execute(
                    "SELECT number, line FROM lines WHERE place = ? ORDER BY number DESC LIMIT 1",
                    (place,),
                ).fetchone()
            end = (count, tail_of(last).head)
            return SqliteWriter(self._database, run, place, lock, end, reopened=True)
        except BaseException:
            lock.release()
            raise

    def _secret(self, new_key: bytes) -> bytes:
        key = super()._secret(new_key)
        path = self._database.path
        disk.check_secret(path, stat.S_IMODE(path.stat().st_mode))
        return key

    def _examined(self, db: Any) -> Repair:
        wrong = [str(row[0]) for row in db.execute("PRAGMA integrity_check(20)")]
        found = super()._examined(db)
        unreadable = [each for each in wrong if each != "ok"]
        return dataclasses.replace(found, unreadable=(*unreadable, *found.unreadable))
