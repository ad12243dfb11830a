"""Connections to a PostgreSQL server, each of which is given up where the server falls silent."""

from __future__ import annotations

import logging
import math
import select
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.waiting import Ready, Wait

from rollcage.errors import StoreError
from rollcage.store.postgres_address import Address, failed

__all__ = ["Connection", "Server"]

T = TypeVar("T")

_log: Final = logging.getLogger("rollcage")
_SOON: Final = ("starting up", "shutting down", "recovery", "too many", "reserved", "slots")
_EVENTS: Final = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}


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
        while (notice := self.pgconn.notifies()) is not None:
            if self.pgconn.notify_handler is not None:
                self.pgconn.notify_handler(notice)

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
            message = str(error)
            if "FATAL" in message and not any(each in message for each in _SOON):
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
