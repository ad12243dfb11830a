"""How a process gets the runs that it writes in a PostgreSQL store, and notes how they ended.

A run is locked by an advisory lock of the connection. A lock alone does not keep an old writer out
that has lost it without knowing. So whoever takes a run over adds a row of its own, a fence: the
next line of the old writer finds its number taken.

Each of these is a job on the connection: see `PostgresCommitter.do`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

from rollcage.errors import StoreError, TraceUnwritable
from rollcage.store.held import Held, Row
from rollcage.store.postgres_address import Address, lock_key
from rollcage.store.postgres_connection import Connection
from rollcage.store.postgres_runs import Runs
from rollcage.store.protocol import StopOrder
from rollcage.store.sql import ATTEST, BEGIN, put_order

__all__ = ["attest", "begin", "take", "try_lock"]

_FENCE: Final = (
    "INSERT INTO lines (place, number, line, fence)"
    " SELECT ?, 1 + max(number), ?, true FROM lines WHERE place = ?"
    " ON CONFLICT DO NOTHING RETURNING number"
)
_BEGIN: Final = f"""
WITH new AS ({BEGIN} ON CONFLICT (run) DO NOTHING RETURNING place),
first AS (INSERT INTO lines (place, number, line) SELECT place, 1, ? FROM new)
SELECT place FROM new
"""
_COUNT: Final = (
    "SELECT count(*), (SELECT line FROM lines WHERE place = ? AND NOT fence"
    " ORDER BY number DESC LIMIT 1) FROM lines WHERE place = ? AND NOT fence"
)
_ATTEST: Final = f"{ATTEST} AND ? = (SELECT max(number) FROM lines WHERE place = ?)"


def begin(
    runs: Runs,
    connection: Connection,
    fields: Sequence[Any],
    first: Row,
    order: StopOrder | None,
    *,
    lost: bool,
) -> Held:
    """A new run with its first line, locked, and its order, if it has one.

    Raises:
        StoreError: the locks that it was opened with are `lost`.
    """
    run: str = fields[0]
    try_lock(connection, runs.address, run)  # nobody else knows of it
    row = None if lost else connection.execute(_BEGIN, (*fields, first.line)).fetchone()
    if row is None:  # it is there where the acknowledgement of its commit was lost
        row = connection.execute("SELECT place FROM runs WHERE run = ?", (run,)).fetchone()
    if row is None:
        raise StoreError(
            f"the connection to {runs.address.url} was lost while a session opened, and "
            f"somebody else may have opened one; nothing has run: open it again"
        )
    if order is not None:
        put_order(connection, row[0], order)
    held = runs.held[row[0]] = Held(run, row[0], first, 0, order=order)
    return held


def take(runs: Runs, connection: Connection, run: str, place: int) -> Held | None:
    """Lock a run, and fence its old writer off. None where somebody else has it."""
    if place in runs.held or not try_lock(connection, runs.address, run):
        return None
    token = secrets.token_bytes(16)
    while (row := connection.execute(_FENCE, (place, token, place)).fetchone()) is None:
        pass  # an old writer that has lost its lock was faster once more
    lines, last = connection.execute(_COUNT, (place, place)).fetchone()
    head = bytes.fromhex(last[-67:-3].decode())
    held = runs.held[place] = Held(run, place, Row(row[0], token, head), row[0] - lines)
    return held


def attest(runs: Runs, connection: Connection, held: Held, status: str) -> None:
    """Note where a run ends, all of whose lines are in the store.

    Raises:
        TraceUnwritable: they are not.
    """
    number, head = held.end.number, held.end.head.hex()
    given = (status, number - held.fences, head, held.place, number, held.place)
    if not connection.execute(_ATTEST, given).rowcount:
        runs.examine(connection, held)
        raise TraceUnwritable(held.lost or f"run {held.run} is gone from {runs.address.url}")


def try_lock(connection: Connection, address: Address, run: str) -> bool:
    """Lock a run for as long as the connection lives; False where somebody else has."""
    key = lock_key(address.schema, run)
    got: bool = connection.execute("SELECT pg_try_advisory_lock(?)", (key,)).fetchone()[0]
    return got
