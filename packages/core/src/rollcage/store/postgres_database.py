"""The database of a PostgreSQL store: where it is, its connections, and its schema.

Each store has a schema of its own (`rollcage`, or what `?schema=` says), made when something is
first written. What reads, and what writes documents, borrows a connection here; the runs that this
process has locked are written through another one, see `postgres_committer`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import re
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.waiting import Ready, Wait

from rollcage.errors import StoreError, StoreInvalid, StoreReadOnly
from rollcage.store.jobs import without_password

__all__ = ["Address", "Connection", "Database", "Server", "failed", "lock_key", "parse", "said"]

T = TypeVar("T")

_OWN: Final = {"store_timeout": 30.0, "silence_timeout": 10.0}  # seconds; parameters of a URL
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
_MAY_NOT: Final = ("25006", "42501")  # a transaction that only reads; a right that is missing
_log: Final = logging.getLogger("rollcage")
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_SOON: Final = ("starting up", "shutting down", "recovery", "too many", "reserved", "slots")
_EVENTS: Final = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_left: Final[list[object]] = []  # the parent's, in a forked child: never closed there


# --- where it is ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """Which database is meant.

    Attributes:
        conninfo: what libpq is given; the only place where a password is.
        url: what the store is called, without a password.
        schema: where its tables are.
        timeout: how long the database may be down before runs halt (seconds).
        silence: after how long either side gives up a connection that says nothing (seconds).
        secrets: what is taken out of what libpq says.
    """

    conninfo: str = dataclasses.field(repr=False)
    url: str
    schema: str
    timeout: float
    silence: float
    secrets: tuple[str, ...] = dataclasses.field(repr=False)


def parse(url: str, patience: float | None = None) -> Address:
    """Take apart a URL, as libpq knows it, with parameters of our own beside.

    Args:
        url: the URL.
        patience: seconds for which the database may be down or silent, where that is not in it.

    Raises:
        StoreError: it has another form.
    """
    where, _, query = url.partition("://")[2].partition("?")
    host, slash, path = where.partition("/")
    who, at, host = host.rpartition("@")
    password = who.partition(":")[2]
    secrets = [password]
    own: dict[str, str] = {}
    given: list[str] = []
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name == "schema" or name in _OWN:
            own[name] = unquote(value)
            continue
        given.append(part)
        if name in ("password", "sslpassword"):
            secrets.append(value)
    called = without_password(f"postgresql://{url.partition('://')[2]}")
    schema = own.get("schema", "rollcage")
    if _SCHEMA.fullmatch(schema) is None or schema.startswith("pg_"):
        raise StoreInvalid(
            f"{called}: {schema!r} can't be the schema of a store: use up to 40 lower-case letters,"
            f" digits and underscores"
        )
    timeout, silence = (
        _seconds(called, name, own.get(name), patience or usual) for name, usual in _OWN.items()
    )
    conninfo = f"postgresql://{who}{at}{host}{slash}{path}{'?' * bool(given)}{'&'.join(given)}"
    hidden = {text for each in secrets for text in (each, unquote(each)) if text}
    longest_first = tuple(sorted(hidden, key=len, reverse=True))
    return Address(conninfo, called, schema, timeout, silence, longest_first)


def _seconds(url: str, name: str, given: str | None, usual: float) -> float:
    if given is None:
        return usual
    with contextlib.suppress(ValueError):
        seconds = float(given)
        if 0 < seconds < math.inf:
            return seconds
    raise StoreInvalid(f"{url}: {name}={given!r} is no number of seconds")


def lock_key(schema: str, what: str) -> int:
    """The advisory lock that stands for something of a store."""
    digest = sha256(f"rollcage\0{schema}\0{what}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


# --- connections ---------------------------------------------------------------------------------


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is given up where the server says nothing for `silent` seconds.

    Statements are written as for SQLite: `?` stands for a parameter.
    """

    silent: float = math.inf

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:  # noqa: D102
        return super().execute(query.replace("?", "%s") if params else query, params, **options)

    def wait(  # noqa: D102 - psycopg's own
        self,
        gen: Any,
        interval: float = 0,  # noqa: ARG002
        timeout: float | None = None,  # noqa: ARG002
    ) -> Any:
        try:
            wanted = next(gen)
            while True:
                events = self._ready(_EVENTS[wanted])
                ready = Ready.W if events & select.POLLOUT else 0
                wanted = gen.send(ready | Ready.R if events & ~select.POLLOUT else ready)
        except StopIteration as stop:
            return stop.value

    def answer(self) -> psycopg.pq.abc.PGresult | None:
        """What the server says to one statement. Raises psycopg.OperationalError."""
        result = None
        while (more := self.next_result()) is not None:
            result = more
        self._pass_on()
        return result

    def next_result(self) -> psycopg.pq.abc.PGresult | None:
        """The next part of what the server says. Raises psycopg.OperationalError."""
        while self.pgconn.is_busy():
            if self.pgconn.flush():
                self._ready(select.POLLIN | select.POLLOUT)
            else:
                self._ready(select.POLLIN)
            self.pgconn.consume_input()
        return self.pgconn.get_result()

    def hear(self) -> None:
        """Read what nobody has asked for: a notification. Raises psycopg.OperationalError."""
        self.pgconn.consume_input()
        self._pass_on()

    def _pass_on(self) -> None:
        while (said := self.pgconn.notifies()) is not None:
            if self.pgconn.notify_handler is not None:
                self.pgconn.notify_handler(said)

    def _ready(self, events: int) -> int:
        """Wait until the connection is; what it is ready for."""
        poll = select.poll()
        poll.register(self.pgconn.socket, events)
        found = poll.poll(None if self.silent == math.inf else self.silent * 1000)
        if not found:
            self.close()
            raise psycopg.OperationalError(f"no answer within {self.silent:g} seconds")
        return found[0][1]

    @property
    def is_fresh(self) -> bool:
        """Whether it can be used again: nobody has closed it, and no answer is left in it."""
        if self.closed or self.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            return False
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not poll.poll(0)


