"""SQL for agents: reading held to reading by the engine, changes by rows that can be undone.

`sql_engine` opens and holds a database, `sql_changes` has the tools that change rows, `sql_tables`
knows tables by name, and `sql_rows` keeps and restores rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Self

import sqlalchemy as sa
from rollcage import tool

from rollcage_toolbox import sql_rows
from rollcage_toolbox.sql_access import RAISES, Access
from rollcage_toolbox.sql_changes import ReversibleChanges, Rows
from rollcage_toolbox.sql_engine import SqlFailed, SqlRefused, dialect_of, opened, touched_by
from rollcage_toolbox.sql_receipts import Receipts
from rollcage_toolbox.sql_tables import Row, Table, Tables

__all__ = ["Database", "SqlFailed", "SqlRefused"]


class Database:
    """Governed SQL tools over one database (SQLite, or PostgreSQL through psycopg).

    Reads: `sql_describe`, `sql_select` and, for SQL of the caller's own, `sql_query`. Writes that
    can be undone: `sql_insert`, `sql_update`, `sql_delete`; they name rows by their whole primary
    key. `sql_execute` takes any one statement and is irreversible: its effect can't be known from
    its text. `sql_restore` undoes the others and is not a tool for agents.

    Not undone: sequences and `AUTOINCREMENT` counters keep their values, because a number that was
    handed out once could otherwise name two rows. Tables without a primary key, with triggers or
    rules, and rows that foreign keys would carry along (`CASCADE`, `SET NULL`) are refused by the
    writes that can be undone.

    Args:
        database: a URL of SQLAlchemy, or an engine of the caller's own, which stays the caller's.
        tables: the only tables that may be used; None: all. PostgreSQL can't restrict SQL of the
            caller's own to tables (its roles can): there `sql_query` and `sql_execute` are left
            out if this is given.
        row_limit: the most rows that a call may return or change.
        receipts: the name of a table in which inserts note the rows with keys from the database;
            it is made on demand. Without it a row must come with its primary key: otherwise
            it could not be found again.
        timeout: seconds that a statement, or the wait for a lock, may take.
        name: the prefix of the tools' names; two databases of a process need two.

    Raises:
        ValueError: a database that can't be restricted like this.
    """

    def __init__(
        self,
        database: str | sa.URL | sa.Engine,
        *,
        tables: Collection[str] | None = None,
        row_limit: int = 500,
        receipts: str | None = None,
        timeout: float = 10.0,
        name: str = "sql",
    ) -> None:
        if isinstance(tables, str):
            raise ValueError(f"tables={tables!r} is one name; pass a list of names")
        self._own = not isinstance(database, sa.Engine)
        self._engine = database if isinstance(database, sa.Engine) else opened(database, timeout)
        reads = ("sql:read", *touched_by(self._engine))
        self._access = Access(
            dialect=dialect_of(self._engine, tables),
            tables=Tables(tables, hidden=receipts),
            row_limit=row_limit,
            timeout=timeout,
            name=name,
            reads=reads,
            writes=("sql:write", *reads),
        )
        self.describe = self._describe_tool()
        self.select = self._select_tool()
        self.query = self._query_tool()
        changes = ReversibleChanges(self._access, None if receipts is None else Receipts(receipts))
        self.restore = changes.restore
        self.insert_rows = changes.insert
        self.update_rows = changes.update
        self.delete_rows = changes.delete
        self.execute = self._execute_tool()
        # See `tables` in Args: if they can't be enforced, SQL of the caller's own is not offered.
        self._free = tables is None or self._engine.dialect.name == "sqlite"

    def tools(self, *, read_only: bool = False) -> list[Callable[..., Any]]:
        """Return the tools for an agent; with `read_only`, only tools that change nothing."""
        reads: list[Callable[..., Any]] = [self.describe, self.select]
        writes: list[Callable[..., Any]] = [self.insert_rows, self.update_rows, self.delete_rows]
        if self._free:
            reads.append(self.query)
            writes.append(self.execute)
        return reads if read_only else [*reads, *writes]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        """Yield all tools: the tools for agents, and the compensating one."""
        yield from self.tools()
        yield self.restore

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the connections of the caller's own engine stay open."""
        if self._own:
            self._engine.dispose()

    # --- reading ---------------------------------------------------------------------------------

    def _describe_tool(self) -> Callable[..., dict[str, Any]]:
        @tool(
            name=f"{self._access.name}_describe",
            effect="read",
            risk="low",
            permissions=self._access.reads,
            raises=RAISES,
        )
        def describe() -> dict[str, Any]:
            """Tell which tables and columns there are, and which changes can be undone."""
            with self._access.reading() as connection:
                found = [
                    self._access.tables.find(connection, n)
                    for n in self._access.tables.names(connection)
                ]
            return {table.name: _description(table) for table in found}

        return describe

    def _select_tool(self) -> Callable[..., Rows]:
        @tool(
            name=f"{self._access.name}_select",
            effect="read",
            version="1",
            risk="low",
            permissions=self._access.reads,
            raises=RAISES,
        )
        def select(
            table: str,
            where: dict[str, Any] | None = None,
            order_by: list[str] | None = None,
            limit: int | None = None,
        ) -> Rows:
            """Give the rows of a table that hold the values of `where`, as they are stored."""
            with self._access.reading() as connection:
                found = self._access.tables.find(connection, table)
                return self._selected(connection, found, where or {}, order_by or [], limit)

        return select

    def _selected(
        self,
        connection: sa.Connection,
        table: Table,
        where: Row,
        order_by: Sequence[str],
        limit: int | None,
    ) -> Rows:
        table.known([*where, *order_by])
        values = {name: table.written(name, value) for name, value in where.items()}
        wanted = sa.select(*(column.image for column in table.columns.values()))
        wanted = wanted.select_from(table.clause).where(sql_rows.equal(table, values))
        wanted = wanted.order_by(*(table.clause.c[name] for name in order_by or table.key))
        most = self._access.row_limit if limit is None else min(limit, self._access.row_limit)
        rows = connection.execute(wanted.limit(most)).all()
        return [dict(zip(table.columns, row, strict=True)) for row in rows]

    def _query_tool(self) -> Callable[..., dict[str, Any]]:
        @tool(
            name=f"{self._access.name}_query",
            effect="read",
            version="1",
            risk="low",
            permissions=self._access.reads,
            raises=RAISES,
        )
        def query(sql: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
            """Run one query; `:name` in it stands for a parameter. It can't change anything."""
            with self._access.reading() as connection:
                return self._run(connection, sql, parameters, read=True)

        return query

    def _run(
        self,
        connection: sa.Connection,
        sql: str,
        parameters: Mapping[str, Any] | None,
        *,
        read: bool,
    ) -> dict[str, Any]:
        rows = self._access.dialect.run(
            connection,
            sql,
            parameters or {},
            seconds=self._access.timeout,
            limit=self._access.row_limit,
            read=read,
        )
        if read and not rows.columns:
            raise SqlRefused("it gives no rows: it is not a query")
        if rows.columns:
            return {"columns": rows.columns, "rows": rows.rows, "more": rows.more}
        return {"changed": rows.changed}

    # --- changes that can't be undone ------------------------------------------------------------

    def _execute_tool(self) -> Callable[..., dict[str, Any]]:
        @tool(
            name=f"{self._access.name}_execute",
            effect="write",
            version="1",
            risk="high",
            permissions=self._access.writes,
            raises=RAISES,
        )
        def execute(sql: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
            """Run one statement of any kind; `:name` stands for a parameter. It can't be undone."""
            with self._access.dialect.writing(self._access.timeout) as connection:
                result = self._run(connection, sql, parameters, read=False)
                if result.get("more"):
                    raise SqlRefused(f"it gives more than {self._access.row_limit} rows")
            return result

        return execute


def _description(table: Table) -> dict[str, Any]:
    columns = {
        column.name: {
            "type": str(column.type),
            "optional": column.optional,
            "written_by": "database" if column.generated or column.always else "anyone",
        }
        for column in table.columns.values()
    }
    return {
        "columns": columns,
        "primary_key": list(table.key),
        "reversible": not table.why_not,
        "why_not": table.why_not,
    }
