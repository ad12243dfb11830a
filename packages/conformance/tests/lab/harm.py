"""What is done to a store behind its back: bytes that change, and locks that get lost."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
from postgres import server
from rollcage.store import Store
from rollcage.store.postgres import PostgresStore

__all__ = ["Tamper", "in_folder", "in_postgres", "in_sqlite", "lose_locks"]

Tamper = Callable[[bytes, bytes], None]

_KEPT: Final = (("lines", "line"), ("logs", "line"), ("blobs", "data"))


def in_folder(folder: Path) -> Tamper:
    """Replaces bytes in all files of a folder."""

    def change(old: bytes, new: bytes) -> None:
        for path in folder.rglob("*"):
            if path.is_file() and old in (data := path.read_bytes()):
                path.chmod(0o600)
                path.write_bytes(data.replace(old, new))

    return change


def in_sqlite(path: Path) -> Tamper:
    """Replaces bytes in all that is kept in a file of SQLite."""

    def change(old: bytes, new: bytes) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            for table, column in _KEPT:
                for (data,) in db.execute(f"SELECT {column} FROM {table}").fetchall():  # noqa: S608
                    given = (data.replace(old, new), data)
                    db.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", given)  # noqa: S608

    return change


def in_postgres(url: str) -> Tamper:
    """Replaces bytes in all that is kept in a schema of PostgreSQL."""

    def change(old: bytes, new: bytes) -> None:
        with psycopg.connect(server(), autocommit=True) as db:
            db.execute(f"SET search_path = {url.rpartition('=')[2]}".encode())
            for table, column in _KEPT:
                for (data,) in db.execute(f"SELECT {column} FROM {table}".encode()).fetchall():  # noqa: S608
                    statement = f"UPDATE {table} SET {column} = %s WHERE {column} = %s"  # noqa: S608
                    db.execute(statement.encode(), (data.replace(old, new), data))

    return change


def lose_locks(store: Store) -> None:
    """The server lost the locks, while the connection lives."""
    assert isinstance(store, PostgresStore)
    unlock = "SELECT pg_advisory_unlock_all()"
    store._shared.committer.do(lambda db: db.execute(unlock) and None)
