"""The append-only log of a store in a SQL database: an approver's word, a registry's decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rollcage.errors import StoreError
from rollcage.store import disk
from rollcage.store.chained import Head, check_lines
from rollcage.store.protocol import Line
from rollcage.store.sql_documents import SqlDatabase
from rollcage.trace.events import seal_line
from rollcage.trace.reader import tail_of

__all__ = ["SqlLog"]


class SqlLog:
    """An append-only list of JSON lines in a SQL database; see `Log`."""

    def __init__(self, database: SqlDatabase, name: str, begins: str) -> None:
        self.where = f"{name} of {database.url}"
        self._sql = database
        self._name = name
        self._begins = begins

    def read(self) -> list[Line]:
        if not self._sql.is_there:
            return []
        with self._sql.reading() as db:
            return self._lines(db)[0]

    def append(
        self, make: Callable[[list[Line]], Sequence[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        with self._sql.changing(alone="logs") as db:
            lines, data = self._lines(db)
            events = list(make(lines))
            head = tail_of(data).head
            for number, event in enumerate(events, start=len(lines) + 1):
                line, head = seal_line(event, head)
                db.execute("INSERT INTO logs VALUES (?, ?, ?)", (self._name, number, line))
            db.execute(
                "INSERT INTO heads VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
                " count = excluded.count, head = excluded.head",
                (self._name, len(lines) + len(events), head.hex()),
            )
        try:
            self._sql.sync()
        except OSError as error:
            raise StoreError(f"{self.where} can't be written: {disk.describe(error)}") from error
        return events

    def _lines(self, db: Any) -> tuple[list[Line], bytes]:
        name = (self._name,)
        row = db.execute("SELECT count, head FROM heads WHERE name = ?", name).fetchone()
        rows = db.execute("SELECT line FROM logs WHERE name = ? ORDER BY number", name)
        data = b"".join(line for (line,) in rows)
        head = Head(0, "") if row is None else Head(*row)
        return check_lines(data, self.where, self._begins, head), data
