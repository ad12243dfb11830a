"""What is done to a store behind its back: bytes that change."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

from rollcage_conformance.stores.base import Tamper

__all__ = ["in_folder", "in_postgres", "in_sqlite"]

_KEPT: Final = (("log_lines", "line"), ("log_values", "value"))


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
    import psycopg
    from postgres import server

    def change(old: bytes, new: bytes) -> None:
        with psycopg.connect(server(), autocommit=True) as db:
            db.execute(f"SET search_path = {url.rpartition('=')[2]}".encode())
            for table, column in _KEPT:
                for (data,) in db.execute(f"SELECT {column} FROM {table}".encode()).fetchall():  # noqa: S608
                    statement = f"UPDATE {table} SET {column} = %s WHERE {column} = %s"  # noqa: S608
                    db.execute(statement.encode(), (data.replace(old, new), data))

    return change
