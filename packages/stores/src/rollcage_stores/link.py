"""A connection to a PostgreSQL server, which is given up when the server falls silent.

It uses libpq directly: statements are sent without waiting, each with a `Sync` of its own, so each
is a transaction that the server completes even if this process is killed after it.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from rollcage.errors import StoreError

from rollcage_stores.database import Database

__all__ = ["Link", "LinkLost"]

_SOON: Final = ("starting up", "shutting down", "recovery", "too many", "reserved", "slots")
_PASSING: Final = ("08", "57P", "53300", "25006")
"""Passing failures, after which the statement is tried again: a server that shuts down, has no free
connection, or is still a standby; and a broken connection.
"""

_OWN: Final = "SELECT pg_backend_pid()"
_BEGIN: Final = """SELECT pg_backend_pid(), set_config('search_path', $1, false),
set_config('client_encoding', 'UTF8', false), set_config('client_min_messages', 'warning', false),
set_config('tcp_keepalives_idle', '4', false), set_config('tcp_keepalives_interval', '4', false),
set_config('tcp_keepalives_count', '2', false)"""  # the server drops a worker that is cut off
_OLDEST: Final = 140000
Value = str | bytes | int | None


class LinkLost(Exception):
    """The connection broke, or can't be made: the fate of sent statements is unknown."""


class Link:
    """A connection for one thread at a time.

    Raises:
        LinkLost: the server can't be reached now.
        StoreError: the server refuses, is too old, or is behind a pooler that changes connections.
    """

    def __init__(self, database: Database, name: str) -> None:
        self.database = database
        self._pipelined = False
        self._db = _connected(database, name)
        self._pg = self._db.pgconn
        self._pg.nonblocking = 1
        try:
            version = self._pg.server_version
            if version < _OLDEST:
                raise StoreError(
                    f"the store {database.url} is on PostgreSQL {version // 10000}; it needs 14 or "
                    f"newer"
                )
            ((process, *_),) = self.ask(_BEGIN, database.schema)
            self.pid = self._checked_pooler(_number(process))
        except BaseException:
            self.close()
            raise

    def ask(self, text: str, *values: Value) -> list[tuple[bytes | None, ...]]:
        """Return the rows of a statement: each value in PostgreSQL's binary form.

        Raises:
            LinkLost: the connection broke: whether the statement was executed is unknown.
            psycopg.Error: the server refuses the statement.
        """
        rows: list[tuple[bytes | None, ...]] = []
        given, formats = _parameters(values)
        with _broken(self):
            self._pg.send_query_params(text.encode(), given, None, formats, pq.Format.BINARY)
            while (result := self._result()) is not None:
                _check(result)
                if result.status == pq.ExecStatus.TUPLES_OK:
                    rows += [
                        tuple(result.get_value(row, column) for column in range(result.nfields))
                        for row in range(result.ntuples)
                    ]
        return rows

    def pipeline(self, statement: str) -> None:
        """Prepare a statement for `send`; its answers come by `answer`."""
        with _broken(self):
            self._pg.send_prepare(b"it", statement.encode())
            while (result := self._result()) is not None:
                _check(result)
            self._pg.enter_pipeline_mode()
        self._pipelined = True

    def end_pipeline(self) -> None:
        """Allow `ask` again, after all answers have come."""
        with _broken(self):
            self._pg.exit_pipeline_mode()
        self._pipelined = False

    def send(self, *values: Value) -> None:
        """Send the statement, without waiting."""
        given, formats = _parameters(values)
        with _broken(self):
            self._pg.send_query_prepared(b"it", given, formats, pq.Format.BINARY)
            self._pg.pipeline_sync()
            self._pg.flush()

    def answer(self) -> list[bytes | None] | None:
        """Return the row of the next statement; None if it returned none.

        Raises:
            LinkLost: the connection broke: the fate of the statement is unknown.
            psycopg.Error: the server refused the statement.
        """
        found: list[bytes | None] | None = None
        with _broken(self):
            while True:
                result = self._result()
                if result is None:
                    continue  # between the statement and its Sync
                if result.status == pq.ExecStatus.PIPELINE_SYNC:
                    return found
                _check(result)
                if result.ntuples:
                    found = [result.get_value(0, column) for column in range(result.nfields)]

    def close(self) -> None:
        """Close the connection; the server still executes sent statements."""
        with contextlib.suppress(psycopg.Error):
            self._db.close()

    def _result(self) -> Any:
        pg = self._pg
        while pg.flush():
            self._ready(select.POLLIN | select.POLLOUT)
            pg.consume_input()
        while pg.is_busy():
            self._ready(select.POLLIN)
            pg.consume_input()
        return pg.get_result()

    def _ready(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._pg.socket, events)
        if not poll.poll(self.database.silence * 1000):
            raise LinkLost(f"no answer within {self.database.silence:g} seconds")

    def _checked_pooler(self, process: int) -> int:
        """Return the number of the server's process.

        A direct client knows that number. A pooler gives the connection that was used last to the
        next transaction, also to another client's. A pooler that changes connections between
        transactions is refused, because locks don't work through it.
        """
        if process == self._pg.backend_pid:
            return process
        mine = {process, self._process()}
        other = _connected(self.database, "rollcage")
        try:
            with other.transaction():
                row: Any = other.execute(_OWN).fetchone()
                mine.add(self._process())
        except psycopg.OperationalError as error:
            raise LinkLost(self.database.describe(error)) from None
        finally:
            other.close()
        if row[0] in mine or len(mine) > 1:
            raise StoreError(
                f"the store {self.database.url} is behind a pooler in transaction mode, where no "
                f"lock outlives a transaction: name the database itself, or a pool in session mode "
                f"(PgBouncer: pool_mode = session)"
            )
        return process

    def _process(self) -> int:
        return _number(self.ask(_OWN)[0][0])


