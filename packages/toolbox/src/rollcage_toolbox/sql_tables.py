"""Tables as the database describes them: the table of a name, and whether it can be undone.

Every identifier in a statement comes from here, never from a caller.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from rollcage_toolbox.sql_engine import SqlRefused, in_sqlite

__all__ = ["Column", "Reference", "Row", "Table", "Tables", "key_text"]

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: its name.
        type: as the database declares it.
        generated: whether the database computes it; nothing can be written to it.
        always: whether it is an identity that only the database gives out.
        optional: whether a row may omit it.
        plain: whether its values are used as the driver gives them; others as the text that the
            database writes for them, which it reads again without loss.
    """

    name: str
    type: sa.types.TypeEngine[Any]
    generated: bool
    always: bool
    optional: bool
    plain: bool

    @property
    def image(self) -> sa.ColumnElement[Any]:
        """Return the selected expression that keeps its value."""
        column: sa.ColumnElement[Any] = sa.column(self.name)
        reflected: sa.ColumnElement[Any] = column if self.plain else sa.cast(column, sa.Text)
        return reflected.label(self.name)


@dataclasses.dataclass(frozen=True)
class Reference:
    """A foreign key of another table to this one, with an action on changes of a row."""

    table: str
    columns: tuple[str, ...]
    referred: tuple[str, ...]
    on_delete: bool
    on_update: bool


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: its name.
        columns: by name, in order.
        key: the columns of its primary key.
        why_not: why changes of its rows can't be undone; empty if they can.
        references: the foreign keys that follow a change of its rows.
    """

    name: str
    columns: dict[str, Column]
    key: tuple[str, ...]
    why_not: str
    references: tuple[Reference, ...]
    sqlite: bool

    @functools.cached_property
    def clause(self) -> sa.TableClause:
        """Return the table for statements: values pass unchanged."""
        columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in self.columns]
        return sa.table(self.name, *columns)

    def reversible(self) -> None:
        """Refuse changes that could not be undone.

        Raises:
            SqlRefused: says why.
        """
        if self.why_not:
            raise SqlRefused(
                f"changes of {self.name!r} can't be undone: {self.why_not}; what can't be "
                f"undone is done by execute"
            )

    def values(self, given: Row, *, what: str) -> dict[str, Any]:
        """Return values in their written form, by existing columns.

        Raises:
            SqlRefused: a column that does not exist, or that can't be written.
        """
        self.known(given)
        for name in given:
            column = self.columns[name]
            if column.generated or column.always:
                raise SqlRefused(f"{self.name}.{name} is written by the database alone, not {what}")
        return {name: self.written(name, value) for name, value in given.items()}

    def written(self, name: str, value: Any) -> Any:
        """Return a value in its bound form."""
        kind = self.columns[name].type
        if isinstance(value, str) and isinstance(kind, sa.LargeBinary):
            raise SqlRefused(f"{self.name}.{name} holds bytes, not text")
        if self.sqlite:
            return in_sqlite(value)
        return json.dumps(value) if isinstance(kind, sa.JSON) and value is not None else value

    def split(self, where: Row) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the whole primary key of a row, and the other given values.

        Raises:
            SqlRefused: the key is not whole, or a column does not exist.
        """
        self.known(where)
        if missing := [name for name in self.key if where.get(name) is None]:
            raise SqlRefused(
                f"a row of {self.name!r} is named by its whole primary key {list(self.key)}; "
                f"{missing} are missing"
            )
        key = {name: self._key_value(name, where[name]) for name in self.key}
        return key, {n: self.written(n, v) for n, v in where.items() if n not in key}

    def _key_value(self, name: str, value: Any) -> Any:
        """Return a part of a key in its one form, so that a row has one name."""
        column = self.columns[name]
        if isinstance(column.type, sa.Integer):
            text = str(value)
            if isinstance(value, bool) or not text.removeprefix("-").isdecimal():
                raise SqlRefused(f"{self.name}.{name} is a whole number, not {value!r}")
            return int(text)
        plain = self.written(name, value)
        return plain if column.plain or plain is None else str(plain)

    def names(self, row: Row) -> bool:
        """Return whether a row has a whole primary key."""
        return all(row.get(name) is not None for name in self.key)

    def known(self, names: Iterable[str]) -> None:
        """Refuse columns that do not exist.

        Raises:
            SqlRefused: names them.
        """
        if unknown := [name for name in names if name not in self.columns]:
            raise SqlRefused(f"{self.name!r} has no columns {unknown}; it has {list(self.columns)}")

    def resource(self, key: Row) -> str:
        """Return the name of a row, for a trace."""
        return f"row:{self.name}:{key_text(key)}"


def key_text(key: Row) -> str:
    """Return a key, or other values, as JSON with sorted names.

    Values that JSON lacks are in it as their text.
    """
    return json.dumps(dict(key), sort_keys=True, ensure_ascii=False, default=_as_json)


def _as_json(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else str(value)


# --- reading the schema --------------------------------------------------------------------------

_FOLLOWS: Final = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})