def _close(connections: list[Connection]) -> None:
    """Close what nobody uses any more: its database is gone, or the process is at its end."""
    while connections:
        connections.pop().close()


def _leave_to_parent() -> None:
    """In a forked child: what the parent has open stays the parent's."""
    for database in list(_databases):
        database.forget()


os.register_at_fork(after_in_child=_leave_to_parent)


class Server:
    """Where connections come from."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._is_direct = False

    def connect(self, name: str) -> Connection:
        """A new connection, for one statement after the other.

        Raises:
            psycopg.OperationalError: it can't be reached now.
            StoreError: it refuses, is too old, or is behind a pooler that changes connections.
        """
        try:
            own = conninfo_to_dict(self.address.conninfo)
            usual = {
                "connect_timeout": 5,
                "keepalives_idle": 3,
                "keepalives_interval": 3,
                "keepalives_count": 2,
                "tcp_user_timeout": round(self.address.silence * 1000),
            }
            options: dict[str, Any] = {key: usual[key] for key in usual if key not in own}
            connection = Connection.connect(
                self.address.conninfo, autocommit=True, application_name=name, **options
            )
        except psycopg.OperationalError as error:
            said = str(error)
            if "FATAL" in said and not any(each in said for each in _SOON):
                raise failed(self.address, error) from None
            raise
        except psycopg.Error as error:  # no such URL
            raise failed(self.address, error) from None
        try:
            connection.silent = max(self.address.silence, self.address.timeout)
            if connection.info.server_version < 140000:
                version = connection.info.server_version // 10000
                raise StoreError(
                    f"the store {self.address.url} is on PostgreSQL {version}; it needs 14 or "
                    f"newer, which ends a session that fell silent"
                )
            connection.execute(
                f"SET search_path = {self.address.schema}; SET client_min_messages = warning;"
                f" SET idle_in_transaction_session_timeout = '{self.address.silence}s'"
            )
            if not self._is_direct:
                self._check_pooler(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_pooler(self, connection: Connection) -> None:
        """Refuse a pooler that gives each transaction another connection: it has no locks.

        Whoever talks to the server itself knows the number of its process. Behind a pooler, what
        was used last is free, and goes to the next transaction: of another client, too.
        """
        own = "SELECT pg_backend_pid()"
        if connection.execute(own).fetchone()[0] != connection.pgconn.backend_pid:
            with Connection.connect(self.address.conninfo, autocommit=True) as other:
                mine = [connection.execute(own).fetchone()[0]]
                with other.transaction():
                    others = other.execute(own).fetchone()[0]
                    mine.append(connection.execute(own).fetchone()[0])
            if others in mine or len(set(mine)) > 1:
                raise StoreError(
                    f"the store {self.address.url} is behind a pooler in transaction mode, where "
                    f"no lock outlives a transaction: name the database itself, or a pool in "
                    f"session mode (PgBouncer: pool_mode = session)"
                )
        self._is_direct = True

    def waited_for(
        self, connect: Callable[[], T], *, stopped: Callable[[], bool] = lambda: False
    ) -> T:
        """What `connect` gives, once the database can be reached.

        Raises:
            StoreError: it can't be for as long as the address says.
        """
        deadline = time.monotonic() + self.address.timeout
        pause = 0.05
        while True:
            try:
                return connect()
            except psycopg.OperationalError as error:
                left = deadline - time.monotonic()
                if left <= 0 or stopped():
                    raise failed(self.address, error) from None
                if pause == 0.05:
                    _log.warning(
                        "%s; trying for another %.0f seconds", failed(self.address, error), left
                    )
            time.sleep(min(pause, max(left, 0)))
            pause = min(2 * pause, 1)


class Database:
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
            StoreError: nobody can tell.
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
        """What was committed is on the disk, as far as the database is told to wait for that."""

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
            if error.sqlstate not in _MAY_NOT or not self._look(connection):
                raise
            self._is_there = True
        finally:
            if not connection.closed:
                connection.execute("SELECT pg_advisory_unlock(?)", key)


def failed(address: Address, error: psycopg.Error) -> StoreError:
    """The error that says what the database refused; its own type where nothing may be written."""
    kind = StoreReadOnly if error.sqlstate in _MAY_NOT else StoreError
    return kind(f"the store {address.url} can't be used: {said(address, error)}")


def said(address: Address, error: psycopg.Error | OSError) -> str:
    """What PostgreSQL says, without a password."""
    text = " ".join(str(error).split())
    for secret in address.secrets:
        text = text.replace(secret, "***")
    return text or type(error).__name__
