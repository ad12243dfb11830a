"""The one statement that is sent all the time: it adds lines. It goes out as libpq takes it.

Every write waits for it twice. Through a cursor, it would cost the process five times as much.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import pq

from rollcage.store.postgres_database import Connection

__all__ = ["Ends", "add_lines", "prepare"]

# All of them or none: where the row that they stand behind is gone, or a number is taken, it is
# found out run by run. Orders to stop that were given before this statement are seen by it.
_ADD: Final = b"""
WITH new AS (
  INSERT INTO lines (place, number, line)
  SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bytea[])
  WHERE cardinality($4) = (SELECT count(*) FROM lines JOIN unnest($4::bigint[], $5::integer[])
    AS own (place, number) USING (place, number))
  RETURNING place)
SELECT (SELECT count(*) FROM new), EXISTS (SELECT FROM orders WHERE place = ANY ($4))
"""
_NAME: Final = b"add_lines"
_INT8, _INT4, _BYTEA = 20, 23, 17  # of PostgreSQL's types, fixed for ever
_INT8S, _INT4S, _BYTEAS = 1016, 1007, 1001
_BINARY: Final = (pq.Format.BINARY,) * 5
_head: Final = struct.Struct("!iiIii").pack  # of an array: dimensions, NULLs, type, size, first
_size: Final = struct.Struct("!i").pack
_int8: Final = struct.Struct("!iq").pack  # with its size before it
_int4: Final = struct.Struct("!ii").pack

Ends = Sequence[tuple[int, int]]
"""By the places of runs, the numbers of the rows after which lines are added."""


# Each row is found by its key, however few there were when the server made its plan: that plan is
# kept, and made once. One that reads the whole table would cost more with every line.
_PLANS: Final = (
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;"
    " SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
)


def prepare(connection: Connection) -> None:
    """Have the server know the statement, and how to find rows. Raises psycopg.Error."""
    connection.execute(_PLANS)
    types = (_INT8S, _INT4S, _BYTEAS, _INT8S, _INT4S)
    _checked(connection, connection.pgconn.prepare(_NAME, _ADD, types))


def add_lines(
    connection: Connection, lines: Sequence[tuple[int, int, bytes]], ends: Ends
) -> tuple[int, bool]:
    """Add lines: place of the run, number of the row, and the line.

    Returns:
        How many were added, all or none; and whether any of the runs was told to stop.

    Raises:
        psycopg.Error: it was refused (a UniqueViolation: a number is taken), or never answered.
    """
    count, last = len(lines), len(ends)
    given = (
        b"".join((_head(1, 0, _INT8, count, 1), *(_int8(8, place) for place, _, _ in lines))),
        b"".join((_head(1, 0, _INT4, count, 1), *(_int4(4, number) for _, number, _ in lines))),
        b"".join(
            (
                _head(1, 0, _BYTEA, count, 1),
                *(part for _, _, line in lines for part in (_size(len(line)), line)),
            )
        ),
        b"".join((_head(1, 0, _INT8, last, 1), *(_int8(8, place) for place, _ in ends))),
        b"".join((_head(1, 0, _INT4, last, 1), *(_int4(4, number) for _, number in ends))),
    )
    pgconn = connection.pgconn
    pgconn.send_query_prepared(_NAME, given, _BINARY, pq.Format.BINARY)
    connection.flush()
    result = _checked(connection, connection.answer())
    added, ordered = result.get_value(0, 0), result.get_value(0, 1)
    return int.from_bytes(added or b""), ordered == b"\1"


def _checked(connection: Connection, result: pq.abc.PGresult | None) -> pq.abc.PGresult:
    """An answer that is no error. Raises psycopg.Error."""
    if result is None:
        connection.close()
        raise psycopg.OperationalError("the connection was lost")
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        said = result.error_message.decode("utf-8", "replace")
        try:
            kind = psycopg.errors.lookup(state)
        except KeyError:
            kind = psycopg.OperationalError
        raise kind(said)
    return result