class Tables:
    """The usable tables, read from the schema at each use."""

    def __init__(self, allowed: Collection[str] | None, *, hidden: str | None = None) -> None:
        self._allowed = None if allowed is None else frozenset(allowed)
        self._hidden = hidden

    def names(self, connection: sa.Connection) -> list[str]:
        """Return the names of the usable tables."""
        return self._of(sa.inspect(connection).get_table_names())

    def _of(self, names: Iterable[str]) -> list[str]:
        found = (n for n in names if self._allowed is None or n in self._allowed)
        return sorted(name for name in found if name != self._hidden)

    def find(self, connection: sa.Connection, name: str) -> Table:
        """Return a table by its exact name.

        Raises:
            SqlRefused: the table does not exist, or may not be used.
        """
        inspector = sa.inspect(connection)
        known = inspector.get_table_names()
        if name not in self._of(known):
            raise SqlRefused(f"there is no table {name!r} to touch; there are {self._of(known)}")
        sqlite = connection.dialect.name == "sqlite"
        columns = {
            each["name"]: _column(each, sqlite=sqlite) for each in inspector.get_columns(name)
        }
        key = tuple(inspector.get_pk_constraint(name)["constrained_columns"])
        why = "" if key else "it has no primary key"
        side = [] if why else _side_effects(connection, name, sqlite=sqlite)
        if side:
            why = f"the rows that {', '.join(side)} change with them can't be known"
        references = tuple(_references(connection, known, name))
        return Table(name, columns, key, why, references, sqlite)


def _column(reflected: Mapping[str, Any], *, sqlite: bool) -> Column:
    kind: sa.types.TypeEngine[Any] = reflected["type"]
    identity: Mapping[str, Any] = reflected.get("identity") or {}
    return Column(
        reflected["name"],
        kind,
        generated=reflected.get("computed") is not None,
        always=bool(identity.get("always")),
        optional=bool(reflected["nullable"] or reflected.get("default") is not None or identity),
        plain=sqlite or isinstance(kind, sa.Integer | sa.Boolean | sa.String),
    )


def _side_effects(connection: sa.Connection, name: str, *, sqlite: bool) -> list[str]:
    """Return the side effects of a row's change: triggers and rules."""
    if sqlite:
        schemas = ("sqlite_master", "sqlite_temp_master")
        found: list[str] = []
        for schema in schemas:
            listed = sa.table(schema, sa.column("name"), sa.column("type"), sa.column("tbl_name"))
            wanted = sa.select(listed.c.name).where(
                listed.c.type == "trigger", sa.func.lower(listed.c.tbl_name) == name.lower()
            )
            found += [f"trigger {row[0]!r}" for row in connection.execute(wanted)]
        return found
    triggers = sa.text(
        "SELECT 'trigger ' || quote_literal(tgname) FROM pg_trigger "
        "WHERE tgrelid = to_regclass(quote_ident(:name)) AND NOT tgisinternal "
        "UNION ALL SELECT 'rule ' || quote_literal(rulename) FROM pg_rewrite "
        "WHERE ev_class = to_regclass(quote_ident(:name)) AND rulename <> '_RETURN'"
    )
    return [str(row[0]) for row in connection.execute(triggers, {"name": name})]


def _references(connection: sa.Connection, tables: Iterable[str], name: str) -> list[Reference]:
    """Return the foreign keys of all tables that carry on a change of this one."""
    reflected = _sqlite_keys if connection.dialect.name == "sqlite" else _reflected_keys
    found = [each for table in tables for each in reflected(connection, table, name)]
    return [each for each in found if each.on_delete or each.on_update]


def _sqlite_keys(connection: sa.Connection, table: str, name: str) -> Iterable[Reference]:
    """Read the foreign keys from SQLite.

    SQLAlchemy would read the actions from the text of CREATE TABLE.
    """
    listed = connection.execute(
        sa.text('SELECT * FROM pragma_foreign_key_list(:name) ORDER BY "id", "seq"'),
        {"name": table},
    ).mappings()
    for _, parts in itertools.groupby(listed, key=operator.itemgetter("id")):
        columns = list(parts)
        first = columns[0]
        if first["table"].lower() != name.lower():
            continue
        referred = tuple(each["to"] for each in columns)
        if None in referred:  # the primary key, unnamed
            referred = tuple(sa.inspect(connection).get_pk_constraint(name)["constrained_columns"])
        yield Reference(
            table,
            tuple(each["from"] for each in columns),
            referred,
            first["on_delete"] in _FOLLOWS,
            first["on_update"] in _FOLLOWS,
        )


def _reflected_keys(connection: sa.Connection, table: str, name: str) -> Iterable[Reference]:
    for key in sa.inspect(connection).get_foreign_keys(table):
        if key["referred_table"] == name:
            options = key.get("options") or {}
            yield Reference(
                table,
                tuple(key["constrained_columns"]),
                tuple(key["referred_columns"]),
                str(options.get("ondelete", "")).upper() in _FOLLOWS,
                str(options.get("onupdate", "")).upper() in _FOLLOWS,
            )
