"""The database of a PostgreSQL store: its schema, and the connections that it lends.

Each store has a schema of its own (`rollcage`, or what `?schema=` says), made when something is
first written. What reads, and what writes documents, borrows a connection here; the runs that this
process has locked are written through another one, see `postgres_committer`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Final

import psycopg

from rollcage.errors import StoreError
from rollcage.store.postgres_address import MAY_NOT, Address, failed, lock_key
from rollcage.store.postgres_connection import Connection, Server

__all__ = ["PostgresDatabase"]

_IDLE: Final = 4  # connections that are kept for whoever asks next
_MIGRATIONS: Final = (
    """
CREATE TABLE kept (name text PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE runs (place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run text NOT NULL UNIQUE,
  name text NOT NULL, mode text NOT NULL, source text, time bigint NOT NULL, input text,
  status text, count integer, head text);
CREATE INDEX runs_by_name ON runs (name, input, place);
CREATE INDEX runs_by_source ON runs (source);
CREATE TABLE lines (place bigint, number integer, line bytea NOT NULL,
  fence boolean NOT NULL DEFAULT false, PRIMARY KEY (place, number));
CREATE INDEX fences ON lines (place) WHERE fence;
CREATE TABLE orders (place bigint PRIMARY KEY, run text NOT NULL, said_by text NOT NULL,
  reason text NOT NULL, time bigint NOT NULL);
CREATE TABLE documents (kind text COLLATE "C", key text COLLATE "C", data bytea NOT NULL,
  PRIMARY KEY (kind, key));
CREATE TABLE logs (name text, number integer, line bytea NOT NULL, PRIMARY KEY (name, number));
CREATE TABLE heads (name text PRIMARY KEY, count integer NOT NULL, head text NOT NULL);
CREATE TABLE blobs (digest text PRIMARY KEY, data bytea NOT NULL);
""",
    "ALTER TABLE orders ADD COLUMN kind text NOT NULL DEFAULT 'stop'",
    "CREATE INDEX runs_by_status ON runs (status, place)",
)
"""What makes the schema of each version out of the one before; the first makes the tables."""

_NOW: Final = (
    "INSERT INTO kept VALUES ('version', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_databases: weakref.WeakSet[PostgresDatabase] = weakref.WeakSet()
_left: Final[list[object]] = []  # the parent's, in a forked child: never closed there


def _close(connections: list[Connection]) -> None:
    """Close what nobody uses any more: its database is gone, or the process is at its end."""
    while connections:
        connections.pop().close()


def _leave_to_parent() -> None:
    """In a forked child: what the parent has open stays the parent's."""
    for database in list(_databases):
        database.forget()


os.register_at_fork(after_in_child=_leave_to_parent)


class PostgresDatabase:
    """A schema of a PostgreSQL database, made when something is first written to it.

    Connections are lent and returned, and used by one thread at a time.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.url = address.url
        self.server = Server(address)
        self._guard = threading.Lock()
        self._idle: list[Connection] = []
        self._is_there = False
        weakref.finalize(self, _close, self._idle)
        _databases.add(self)

    @property
    def is_there(self) -> bool:
        """Whether the store was made, in whichever version; nothing is made by asking.

        Raises:
            StoreError: it can't be determined.
        """
        if self._is_there:
            return True
        with self._lent() as connection:
            return self._look(connection) > 0

    @contextlib.contextmanager
    def using(self) -> Iterator[Connection]:
        """A connection, given back afterwards; the schema is made if need be.

        Raises:
            StoreError: the database can't be reached or used, or has no store of this version.
        """
        with self._lent() as connection:
            if not self._is_there:
                self._make(connection)
            yield connection

    @contextlib.contextmanager
    def changing(self, alone: str = "") -> Iterator[Connection]:
        """As `using`, in a transaction; nobody else writes the table that it has `alone`."""
        with self.using() as connection, connection.transaction():
            if alone:
                connection.execute(f"LOCK TABLE {alone} IN EXCLUSIVE MODE")
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """As `using`, where all that is read is of one moment."""
        with self.using() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield connection
            finally:
                if not connection.closed:
                    connection.execute("ROLLBACK")

    def sync(self) -> None:
        """What was committed is on the disk, as far as the database is set up to wait for that."""

    @contextlib.contextmanager
    def _lent(self) -> Iterator[Connection]:
        connection = self._borrow()
        try:
            yield connection
        except psycopg.Error as error:
            raise failed(self.address, error) from None
        finally:
            self._give_back(connection)

    def _borrow(self) -> Connection:
        with self._guard:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_fresh:
                    return connection
                connection.close()
        return self.server.waited_for(lambda: self.server.connect(f"rollcage-{os.getpid()}"))

    def _give_back(self, connection: Connection) -> None:
        with self._guard:
            if len(self._idle) < _IDLE and connection.is_fresh:
                self._idle.append(connection)
                return
        connection.close()

    def forget(self) -> None:
        """In a forked child: leave the parent's connections alone."""
        _left.extend(self._idle)
        self._idle.clear()  # the same list stays: it is what is closed in the end
        self._guard = threading.Lock()

    # --- the schema ------------------------------------------------------------------------------

    def _look(self, connection: Connection) -> int:
        """The version of the store; 0 where it was not made."""
        there = connection.execute("SELECT to_regclass('kept')").fetchone()[0]
        if there is None:
            return 0
        row = connection.execute("SELECT value FROM kept WHERE name = 'version'").fetchone()
        version = 0 if row is None else int(row[0])
        if not 1 <= version <= len(_MIGRATIONS):
            raise StoreError(
                f"the store {self.url} has the schema {version}, and this Rollcage knows "
                f"{len(_MIGRATIONS)}: use the Rollcage that wrote it, or a newer one"
            )
        self._is_there = version == len(_MIGRATIONS)
        return version

    def _make(self, connection: Connection) -> None:
        """Make the schema, or bring it to the version of this Rollcage; one process does.

        Who may only read leaves an older one as it is, and reads that.
        """
        self._look(connection)
        if self._is_there:
            return
        schema = self.address.schema
        key = (lock_key(schema, "schema"),)
        connection.execute("SELECT pg_advisory_lock(?)", key)  # first: what it waited for, it sees
        try:
            with connection.transaction():
                version = self._look(connection)
                if not version:
                    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                for statements in _MIGRATIONS[version:]:
                    connection.execute(statements)
                connection.execute(_NOW, (b"%d" % len(_MIGRATIONS),))
            self._is_there = True
        except psycopg.Error as error:
            if error.sqlstate not in MAY_NOT or not self._look(connection):
                raise
            self._is_there = True
        finally:
            if not connection.closed:
                connection.execute("SELECT pg_advisory_unlock(?)", key)
