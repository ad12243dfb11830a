"""The tables of a SQLite store: how they are made, checked, and brought up from older versions."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from rollcage.errors import StoreError, StoreInvalid
from rollcage.store.layout import APPLICATION

__all__ = ["bring_up", "check_tables", "make_tables"]

VERSION: Final = 3
_SCHEMA: Final = """
CREATE TABLE kept (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE runs (place INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL, mode TEXT NOT NULL, source TEXT, time INTEGER NOT NULL, input TEXT,
  status TEXT, count INTEGER, head TEXT) STRICT;
CREATE INDEX runs_by_name ON runs (name, input);
CREATE INDEX runs_by_source ON runs (source);
CREATE INDEX runs_by_status ON runs (status);
CREATE TABLE lines (place INTEGER, number INTEGER, line BLOB NOT NULL,
  PRIMARY KEY (place, number)) STRICT, WITHOUT ROWID;
CREATE TABLE orders (place INTEGER PRIMARY KEY, run TEXT NOT NULL, said_by TEXT NOT NULL,
  reason TEXT NOT NULL, time INTEGER NOT NULL, kind TEXT NOT NULL DEFAULT 'stop') STRICT;
CREATE TABLE documents (kind TEXT, key TEXT, data BLOB NOT NULL,
  PRIMARY KEY (kind, key)) STRICT, WITHOUT ROWID;
CREATE TABLE logs (name TEXT, number INTEGER, line BLOB NOT NULL,
  PRIMARY KEY (name, number)) STRICT, WITHOUT ROWID;
CREATE TABLE heads (name TEXT PRIMARY KEY, count INTEGER NOT NULL, head TEXT NOT NULL) STRICT;
CREATE TABLE blobs (digest TEXT PRIMARY KEY, data BLOB NOT NULL) STRICT;
"""
_KIND: Final = ", kind TEXT NOT NULL DEFAULT 'stop'"  # of an order; the first version has none
_BY_STATUS: Final = "CREATE INDEX runs_by_status ON runs (status)"  # since the third


def check_tables(connection: sqlite3.Connection, path: Path, url: str) -> None:
    """Refuse a file that is another program's, of another version, or that was tampered with.

    A trigger or a view in it would act in our name.

    Raises:
        StoreInvalid: it is another program's.
        StoreError: it is of another version, or its tables are not those of Rollcage.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION:
        raise StoreInvalid(f"{path} is not a Rollcage store; choose another file")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if not 1 <= version <= VERSION:
        raise StoreError(
            f"the store {url} has the schema {version}, and this Rollcage knows "
            f"{VERSION}: use the Rollcage that wrote it, or a newer one"
        )
    own = (  # the heart's tables are beside them
        "SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        " AND tbl_name NOT LIKE 'log\\_%' ESCAPE '\\'"
    )
    if {row[0] for row in connection.execute(own)} != set(_statements(version)):
        raise StoreError(
            f"the tables of {url} are not those that Rollcage made: somebody changed "
            f"them; restore the file from a backup"
        )


def _statements(version: int = VERSION) -> list[str]:
    """What makes the tables of a version."""
    schema = _SCHEMA if version > 1 else _SCHEMA.replace(_KIND, "")
    statements = [each.strip() for each in schema.split(";") if each.strip()]
    return [each for each in statements if version > 2 or each != _BY_STATUS]


def bring_up(connection: sqlite3.Connection) -> None:
    """Bring a store of an older version to this one, its orders with it."""
    if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version < 2:
            given = connection.execute("SELECT * FROM orders").fetchall()
            connection.execute("DROP TABLE orders")  # to alter it would leave another text of it
            connection.execute(next(each for each in _statements() if "TABLE orders" in each))
            add = "INSERT INTO orders (place, run, said_by, reason, time) VALUES (?, ?, ?, ?, ?)"
            connection.executemany(add, given)
        if version < 3:
            connection.execute(_BY_STATUS)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _is_made(connection: sqlite3.Connection) -> bool:
    """Whether whoever made the file came to make its tables; the heart makes its own only."""
    names = {row[0] for row in connection.execute("SELECT tbl_name FROM sqlite_schema")}
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    heart = {name for name in names if name.startswith("log_")}
    return bool(names - heart or (application and not heart))


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables, unless they are there."""
    if _is_made(connection):
        return
    connection.execute("BEGIN IMMEDIATE")  # before it has a log: the header says at once what it is
    try:
        if not _is_made(connection):  # else another process was first
            for statement in _statements():
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
