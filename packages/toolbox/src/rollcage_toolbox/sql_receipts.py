"""Receipts: which rows an insert made, if the database gave them their keys.

A row with a key from the database has no name before it exists, so nothing could tell later which
row a call made, because its contents change. A receipt, written in the same transaction as the row,
can. Undo and probes find such rows by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from rollcage_toolbox.sql_tables import Row, key_text

__all__ = ["Receipts", "call_of"]


class Receipts:
    """A table of receipts.

    Args:
        name: the table's name. It is made on demand, and may be emptied when the
            runs with its receipts will not be undone any more.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._table = sa.Table(
            name,
            sa.MetaData(),
            sa.Column("call_digest", sa.String(64), primary_key=True),
            sa.Column("number", sa.Integer, primary_key=True),
            sa.Column("table_name", sa.Text, nullable=False),
            sa.Column("row_key", sa.Text, nullable=False),
        )

    def make(self, connection: sa.Connection) -> None:
        """Make the table, unless it exists."""
        self._table.create(connection, checkfirst=True)

    def keys(self, connection: sa.Connection, call: str) -> list[dict[str, Any]]:
        """Return the keys of the rows that equal calls made, the oldest first."""
        if not sa.inspect(connection).has_table(self.name):
            return []
        columns = self._table.c
        wanted = sa.select(columns.row_key).where(columns.call_digest == call)
        found = connection.execute(wanted.order_by(columns.number))
        return [_key(str(text)) for text in found.scalars()]

    def keep(self, connection: sa.Connection, call: str, table: str, keys: Sequence[Row]) -> None:
        """Record the rows that a call made."""
        columns = self._table.c
        first = (connection.execute(sa.select(sa.func.max(columns.number))).scalar() or 0) + 1
        for number, key in enumerate(keys, first):
            connection.execute(
                self._table.insert().values(
                    call_digest=call, number=number, table_name=table, row_key=key_text(key)
                )
            )

    def drop(self, connection: sa.Connection, call: str, table: str, keys: Iterable[Row]) -> None:
        """Forget rows of a call that were undone.

        A key that was given out again has other receipts, of rows that are gone: these stay, for
        the undo of earlier calls.
        """
        if not sa.inspect(connection).has_table(self.name):
            return
        columns = self._table.c
        for key in keys:
            its = (
                (columns.call_digest == call)
                & (columns.table_name == table)
                & (columns.row_key == key_text(key))
            )
            newest = sa.select(sa.func.max(columns.number)).where(its).scalar_subquery()
            connection.execute(self._table.delete().where(its, columns.number == newest))


def call_of(table: str, rows: Sequence[Row]) -> str:
    """Return the identity of calls that insert the same into the same table."""
    text = json.dumps([table, [key_text(row) for row in rows]])
    return hashlib.sha256(text.encode()).hexdigest()


def _key(text: str) -> dict[str, Any]:
    stored: Mapping[str, Any] = json.loads(text)
    return {
        name: bytes.fromhex(cast("Mapping[str, str]", value)["hex"]) if _is_bytes(value) else value
        for name, value in stored.items()
    }


def _is_bytes(value: object) -> bool:
    return isinstance(value, dict)
