"""Transactions of the two dialects, limited by the engine's own means.

SQLite is restricted by `PRAGMA query_only`, an authorizer and a progress handler; PostgreSQL by a
read-only transaction, `statement_timeout` and prepared statements (which hold one statement each).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Generator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import exc, pool

from rollcage_toolbox.errors import ToolboxError
from rollcage_toolbox.store_files import is_database, is_store, is_store_file

__all__ = [
    "Dialect", "Postgres", "Rows", "SqlFailed", "SqlRefused", "Sqlite", "dialect_of", "in_sqlite",
    "opened", "touched_by",
]  # fmt: skip

_STEPS: Final = 10_000  # of SQLite's virtual machine, between two looks at the clock


class SqlRefused(ToolboxError):
    """A statement that these tools don't carry out; nothing was changed."""

    code = "sql_refused"


class SqlFailed(ToolboxError):
    """The database refused, or could not carry out, a statement; nothing was changed."""

    code = "sql_failed"


class Rows(NamedTuple):
    """The result of a statement.

    Attributes:
        columns: their names, in order; empty if it returns no rows.
        rows: at most as many as requested.
        more: whether there were more.
        changed: how many rows it changed, as the database counts them; -1 without a count.
    """

    columns: list[str]
    rows: list[list[Any]]
    more: bool
    changed: int


class Dialect(Protocol):
    """The differences between the databases."""

    def reading(self, seconds: float) -> contextlib.AbstractContextManager[sa.Connection]:
        """Give a transaction in which the engine itself refuses to write; roll it back."""
        ...

    def writing(self, seconds: float) -> contextlib.AbstractContextManager[sa.Connection]:
        """Give a transaction that is committed at its end, and rolled back by an exception."""
        ...

    def run(
        self,
        connection: sa.Connection,
        sql: str,
        parameters: Mapping[str, Any],
        *,
        seconds: float,
        limit: int,
        read: bool,
    ) -> Rows:
        """Run one statement of the caller, with `:name` for its parameters."""
        ...

    def defer_constraints(self, connection: sa.Connection) -> None:
        """Check foreign keys at the end of the transaction, if possible."""
        ...


def opened(url: str | sa.URL, seconds: float) -> sa.Engine:
    """Return an engine of our own, for a file that exists or a server.

    Raises:
        ValueError: a database that can't be restricted here.
    """
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return sa.create_engine(parsed, pool_pre_ping=True)
    if not parsed.database or parsed.database == ":memory:" or "mode=memory" in parsed.database:
        raise ValueError("a database in memory is gone with its process: nothing could be undone")
    place = Path(parsed.database).absolute()
    _check_no_store(place)

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(place))}?mode=rw", uri=True, timeout=seconds, check_same_thread=False
        )
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    # A connection each: none is left open, and none can be in another's transaction.
    return sa.create_engine(parsed, creator=connect, poolclass=pool.NullPool)


def _check_no_store(place: Path) -> None:
    """Refuse a file of a store: a writer of it could forge approvals.

    Raises:
        ValueError: the file belongs to a store.
    """
    real = Path(os.path.realpath(place))
    if is_database(None, str(real)):
        raise ValueError(f"{place} is Rollcage's own store: no tool touches that")
    for above in real.parents:
        if is_store_file(real.relative_to(above).parts[0]) and is_store(None, str(above)):
            raise ValueError(f"{place} is in Rollcage's own store ({above}): no tool touches that")


def dialect_of(engine: sa.Engine, tables: Collection[str] | None) -> Dialect:
    """Return the dialect of an engine.

    Raises:
        ValueError: an engine that can't be restricted.
    """
    if engine.dialect.name == "sqlite" and engine.dialect.driver == "pysqlite":
        return Sqlite(engine, tables)
    if engine.dialect.name == "postgresql" and engine.dialect.driver == "psycopg":
        return Postgres(engine)
    raise ValueError(
        f"{engine.dialect.name}+{engine.dialect.driver} can't be held to one statement and to "
        f"reading; what can be: sqlite+pysqlite, postgresql+psycopg"
    )


