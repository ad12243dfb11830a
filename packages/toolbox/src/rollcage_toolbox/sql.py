"""SQL for agents: reading held to reading by the engine, changes by rows that can be undone.

See `sql_engine` for how a database is held, `sql_tables` for what a name stands for and `sql_rows`
for what is kept of a row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import sqlalchemy as sa
from rollcage import Compensation, DidNotHappen, Happened, compensate, current_step, tool

from rollcage_toolbox import sql_rows
from rollcage_toolbox.sql_engine import (
    Dialect,
    SqlFailed,
    SqlRefused,
    dialect_of,
    opened,
    touched_by,
)
from rollcage_toolbox.sql_receipts import Receipts, call_of
from rollcage_toolbox.sql_tables import Row, Table, Tables, key_text

__all__ = ["Database", "SqlFailed", "SqlRefused"]

_Rows = list[dict[str, Any]]
_RAISES: Final = (SqlFailed, SqlRefused)


class Database:
    """Governed SQL tools over one database (SQLite, or PostgreSQL through psycopg).

    Reads: `sql_describe`, `sql_select` and, for SQL of the caller's own, `sql_query`. Writes that
    can be undone: `sql_insert`, `sql_update`, `sql_delete`; they name rows by their whole
    primary key. `sql_execute` takes any one statement and is irreversible: what it changes can't be
    known from its text. `sql_restore` takes the others back and is no tool for agents.

    Not undone: sequences and `AUTOINCREMENT` counters go on where they are, for a number that
    was handed out once could otherwise name two rows. Tables without a primary key, with triggers
    or rules, and rows that foreign keys would carry along (`CASCADE`, `SET NULL`) are refused by
    the writes that can be undone.

    Args:
        database: a URL of SQLAlchemy, or an engine of the caller's own, which stays the caller's.
        tables: the only tables that may be touched; None: all. PostgreSQL can't hold SQL of the
            caller's own to tables (its roles can): there `sql_query` and `sql_execute` are left
            out where this is given.
        row_limit: the most rows that a call may give or change.
        receipts: the name of a table in which inserts note the rows that the database gave a key;
            it is made when first needed. Without it a row must come with its primary key: else
            nothing could find it again.
        timeout: seconds that a statement, or the wait for a lock, may take.
        name: what the tools' names begin with; two databases of a process need two.

    Raises:
        ValueError: a database that can't be held to all this.
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
            raise ValueError(f"tables={tables!r} is one name; pass a list of them")
        self._own = not isinstance(database, sa.Engine)
        self._engine = database if isinstance(database, sa.Engine) else opened(database, timeout)
        self._dialect: Dialect = dialect_of(self._engine, tables)
        self._reads = ("sql:read", *touched_by(self._engine))
        self._writes = ("sql:write", *self._reads)
        self._receipts = None if receipts is None else Receipts(receipts)
        self._receipts_made = False
        self._tables = Tables(tables, hidden=receipts)
        self._row_limit = row_limit
        self._timeout = timeout
        self._name = name
        self.describe = self._describe_tool()
        self.select = self._select_tool()
        self.query = self._query_tool()
        self.restore = self._restore_tool()
        self.insert_rows = self._insert_tool()
        self.update_rows = self._update_tool()
        self.delete_rows = self._delete_tool()
        self.execute = self._execute_tool()
        # See `tables` in Args: where they can't be held, SQL of a caller's own is not offered.
        self._free = tables is None or self._engine.dialect.name == "sqlite"

    def tools(self, *, read_only: bool = False) -> list[Callable[..., Any]]:
        """The tools for an agent; with `read_only`, those that change nothing."""
        reads: list[Callable[..., Any]] = [self.describe, self.select]
        writes: list[Callable[..., Any]] = [self.insert_rows, self.update_rows, self.delete_rows]
        if self._free:
            reads.append(self.query)
            writes.append(self.execute)
        return reads if read_only else [*reads, *writes]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        """All tools: those for agents, and the one that takes their calls back."""
        yield from self.tools()
        yield self.restore

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; those of a caller's own engine stay open."""
        if self._own:
            self._engine.dispose()

    # --- reading ---------------------------------------------------------------------------------

    def _describe_tool(self) -> Callable[..., dict[str, Any]]:
        @tool(
            name=f"{self._name}_describe",
            effect="read",
            risk="low",
            permissions=self._reads,
            raises=_RAISES,
        )
        def describe() -> dict[str, Any]:
            """Tell which tables and columns there are, and which changes can be undone."""
            with self._reading() as connection:
                found = [self._tables.find(connection, n) for n in self._tables.names(connection)]
            return {table.name: _description(table) for table in found}

        return describe

    def _select_tool(self) -> Callable[..., _Rows]:
        @tool(
            name=f"{self._name}_select",
            effect="read",
            version="1",
            risk="low",
            permissions=self._reads,
            raises=_RAISES,
        )
        def select(
            table: str,
            where: dict[str, Any] | None = None,
            order_by: list[str] | None = None,
            limit: int | None = None,
        ) -> _Rows:
            """Give the rows of a table that hold the values of `where`, as they are stored."""
            with self._reading() as connection:
                found = self._tables.find(connection, table)
                return self._selected(connection, found, where or {}, order_by or [], limit)

        return select

    def _selected(
        self,
        connection: sa.Connection,
        table: Table,
        where: Row,
        order_by: Sequence[str],
        limit: int | None,
    ) -> _Rows:
        table.known([*where, *order_by])
        values = {name: table.written(name, value) for name, value in where.items()}
        wanted = sa.select(*(column.image for column in table.columns.values()))
        wanted = wanted.select_from(table.clause).where(sql_rows.equal(table, values))
        wanted = wanted.order_by(*(table.clause.c[name] for name in order_by or table.key))
        most = self._row_limit if limit is None else min(limit, self._row_limit)
        rows = connection.execute(wanted.limit(most)).all()
        return [dict(zip(table.columns, row, strict=True)) for row in rows]

    def _query_tool(self) -> Callable[..., dict[str, Any]]:
        @tool(
            name=f"{self._name}_query",
            effect="read",
            version="1",
            risk="low",
            permissions=self._reads,
            raises=_RAISES,
        )
        def query(sql: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
            """Run one query; `:name` in it stands for a parameter. It can't change anything."""
            with self._reading() as connection:
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
        rows = self._dialect.run(
            connection,
            sql,
            parameters or {},
            seconds=self._timeout,
            limit=self._row_limit,
            read=read,
        )
        if read and not rows.columns:
            raise SqlRefused("it gives no rows: it is no query")
        if rows.columns:
            return {"columns": rows.columns, "rows": rows.rows, "more": rows.more}
        return {"changed": rows.changed}

    # --- changes that can be undone ----------------------------------------------------------

    def _insert_tool(self) -> Callable[..., dict[str, Any]]:
        def undo(args: Mapping[str, Any], result: Mapping[str, Any]) -> list[Compensation]:
            table: str = args["table"]
            rows = [(key, None) for key in result["keys"]]
            return self._plan(table, rows, receipts_of=call_of(table, args["rows"]))

        @tool(
            name=f"{self._name}_insert",
            effect="write",
            version="1",
            risk="medium",
            permissions=self._writes,
            raises=_RAISES,
            undo=undo,
            observe=self._observe_insert,
            probe=self._probe_insert,
        )
        def insert(table: str, rows: _Rows) -> dict[str, Any]:
            """Insert rows into a table; gives their keys. All are inserted, or none."""
            self._make_receipts()
            with self._changing(table, rows) as (connection, found):
                self._unchanged(self._states(connection, found, rows))
                written = [found.values(row, what="by an insert") for row in rows]
                keys = [sql_rows.insert(connection, found, row) for row in written]
                if self._receipts is not None:
                    pairs = zip(rows, keys, strict=True)
                    unnamed = [key for row, key in pairs if not found.names(row)]
                    self._receipts.keep(connection, call_of(table, rows), table, unnamed)
            return {"inserted": len(keys), "keys": keys}

        return insert

    def _make_receipts(self) -> None:
        if self._receipts is not None and not self._receipts_made:
            with self._dialect.writing(self._timeout) as connection:
                self._receipts.make(connection)
            self._receipts_made = True

    def _observe_insert(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The rows that are named; and those that calls like this one made, by their receipts."""
        with self._reading() as connection:
            table = self._tables.find(connection, args["table"])
            table.reversible()
            return self._states(connection, table, self._few(args["rows"]))

    def _states(
        self, connection: sa.Connection, table: Table, rows: Sequence[Row]
    ) -> dict[str, Any]:
        named = [table.split(row)[0] for row in rows if table.names(row)]
        if len(named) == len(rows):
            return dict(sql_rows.images(connection, table, named))
        if self._receipts is None:
            raise SqlRefused(
                f"a row of {table.name!r} without its primary key {list(table.key)} could not be "
                f"found again: give it, or let the database keep receipts (Database(receipts=...))"
            )
        call = call_of(table.name, rows)
        made = self._receipts.keys(connection, call)
        states: dict[str, Any] = {f"inserted:{table.name}:{call}": [key_text(key) for key in made]}
        return states | sql_rows.images(connection, table, [*named, *made])

    def _probe_insert(
        self, args: Mapping[str, Any], before: Mapping[str, Any]
    ) -> Happened | DidNotHappen | None:
        rows: Sequence[Row] = args["rows"]
        with self._reading() as connection:
            table = self._tables.find(connection, args["table"])
            if self._states(connection, table, rows) == dict(before):
                return DidNotHappen()
            call = call_of(table.name, rows)
            made = [] if self._receipts is None else self._receipts.keys(connection, call)
            fresh = iter(made[len(before.get(f"inserted:{table.name}:{call}", ())) :])
            keys: list[Row] = []
            for row in rows:
                key = table.split(row)[0] if table.names(row) else next(fresh, None)
                if key is None:
                    return None
                values = table.values(row, what="by an insert")
                like_it = sql_rows.holds(connection, table, {**values, **key})
                if before.get(table.resource(key)) is not None or not like_it:
                    return None
                keys.append(key)
        return Happened({"inserted": len(keys), "keys": keys})

    def _update_tool(self) -> Callable[..., dict[str, Any]]:
        def undo(args: Mapping[str, Any], before: Mapping[str, Any]) -> list[Compensation]:
            return self._plan_back(args, before)

        def probe(args: Mapping[str, Any], before: Mapping[str, Any]) -> Any:
            now = self._observe_named(args)
            if now == dict(before):
                return DidNotHappen()
            if not self._hold(args, args["values"]) or _without(now, args) != _without(
                before, args
            ):
                return None
            return Happened({"updated": len(args["where"])})

        @tool(
            name=f"{self._name}_update",
            effect="write",
            version="1",
            risk="medium",
            permissions=self._writes,
            raises=_RAISES,
            undo=undo,
            observe=self._observe_named,
            probe=probe,
        )
        def update(table: str, where: _Rows, values: dict[str, Any]) -> dict[str, Any]:
            """Set the same values in rows, each named by its primary key.

            Other columns in `where` are what a row must hold, else nothing is changed.
            """
            with self._changing(table, where) as (connection, found):
                if moved := sorted(set(values) & set(found.key)):
                    raise SqlRefused(f"{moved} name the row: delete it and insert another")
                if not values:
                    raise SqlRefused("there are no values to set")
                written = found.values(values, what="by an update")
                keys = self._there(connection, found, where)
                sql_rows.refuse_followers(connection, found, keys, updating=values)
                sql_rows.update(connection, found, keys, written)
            return {"updated": len(keys)}

        return update

    def _delete_tool(self) -> Callable[..., dict[str, Any]]:
        def undo(args: Mapping[str, Any], before: Mapping[str, Any]) -> list[Compensation]:
            return self._plan_back(args, before)

        def probe(args: Mapping[str, Any], before: Mapping[str, Any]) -> Any:
            now = self._observe_named(args)
            if now == dict(before):
                return DidNotHappen()
            gone = all(image is None for image in now.values())
            return Happened({"deleted": len(args["where"])}) if gone else None

        @tool(
            name=f"{self._name}_delete",
            effect="write",
            version="1",
            risk="high",
            permissions=self._writes,
            raises=_RAISES,
            undo=undo,
            observe=self._observe_named,
            probe=probe,
        )
        def delete(table: str, where: _Rows) -> dict[str, Any]:
            """Delete rows, each named by its primary key.

            Other columns in `where` are what a row must hold, else nothing is changed.
            """
            with self._changing(table, where) as (connection, found):
                keys = self._there(connection, found, where)
                sql_rows.refuse_followers(connection, found, keys, deleting=True)
                sql_rows.delete(connection, found, keys)
            return {"deleted": len(keys)}

        return delete

    def _observe_named(self, args: Mapping[str, Any]) -> dict[str, Any]:
        with self._reading() as connection:
            table = self._tables.find(connection, args["table"])
            table.reversible()
            keys = [table.split(row)[0] for row in self._few(args["where"])]
            return dict(sql_rows.images(connection, table, keys))

    def _there(self, connection: sa.Connection, table: Table, where: Sequence[Row]) -> list[Row]:
        """The keys of rows, which are there, are as they were captured, and hold what is said."""
        split = [table.split(row) for row in where]
        keys: list[Row] = [key for key, _ in split]
        if len({key_text(key) for key in keys}) != len(keys):
            raise SqlRefused("a row is named twice")
        now = sql_rows.images(connection, table, keys, lock=True)
        if missing := [at for at, image in now.items() if image is None]:
            raise SqlRefused(f"there is no {', '.join(missing)}")
        self._unchanged(now)
        for key, said in split:
            if said and not sql_rows.holds(connection, table, {**key, **said}):
                raise SqlRefused(f"{table.resource(key)} does not hold {sorted(said)} as said")
        return keys

    def _hold(self, args: Mapping[str, Any], values: Row) -> bool:
        with self._reading() as connection:
            table = self._tables.find(connection, args["table"])
            written = table.values(values, what="by an update")
            keys = [table.split(row)[0] for row in args["where"]]
            return all(sql_rows.holds(connection, table, {**k, **written}) for k in keys)

    # --- undoing -----------------------------------------------------------------------------

    def _restore_tool(self) -> Callable[..., dict[str, Any]]:
        def observe(args: Mapping[str, Any]) -> dict[str, Any]:
            named = [each["key"] for each in args["rows"]]
            return self._observe_named({"table": args["table"], "where": named})

        @tool(
            name=f"{self._name}_restore",
            effect="write",
            version="1",
            idempotent=True,
            risk="medium",
            permissions=self._writes,
            raises=_RAISES,
            observe=observe,
        )
        def restore(table: str, rows: _Rows, receipts_of: str = "") -> dict[str, Any]:
            """Make rows what they were: each is a `key` and a whole `row`, or no row.

            `receipts_of` names the call that made those that go: its receipts go with them.
            """
            with self._changing(table, rows) as (connection, found):
                self._dialect.defer_constraints(connection)
                split = [(found.split(each["key"])[0], each["row"]) for each in rows]
                wanted = {found.resource(key): (key, row) for key, row in split}
                going = [key for key, row in split if row is None]
                there = sql_rows.images(connection, found, going) if going else {}
                sql_rows.restore(connection, found, wanted)
                if self._receipts is not None and receipts_of:  # once: then there is no row
                    gone = [key for key in going if there[found.resource(key)] is not None]
                    self._receipts.drop(connection, receipts_of, table, gone)
            return {"restored": len(rows)}

        return restore

    def _plan(
        self, table: str, rows: Sequence[tuple[Row, Row | None]], receipts_of: str = ""
    ) -> list[Compensation]:
        wanted = [
            {"key": dict(key), "row": None if row is None else dict(row)} for key, row in rows
        ]
        return [compensate(self.restore, table=table, rows=wanted, receipts_of=receipts_of)]

    def _plan_back(self, args: Mapping[str, Any], before: Mapping[str, Any]) -> list[Compensation]:
        with self._reading() as connection:
            table = self._tables.find(connection, args["table"])
        keys = {table.resource(key): key for key in (table.split(w)[0] for w in args["where"])}
        return self._plan(args["table"], [(keys[at], image) for at, image in before.items()])

    # --- changes that can't ----------------------------------------------------------------------

    def _execute_tool(self) -> Callable[..., dict[str, Any]]:
        @tool(
            name=f"{self._name}_execute",
            effect="write",
            version="1",
            risk="high",
            permissions=self._writes,
            raises=_RAISES,
        )
        def execute(sql: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
            """Run one statement of any kind; `:name` stands for a parameter. It can't be undone."""
            with self._dialect.writing(self._timeout) as connection:
                told = self._run(connection, sql, parameters, read=False)
                if told.get("more"):
                    raise SqlRefused(f"it gives more than {self._row_limit} rows")
            return told

        return execute

    # --- transactions ----------------------------------------------------------------------------

    def _reading(self) -> contextlib.AbstractContextManager[sa.Connection]:
        return self._dialect.reading(self._timeout)

    @contextlib.contextmanager
    def _changing(self, table: str, rows: Sequence[Row]) -> Generator[tuple[sa.Connection, Table]]:
        self._few(rows)
        with self._dialect.writing(self._timeout) as connection:
            found = self._tables.find(connection, table)
            found.reversible()
            yield connection, found

    def _few(self, rows: Sequence[Row]) -> Sequence[Row]:
        if not 0 < len(rows) <= self._row_limit:
            raise SqlRefused(f"{len(rows)} rows; a call changes 1 to {self._row_limit}")
        return rows

    @staticmethod
    def _unchanged(now: Mapping[str, Any]) -> None:
        """Refuse rows that somebody changed after they were captured: their undo would be wrong."""
        step = current_step()
        before = now if step is None or step.before is None else step.before
        changed = sorted(at for at in {*before, *now} if before.get(at) != now.get(at))
        if changed:
            raise SqlRefused(f"somebody else has just changed {', '.join(changed)}: look again")


def _without(states: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Rows without the columns that a call sets."""
    return {
        at: image and {name: v for name, v in image.items() if name not in args["values"]}
        for at, image in states.items()
    }


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