def _number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", signed=True)


class _broken:  # noqa: N801 - it is used as a function; a generator for each line costs more
    """Give up a connection that breaks within a `with` block, and raise `LinkLost`."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, StoreError):
            return
        if isinstance(error, psycopg.Error) and error.sqlstate:
            return  # the server answered
        self._link.close()
        if isinstance(error, psycopg.Error | OSError):
            raise LinkLost(self._link.database.describe(error)) from None


def _connected(database: Database, name: str) -> psycopg.Connection[Any]:
    try:
        own = conninfo_to_dict(database.conninfo)
        usual: dict[str, Any] = {
            "connect_timeout": 5,
            "keepalives_idle": 3,
            "keepalives_interval": 3,
            "keepalives_count": 2,
            "tcp_user_timeout": round(database.silence * 1000),
        }
        options = {key: value for key, value in usual.items() if key not in own}
        return psycopg.Connection.connect(
            database.conninfo, autocommit=True, application_name=name, **options
        )
    except psycopg.OperationalError as error:
        said = str(error)
        if "FATAL" in said and not any(each in said for each in _SOON):
            raise database.failed(error) from None
        raise LinkLost(database.describe(error)) from None
    except psycopg.Error as error:  # no such URL
        raise database.failed(error) from None


def _parameters(
    values: Sequence[Value],
) -> tuple[list[bytes | None], list[pq.Format]]:
    """Pass bytes unchanged, other values as text."""
    given = [value if isinstance(value, bytes | None) else str(value).encode() for value in values]
    return given, [pq.Format.BINARY if isinstance(v, bytes) else pq.Format.TEXT for v in values]


def _check(result: Any) -> None:
    """Raise the server's error for a refused statement."""
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    said = result.error_message.decode("utf-8", "replace").strip()
    if not state or state.startswith(_PASSING):
        raise LinkLost(said or "the connection broke")
    raise psycopg.errors.lookup(state)(said)
