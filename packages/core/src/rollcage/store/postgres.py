"""A store in a PostgreSQL database: for workers on several machines.

Its lines are those of a JSONL trace, byte for byte, one row each. Which runs are live, advisory
locks say, which end with the connection that took them: see `postgres_committer`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Generator
from typing import Any, ClassVar, Final

from rollcage.errors import StoreError
from rollcage.store.held import Held, Row
from rollcage.store.postgres_address import Address, lock_key, parse
from rollcage.store.postgres_committer import PostgresCommitter, tries
from rollcage.store.postgres_connection import Connection
from rollcage.store.postgres_database import PostgresDatabase
from rollcage.store.postgres_taking import begin, take
from rollcage.store.postgres_writer import PostgresLock, PostgresWriter
from rollcage.store.protocol import StopOrder
from rollcage.store.sql import fields_of, goes_on
from rollcage.store.sql_repair import SqlRepair
from rollcage.trace.events import seal_line
from rollcage.trace.reader import tail_of

__all__ = ["PostgresStore"]

_GRACE: Final = 1.0  # seconds for the server to see that a killed process is no more
_LIVE: Final = (
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid::bigint << 32 | objid::bigint = ?)"
)


class Shared:
    """What all stores of a process at one address share."""

    def __init__(self, address: Address) -> None:
        self.database = PostgresDatabase(address)
        self.begin()

    def begin(self) -> None:
        """Have a connection for runs of one's own; a forked child has none of its parent's."""
        self.committer = PostgresCommitter(self.database.server)
        self.opens = threading.Lock()  # of this process, one session opens
        self.opened_by: tuple[int, int] = (0, 0)  # which thread, and with which connection
        weakref.finalize(self, self.committer.stop)


_shared: weakref.WeakValueDictionary[Address, Shared] = weakref.WeakValueDictionary()
_guard = threading.Lock()


def _leave_to_parent() -> None:
    """In a forked child: the runs stay the parent's."""
    global _guard  # noqa: PLW0603 - another thread of the parent may have had it
    _guard = threading.Lock()
    for shared in list(_shared.values()):
        shared.committer.forget()
        shared.begin()


os.register_at_fork(after_in_child=_leave_to_parent)


def _at(address: Address) -> Shared:
    with _guard:
        shared = _shared.get(address)
        if shared is None:
            shared = _shared[address] = Shared(address)
        return shared


class PostgresStore(SqlRepair):
    """Runs in a schema of a PostgreSQL database; it is made when the first one begins.

    Args:
        url: as libpq knows it (`postgresql://user@host/database`); besides, `schema` says where its
            tables are, and `store_timeout` how many seconds the database may be down.
        patience: that, and for how long it may be silent, where the URL does not say so.
    """

    same: ClassVar[str] = "IS NOT DISTINCT FROM"
    lines: ClassVar[str] = (
        "(SELECT max(number) FROM lines WHERE lines.place = runs.place)"
        " - (SELECT count(*)::integer FROM lines WHERE lines.place = runs.place AND fence)"
    )
    is_line: ClassVar[str] = "AND NOT fence"
    own_place: ClassVar[str] = "OVERRIDING SYSTEM VALUE"

    def __init__(self, url: str, patience: float | None = None) -> None:
        self._shared = _at(parse(url, patience))
        super().__init__(self._shared.database)

    @property
    def _schema(self) -> str:
        return self._shared.database.address.schema

    @contextlib.contextmanager
    def opening(self) -> Generator[None]:
        with self._sql.using():  # or it can't be made, and there is nothing to lock
            pass
        shared, key = self._shared, lock_key(self._schema, "opening")

        def take(connection: Connection) -> bool:
            got: bool = connection.execute("SELECT pg_try_advisory_lock(?)", (key,)).fetchone()[0]
            return got

        def give_back(connection: Connection) -> None:
            connection.execute("SELECT pg_advisory_unlock(?)", (key,))

        with shared.opens:
            for _ in tries(float("inf")):
                if shared.committer.do(take):
                    break
            shared.opened_by = threading.get_ident(), shared.committer.epoch
            try:
                yield
            finally:
                shared.opened_by = (0, 0)
                with contextlib.suppress(StoreError):  # without the connection, it is gone, too
                    shared.committer.do(give_back)

    def live(self, run: str) -> bool:
        self._check_there(run)
        with self._sql.using() as db:
            self._place(db, run)
            row = db.execute(_LIVE, (lock_key(self._schema, run),)).fetchone()
        return bool(row[0])

    # --- locking and writing ---------------------------------------------------------------------

    def lock(self, run: str) -> PostgresLock:
        return PostgresLock(self._shared, self._shared.committer, self._taken(run))

    def _taken(self, run: str) -> Held:
        self._check_there(run)
        with self._sql.using() as db:
            place = self._place(db, run)
            self._check_pruned(db, run)
        committer = self._shared.committer
        for _ in tries(_GRACE):
            held = committer.do(
                lambda connection: take(committer.runs, connection, run, place),
                unless=lambda held: None if held is None else committer.release(held, wait=False),
            )
            if held is not None:
                return held
        raise self._in_use(run)

    def create(self, started: dict[str, Any], order: StopOrder | None = None) -> PostgresWriter:
        fields, shared = fields_of(self._begun(started)), self._shared
        with self._sql.using():
            pass
        line, head = seal_line(started, tail_of(b"").head)
        thread, opened = shared.opened_by
        epoch = opened if thread == threading.get_ident() else None
        committer, first = shared.committer, Row(1, line, head)
        durable = started.get("durability") == "disk"
        if durable:
            committer.do(committer.be_durable)
        held = committer.do(
            lambda connection: begin(
                committer.runs,
                connection,
                fields,
                first,
                order,
                lost=epoch not in (None, committer.epoch),
            ),
            unless=lambda held: committer.release(held, wait=False),
        )
        return PostgresWriter(shared, committer, held, durable=durable)

    def reopen(self, run: str) -> PostgresWriter:
        held = self._taken(run)
        try:
            with self._sql.using() as db:
                goes_on(db, held.place)
        except BaseException:
            self._shared.committer.release(held, wait=False)
            raise
        return PostgresWriter(self._shared, self._shared.committer, held, reopened=True)

    # --- stopping and pausing ---------------------------------------------------------------------

    def _notify(self, db: Any) -> None:
        db.execute(f"NOTIFY rollcage_{self._schema}")

    def _notified(self) -> None:
        self._shared.committer.read_orders()
