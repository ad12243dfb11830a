"""Rows as they are stored: their images, and the statements that change and restore them.

An image holds each column as the database wrote it (SQLite: the stored value; PostgreSQL: whole
numbers, truth values and text unchanged, other values as the text that the database reads again
without loss, as in pg_dump). Written back, it is the same row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa

from rollcage_toolbox.sql_engine import SqlRefused
from rollcage_toolbox.sql_tables import Reference, Row, Table

__all__ = [
    "delete", "equal", "holds", "images", "insert", "refuse_followers", "restore", "update",
]  # fmt: skip

Image = dict[str, Any]

_AT_ONCE: Final = 100  # keys in a statement: SQLite limits the depth of a condition


def images(
    connection: sa.Connection, table: Table, keys: Sequence[Row], *, lock: bool = False
) -> dict[str, Image | None]:
    """Return the images of the rows with these keys, by resource; None for a missing row.

    Args:
        connection: in a transaction.
        table: the table of the rows.
        keys: whole primary keys, in their one form.
        lock: whether to lock them until the transaction ends.

    Raises:
        SqlRefused: a key is not written in its stored form.
    """
    found: dict[str, Image | None] = {table.resource(key): None for key in keys}
    for some in _portions(keys):
        wanted = sa.select(*(column.image for column in table.columns.values()))
        wanted = wanted.select_from(table.clause).where(_any(table, some))
        for row in connection.execute(wanted.with_for_update() if lock else wanted):
            image = dict(zip(table.columns, row, strict=True))
            resource = table.resource({name: image[name] for name in table.key})
            if resource not in found:
                raise SqlRefused(f"a key is stored as {resource}: write it like that")
            found[resource] = image
    return found


def holds(connection: sa.Connection, table: Table, values: Row) -> bool:
    """Return whether a row, including its key, holds these values."""
    wanted = sa.select(sa.literal(1)).select_from(table.clause).where(equal(table, values))
    return connection.execute(wanted.limit(1)).first() is not None


def insert(connection: sa.Connection, table: Table, values: Row) -> Image:
    """Insert a row; return its key.

    Raises:
        SqlRefused: its key does not identify it.
    """
    statement = sa.insert(table.clause).prefix_with("OR ABORT", dialect="sqlite")
    filled = statement.values({n: _bound(v) for n, v in values.items()}) if values else statement
    keys = [table.columns[name].image for name in table.key]
    row = connection.execute(filled.returning(*keys)).one()
    key = dict(zip(table.key, row, strict=True))
    if None in key.values():
        raise SqlRefused(f"a row of {table.name!r} without a primary key could not be found again")
    return key


def update(connection: sa.Connection, table: Table, keys: Sequence[Row], values: Row) -> None:
    """Set the same values in all rows with these keys."""
    for some in _portions(keys):
        statement = sa.update(table.clause).prefix_with("OR ABORT", dialect="sqlite")
        statement = statement.values({name: _bound(value) for name, value in values.items()})
        done = connection.execute(statement.where(_any(table, some)))
        _all_of(done.rowcount, some, table)


def delete(connection: sa.Connection, table: Table, keys: Sequence[Row]) -> None:
    """Delete all rows with these keys."""
    for some in _portions(keys):
        done = connection.execute(sa.delete(table.clause).where(_any(table, some)))
        _all_of(done.rowcount, some, table)


def restore(
    connection: sa.Connection, table: Table, wanted: Mapping[str, tuple[Row, Row | None]]
) -> None:
    """Restore rows from their images: by resource, the key and the image, None for no row.

    Raises:
        SqlRefused: the rows can't be restored; the transaction must be rolled back.
    """
    keys = [key for key, _ in wanted.values()]
    now = images(connection, table, keys, lock=True)
    gone = [key for at, (key, row) in wanted.items() if row is None and now[at] is not None]
    refuse_followers(connection, table, gone, deleting=True)
    delete(connection, table, gone)
    writable = [n for n, c in table.columns.items() if not (c.generated or c.always)]
    for at, (key, row) in wanted.items():
        there = now[at]
        if row is None or there is None:
            continue
        values = {n: row[n] for n in writable if n not in table.key and row[n] != there[n]}
        if values:
            update(connection, table, [key], values)
    back = [row for at, (_, row) in wanted.items() if row is not None and now[at] is None]
    _insert_images(connection, table, back)
    if images(connection, table, keys) != {at: row for at, (_, row) in wanted.items()}:
        raise SqlRefused(f"rows of {table.name!r} could not be restored")


def refuse_followers(
    connection: sa.Connection,
    table: Table,
    keys: Sequence[Row],
    *,
    deleting: bool = False,
    updating: Iterable[str] = (),
) -> None:
    """Refuse a change that foreign keys would carry on to rows without an image.

    Raises:
        SqlRefused: names them.
    """
    changed = set(updating)
    for reference in table.references:
        carried = deleting and reference.on_delete
        carried = carried or (reference.on_update and bool(changed & set(reference.referred)))
        if carried and keys and _follows(connection, table, keys, reference):
            raise SqlRefused(
                f"rows of {reference.table!r} would change with these of {table.name!r}, by a "
                f"foreign key's own action: change those first"
            )


def _follows(
    connection: sa.Connection, table: Table, keys: Sequence[Row], reference: Reference
) -> bool:
    parent = table.clause.alias("parent")
    columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in reference.columns]
    child = sa.table(reference.table, *columns)
    pairs = zip(reference.columns, reference.referred, strict=True)
    same = sa.and_(*(child.c[mine] == parent.c[its] for mine, its in pairs))
    for some in _portions(keys):
        these = sa.or_(
            *(sa.and_(*(parent.c[name] == _bound(key[name]) for name in table.key)) for key in some)
        )
        found = sa.select(sa.literal(1)).select_from(child.join(parent, same)).where(these)
        if connection.execute(found.limit(1)).first() is not None:
            return True
    return False


def _insert_images(connection: sa.Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert whole rows, including keys from the database."""
    if not rows:
        return
    names = [name for name, column in table.columns.items() if not column.generated]
    quoted = connection.dialect.identifier_preparer.quote
    # One statement for all, because they may refer to each other. The identifiers are the schema's
    # own.
    parameters = {f"v{i}_{j}": row[n] for i, row in enumerate(rows) for j, n in enumerate(names)}
    places = ", ".join(
        "(" + ", ".join(f":v{i}_{j}" for j in range(len(names))) + ")" for i in range(len(rows))
    )
    given = "" if table.sqlite else "OVERRIDING SYSTEM VALUE "
    into = f"{quoted(table.name)} ({', '.join(map(quoted, names))})".replace(":", "\\:")
    verb = "INSERT OR ABORT" if table.sqlite else "INSERT"
    connection.execute(sa.text(f"{verb} INTO {into} {given}VALUES {places}"), parameters)


def _portions(keys: Iterable[Row]) -> Iterator[list[Row]]:
    rest = iter(keys)
    while some := list(islice(rest, _AT_ONCE)):
        yield some


def _any(table: Table, keys: Iterable[Row]) -> sa.ColumnElement[bool]:
    return sa.or_(*(equal(table, {name: key[name] for name in table.key}) for key in keys))


def equal(table: Table, values: Row) -> sa.ColumnElement[bool]:
    """Return the condition that a row holds these values."""
    same = (
        table.clause.c[name].is_(None) if value is None else table.clause.c[name] == _bound(value)
        for name, value in values.items()
    )
    return sa.and_(sa.true(), *same)


def _bound(value: Any) -> sa.BindParameter[Any]:
    """Return a value without a type, which the database gives the column's type."""
    return sa.bindparam(None, value, type_=sa.types.NullType(), unique=True)


def _all_of(count: int, keys: Sequence[Row], table: Table) -> None:
    if count != len(keys):
        raise SqlRefused(f"{count} of {len(keys)} rows of {table.name!r} could be changed")