def touched_by(engine: sa.Engine) -> tuple[str, ...]:
    """Return the permissions that a connection needs.

    SQLite opens its file for writing even if it only reads, because it first recovers from the
    journal of a crash.
    """
    url = engine.url
    if engine.dialect.name == "sqlite":
        place = Path(url.database or "").absolute()
        return f"fs:read:{place}", f"fs:write:{place}"
    if not url.host or url.host.startswith("/"):
        return (f"net:unix:{url.host}" if url.host else "net:unix",)
    host = f"[{url.host}]" if ":" in url.host else url.host
    return (f"net:{host}:{url.port or 5432}",)


@contextlib.contextmanager
def _failures_named() -> Generator[None]:
    """Convert the database's own errors into ours, whose texts hold no parameters."""
    try:
        yield
    except (exc.DBAPIError, sqlite3.Error, sqlite3.Warning) as error:
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        raise SqlFailed(f"{type(cause).__name__}: {cause}".strip()) from error
    except exc.SQLAlchemyError as error:
        raise SqlFailed(f"{type(error).__name__}: {error}") from error


# --- SQLite --------------------------------------------------------------------------------------

_READS: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_NEVER: Final = frozenset(
    {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA}
    | {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT}
)
_OF_TABLES: Final = frozenset(
    {sqlite3.SQLITE_READ, sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
)
_OUTSIDE: Final = frozenset({"edit", "fts3_tokenizer", "load_extension", "readfile", "writefile"})


class Sqlite:
    """SQLite files."""

    def __init__(self, engine: sa.Engine, tables: Collection[str] | None) -> None:
        self._engine = engine
        self._tables = None if tables is None else frozenset(tables)

    @contextlib.contextmanager
    def reading(self, seconds: float) -> Generator[sa.Connection]:  # noqa: ARG002 - see opened
        """See `Dialect.reading`."""
        with self._transaction("BEGIN") as connection:
            connection.exec_driver_sql("PRAGMA query_only=ON")
            try:
                yield connection
            finally:
                connection.exec_driver_sql("ROLLBACK")
                connection.exec_driver_sql("PRAGMA query_only=OFF")

    @contextlib.contextmanager
    def writing(self, seconds: float) -> Generator[sa.Connection]:  # noqa: ARG002 - see opened
        """See `Dialect.writing`. It holds the write lock from its start."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            try:
                yield connection
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                if _driver(connection).in_transaction:
                    connection.exec_driver_sql("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Generator[sa.Connection]:
        # a store that was made since, or a link
        _check_no_store(Path(self._engine.url.database or ""))
        with _failures_named(), self._engine.connect() as plain:
            connection = plain.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql(begin)  # by hand: the driver's own comes too late
            yield connection

    @contextlib.contextmanager
    def _limited(self, connection: sa.Connection, seconds: float, *, read: bool) -> Generator[None]:
        driver = _driver(connection)
        deadline = time.monotonic() + seconds
        driver.set_authorizer(self._authorizer(read=read))
        driver.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        try:
            yield
        finally:
            driver.set_progress_handler(None, 0)
            driver.set_authorizer(None)

    def run(
        self,
        connection: sa.Connection,
        sql: str,
        parameters: Mapping[str, Any],
        *,
        seconds: float,
        limit: int,
        read: bool,
    ) -> Rows:
        """See `Dialect.run`; the driver itself takes one statement only."""
        plain = {name: in_sqlite(value) for name, value in parameters.items()}
        with self._limited(connection, seconds, read=read):
            return _rows(connection.execute(sa.text(sql), plain), limit)

    def defer_constraints(self, connection: sa.Connection) -> None:
        """See `Dialect.defer_constraints`."""
        connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")

    def _authorizer(self, *, read: bool) -> Callable[..., int]:
        tables = self._tables

        def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
            if action == sqlite3.SQLITE_FUNCTION:
                allowed = (second or "").lower() not in _OUTSIDE
            elif action in _READS:
                allowed = True
            elif tables is not None:
                allowed = action in _OF_TABLES and first in tables
                allowed = allowed and (action == sqlite3.SQLITE_READ or not read)
            else:
                allowed = action == sqlite3.SQLITE_READ if read else action not in _NEVER
            return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

        return authorize


def in_sqlite(value: Any) -> Any:
    """Return a value in SQLite's stored form; dates in SQLAlchemy's form."""
    if isinstance(value, dt.datetime):
        return value.isoformat(" ", "microseconds")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value


def _driver(connection: sa.Connection) -> Any:
    """Return the driver's own connection, of which only documented parts are used."""
    driver: Any = connection.connection.driver_connection
    return driver


def _rows(result: sa.CursorResult[Any], limit: int) -> Rows:
    if not result.returns_rows:
        return Rows([], [], more=False, changed=result.rowcount)
    found = result.fetchmany(limit + 1)
    columns = list(result.keys())
    rows = [[_shown(value) for value in row] for row in found[:limit]]
    return Rows(columns, rows, more=len(found) > limit, changed=result.rowcount)


_TOLD: Final = (
    *(str, int, float, bytes, list, dict, decimal.Decimal, uuid.UUID),
    *(dt.date, dt.datetime, dt.time, dt.timedelta, type(None)),
)


def _shown(value: Any) -> Any:
    """Return a value for any reader of a trace; a database's own types as their text."""
    if isinstance(value, memoryview):
        return bytes(cast("memoryview[int]", value))
    return value if type(value) in _TOLD else str(value)


# --- PostgreSQL ----------------------------------------------------------------------------------


class Postgres:
    """PostgreSQL servers, through psycopg."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @contextlib.contextmanager
    def reading(self, seconds: float) -> Generator[sa.Connection]:
        """See `Dialect.reading`."""
        with self._transaction(seconds) as connection:
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            yield connection
            connection.rollback()

    @contextlib.contextmanager
    def writing(self, seconds: float) -> Generator[sa.Connection]:
        """See `Dialect.writing`. Rows are locked as they are read.

        Raises:
            TimeoutError: the connection was lost while committing: the outcome is unknown.
        """
        with self._transaction(seconds) as connection:
            yield connection
            try:
                connection.commit()
            except exc.DBAPIError as error:
                if error.connection_invalidated:
                    raise TimeoutError(
                        f"the connection was lost while committing: {error}"
                    ) from error
                raise

    @contextlib.contextmanager
    def _transaction(self, seconds: float) -> Generator[sa.Connection]:
        with _failures_named(), self._engine.connect() as plain:
            connection = plain.execution_options(isolation_level="READ COMMITTED")
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(seconds * 1000)}")
            yield connection

    def run(
        self,
        connection: sa.Connection,
        sql: str,
        parameters: Mapping[str, Any],
        *,
        seconds: float,  # noqa: ARG002 - the transaction is limited as a whole
        limit: int,
        read: bool,
    ) -> Rows:
        """See `Dialect.run`."""
        if read:
            # A subquery can only be a query, and the server limits the returned rows.
            sql = f"SELECT * FROM ({sql.rstrip().removesuffix(';')}\n) AS asked LIMIT {limit + 1}"  # noqa: S608 - it takes a query; the transaction can't write
        driver = _driver(connection)
        threshold, driver.prepare_threshold = driver.prepare_threshold, 0
        try:  # prepared, it is one statement; unprepared, it may be several
            rows = _rows(connection.execute(sa.text(sql), dict(parameters)), limit)
            if driver.info.transaction_status != _IN_TRANSACTION:
                raise SqlRefused("a statement that ends its own transaction is not taken")
        finally:
            driver.prepare_threshold = threshold
        return rows

    def defer_constraints(self, connection: sa.Connection) -> None:
        """See `Dialect.defer_constraints`; only for deferrable constraints."""
        connection.exec_driver_sql("SET CONSTRAINTS ALL DEFERRED")


_IN_TRANSACTION: Final = 2  # of libpq's PGTransactionStatusType: PQTRANS_INTRANS
