"""The shared parts of one database's SQL tools: the dialect, the tables, and the limits."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence
from typing import Final

import sqlalchemy as sa

from rollcage_toolbox.sql_engine import Dialect, SqlFailed, SqlRefused
from rollcage_toolbox.sql_tables import Row, Table, Tables

__all__ = ["RAISES", "Access"]

RAISES: Final = (SqlFailed, SqlRefused)


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """One database, as its tools may use it.

    Attributes:
        dialect: reads and writes in it.
        tables: the tables that may be used.
        row_limit: the most rows that a call may return or change.
        timeout: seconds that a statement, or the wait for a lock, may take.
        name: the prefix of its tools' names.
        reads: the permissions of a tool that reads.
        writes: the permissions of a tool that writes.
    """

    dialect: Dialect
    tables: Tables
    row_limit: int
    timeout: float
    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def reading(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """Give a connection on which nothing can be changed."""
        return self.dialect.reading(self.timeout)

    @contextlib.contextmanager
    def changing(self, table: str, rows: Sequence[Row]) -> Generator[tuple[sa.Connection, Table]]:
        """Give a transaction that changes rows of a table, so that they can be restored."""
        self.few(rows)
        with self.dialect.writing(self.timeout) as connection:
            found = self.tables.find(connection, table)
            found.reversible()
            yield connection, found

    def few(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows; refuse an empty list, and more than one call may change."""
        if not 0 < len(rows) <= self.row_limit:
            raise SqlRefused(f"{len(rows)} rows; a call changes 1 to {self.row_limit}")
        return rows
