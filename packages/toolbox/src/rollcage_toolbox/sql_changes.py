"""Changes of rows that can be undone: inserts, updates and deletes, and their compensation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa
from rollcage import Compensation, DidNotHappen, Happened, compensate, current_step, tool

from rollcage_toolbox import sql_rows
from rollcage_toolbox.sql_access import RAISES, Access
from rollcage_toolbox.sql_engine import SqlRefused
from rollcage_toolbox.sql_receipts import Receipts, call_of
from rollcage_toolbox.sql_tables import Row, Table, key_text

__all__ = ["ReversibleChanges", "Rows"]

Rows: TypeAlias = list[dict[str, Any]]


class ReversibleChanges:
    """The tools that change rows, each named by its primary key, and the tool that restores them.

    Args:
        access: the database.
        receipts: where inserts note the rows with keys from the database; None: nowhere.
    """

    def __init__(self, access: Access, receipts: Receipts | None) -> None:
        self._access = access
        self._receipts = receipts
        self._receipts_made = False
        self.restore = self._restore_tool()
        self.insert = self._insert_tool()
        self.update = self._update_tool()
        self.delete = self._delete_tool()

    def _insert_tool(self) -> Callable[..., dict[str, Any]]:
        def undo(args: Mapping[str, Any], result: Mapping[str, Any]) -> list[Compensation]:
            table: str = args["table"]
            rows = [(key, None) for key in result["keys"]]
            return self._plan(table, rows, receipts_of=call_of(table, args["rows"]))

        @tool(
            name=f"{self._access.name}_insert",
            effect="write",
            version="1",
            risk="medium",
            permissions=self._access.writes,
            raises=RAISES,
            undo=undo,
            observe=self._observe_insert,
            probe=self._probe_insert,
        )
        def insert(table: str, rows: Rows) -> dict[str, Any]:
            """Insert rows into a table; gives their keys. All are inserted, or none."""
            self._make_receipts()
            with self._access.changing(table, rows) as (connection, found):
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
            with self._access.dialect.writing(self._access.timeout) as connection:
                self._receipts.make(connection)
            self._receipts_made = True

    def _observe_insert(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the named rows, and the rows that equal inserts made, by their receipts."""
        with self._access.reading() as connection:
            table = self._access.tables.find(connection, args["table"])
            table.reversible()
            return self._states(connection, table, self._access.few(args["rows"]))

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
        with self._access.reading() as connection:
            table = self._access.tables.find(connection, args["table"])
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
            name=f"{self._access.name}_update",
            effect="write",
            version="1",
            risk="medium",
            permissions=self._access.writes,
            raises=RAISES,
            undo=undo,
            observe=self._observe_named,
            probe=probe,
        )
        def update(table: str, where: Rows, values: dict[str, Any]) -> dict[str, Any]:
            """Set the same values in rows, each named by its primary key.

            Other columns in `where` are what a row must hold, else nothing is changed.
            """
            with self._access.changing(table, where) as (connection, found):
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
            name=f"{self._access.name}_delete",
            effect="write",
            version="1",
            risk="high",
            permissions=self._access.writes,
            raises=RAISES,
            undo=undo,
            observe=self._observe_named,
            probe=probe,
        )
        def delete(table: str, where: Rows) -> dict[str, Any]:
            """Delete rows, each named by its primary key.

            Other columns in `where` are what a row must hold, else nothing is changed.
            """
            with self._access.changing(table, where) as (connection, found):
                keys = self._there(connection, found, where)
                sql_rows.refuse_followers(connection, found, keys, deleting=True)
                sql_rows.delete(connection, found, keys)
            return {"deleted": len(keys)}

        return delete

    def _observe_named(self, args: Mapping[str, Any]) -> dict[str, Any]:
        with self._access.reading() as connection:
            table = self._access.tables.find(connection, args["table"])
            table.reversible()
            keys = [table.split(row)[0] for row in self._access.few(args["where"])]
            return dict(sql_rows.images(connection, table, keys))

    def _there(self, connection: sa.Connection, table: Table, where: Sequence[Row]) -> list[Row]:
        """Return the keys of rows that exist, are as captured, and hold the given values."""
        split = [table.split(row) for row in where]
        keys: list[Row] = [key for key, _ in split]
        if len({key_text(key) for key in keys}) != len(keys):
            raise SqlRefused("a row is named twice")
        now = sql_rows.images(connection, table, keys, lock=True)
        if missing := [at for at, image in now.items() if image is None]:
            raise SqlRefused(f"there is no {', '.join(missing)}")
        self._unchanged(now)
        for key, values in split:
            if values and not sql_rows.holds(connection, table, {**key, **values}):
                raise SqlRefused(f"{table.resource(key)} does not hold the given {sorted(values)}")
        return keys

    def _hold(self, args: Mapping[str, Any], values: Row) -> bool:
        with self._access.reading() as connection:
            table = self._access.tables.find(connection, args["table"])
            written = table.values(values, what="by an update")
            keys = [table.split(row)[0] for row in args["where"]]
            return all(sql_rows.holds(connection, table, {**k, **written}) for k in keys)

    # --- undoing ---------------------------------------------------------------------------------

    def _restore_tool(self) -> Callable[..., dict[str, Any]]:
        def observe(args: Mapping[str, Any]) -> dict[str, Any]:
            named = [each["key"] for each in args["rows"]]
            return self._observe_named({"table": args["table"], "where": named})

        @tool(
            name=f"{self._access.name}_restore",
            effect="write",
            version="1",
            idempotent=True,
            risk="medium",
            permissions=self._access.writes,
            raises=RAISES,
            observe=observe,
        )
        def restore(table: str, rows: Rows, receipts_of: str = "") -> dict[str, Any]:
            """Put rows back: each is a `key` and a whole `row`, or no row.

            `receipts_of` names the call that made the deleted rows: its receipts are deleted, too.
            """
            with self._access.changing(table, rows) as (connection, found):
                self._access.dialect.defer_constraints(connection)
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
        with self._access.reading() as connection:
            table = self._access.tables.find(connection, args["table"])
        keys = {table.resource(key): key for key in (table.split(w)[0] for w in args["where"])}
        return self._plan(args["table"], [(keys[at], image) for at, image in before.items()])

    @staticmethod
    def _unchanged(now: Mapping[str, Any]) -> None:
        """Refuse rows that were changed after they were captured: their undo would be wrong."""
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
