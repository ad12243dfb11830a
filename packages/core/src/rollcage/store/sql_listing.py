"""Which runs a store in a SQL database has, asked of its tables by what they are.

What is asked for is found by an index, so that it costs the same however many others there are.
The status of a run may say less than its lines: of one that has none, and of one that was opened
again since it ended (a document of the kind `reopened` says so). Those are looked at, too.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from rollcage.store import stubs
from rollcage.store.jobs import job_name
from rollcage.store.protocol import RunInfo
from rollcage.store.reopened import KIND
from rollcage.store.sql_documents import SqlDatabase, SqlDocuments
from rollcage.trace.reader import ended

__all__ = ["SqlListing"]

_PAGE: Final = 100  # runs that are asked for at once where not all may be meant, at least
_STUB: Final = "(SELECT data FROM documents WHERE kind = 'pruned' AND key = run)"

Row = tuple[Any, ...]
"""What is selected of a run, its place first."""


class SqlListing(SqlDocuments):
    """The runs of a SQL database, and what is known of them."""

    same: ClassVar[str] = "IS"  # as `=`, for what may be NULL
    lines: ClassVar[str] = "(SELECT max(number) FROM lines WHERE lines.place = runs.place)"
    is_line: ClassVar[str] = ""  # what distinguishes a line of a trace from another row

    def __init__(self, database: SqlDatabase) -> None:
        super().__init__(database)
        fields = f"place, run, name, mode, source, time, input, status, count, head, {_STUB}"
        self._runs = f"SELECT {fields}, {self.lines} FROM runs"

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
        if not self._sql.is_there or limit == 0:
            return []
        asked = {
            "name = ?": None if name is None else job_name(name),
            "source = ?": source,
            "time >= ?": since,
            "time < ?": before,
        }
        asked = {clause: value for clause, value in asked.items() if value is not None}
        least = 1 if status is None else _PAGE  # of those asked for by status, some are not meant
        size = 2**31 if limit is None else max(limit, least)
        found: list[RunInfo] = []
        with self._sql.reading() as db:
            for row in self._newest_first(db, asked, status, size):
                info = self._info(db, row)
                if status in (None, info.status or "unfinished"):
                    found.append(info)
                if len(found) == limit:
                    break
        return found[::-1]

    def _newest_first(
        self, db: Any, asked: dict[str, Any], status: str | None, size: int
    ) -> Iterator[Row]:
        """Rows of those that may be meant."""
        if status is None:
            yield from self._pages(db, asked, size)
            return
        pages = [self._again(db, asked), self._pages(db, {"status IS NULL": None} | asked, size)]
        if status != "unfinished":
            pages.append(self._pages(db, {"status = ?": status} | asked, size))
        merged = heapq.merge(*pages, key=lambda row: -row[0])
        for _, same in itertools.groupby(merged, key=lambda row: row[0]):
            yield next(same)

    def _again(self, db: Any, asked: dict[str, Any]) -> Iterator[Row]:
        runs = db.execute("SELECT key FROM documents WHERE kind = ?", (KIND,)).fetchall()
        own = f"{self._runs} WHERE {' AND '.join(('run = ?', *asked))}"
        found = (db.execute(own, (run, *asked.values())).fetchone() for (run,) in runs)
        yield from sorted((row for row in found if row), key=lambda row: -row[0])

    def _pages(self, db: Any, asked: dict[str, Any], size: int) -> Iterator[Row]:
        own = " AND ".join((*asked, "place < ?"))
        page = f"{self._runs} WHERE {own} ORDER BY place DESC LIMIT ?"
        given = [value for value in asked.values() if value is not None]
        place = 2**62
        while rows := db.execute(page, (*given, place, size)).fetchall():
            yield from rows
            if len(rows) < size:
                return
            place = rows[-1][0]

    def newest(self, name: str, of: str | None) -> RunInfo | None:
        if not self._sql.is_there:
            return None
        # No run stands before one that it builds on, so that the last of a job is a leaf.
        own = f"WHERE name = ? AND input {self.same} ? AND mode IN ('record', 'resume')"
        with self._sql.reading() as db:
            last = f"{self._runs} {own} ORDER BY place DESC LIMIT 1"
            row = db.execute(last, (name, of)).fetchone()
            return None if row is None else self._info(db, row)

    def _data(self, db: Any, place: int, after: int = 0, lines: int | None = None) -> bytes:
        """The lines of a run, of `lines` that it has; a line's number is no less than its place."""
        own = f"place = ? AND number > ? {self.is_line} ORDER BY number"
        rows = db.execute(f"SELECT line FROM lines WHERE {own}", (place, after)).fetchall()
        before = 0 if lines is None else len(rows) - (lines - after)
        return b"".join(line for (line,) in rows[max(before, 0) :])

    def _info(self, db: Any, row: tuple[Any, ...], data: bytes | None = None) -> RunInfo:
        """What is known of a run; where more stands there than was attested, by its own lines."""
        place, run, name, mode, source, time, given, status, count, head, stub, lines = row
        if stub is not None:
            pruned = stubs.pruned_in(stub)
            return RunInfo(run, name, mode, source, time, status, count, head, given, pruned)
        if status is None or count != lines:
            status = ended(self._data(db, place) if data is None else data) or status
        return RunInfo(run, name, mode, source, time, status, count, head, given)
