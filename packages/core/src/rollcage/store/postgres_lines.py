"""The one statement that is sent all the time: it adds lines. It goes out as libpq takes it.

Through a cursor, it would cost the process five times as much. It goes out before the answers to
the ones before have come (libpq's pipeline): whoever has sent how a write ended need not wait.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import pq

from rollcage.store.postgres_connection import Connection

__all__ = ["Ends", "answer_of", "is_sent", "prepare", "send_lines", "stop_sending"]

# All of them or none: where the row that they stand behind is gone or another one, or a number is
# taken, it is found out run by run. That row may be one of a statement before that was refused, and
# a fence in its place. Orders to stop that were given before this statement are seen by it.
_ADD: Final = b"""
WITH new AS (
  INSERT INTO lines (place, number, line)
  SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bytea[])
  WHERE cardinality($4) = (SELECT count(*)
    FROM lines JOIN unnest($4::bigint[], $5::integer[], $6::bytea[]) AS own (place, number, tail)
    USING (place, number)
    WHERE substring(lines.line FROM greatest(octet_length(lines.line) - 66, 1)) = own.tail)
  RETURNING place)
SELECT (SELECT count(*) FROM new), EXISTS (SELECT FROM orders WHERE place = ANY ($4))
"""
_NAME: Final = b"add_lines"
_INT8, _INT4, _BYTEA = 20, 23, 17  # of PostgreSQL's types, fixed for ever
_INT8S, _INT4S, _BYTEAS = 1016, 1007, 1001
_TAIL: Final = 67  # bytes of a line that no other line ends with: its hash is in them
_BINARY: Final = (pq.Format.BINARY,) * 6
_head: Final = struct.Struct("!iiIii").pack  # of an array: dimensions, NULLs, type, size, first
_size: Final = struct.Struct("!i").pack
_int8: Final = struct.Struct("!iq").pack  # with its size before it
_int4: Final = struct.Struct("!ii").pack

Ends = Sequence[tuple[int, int, bytes]]
"""By the places of runs, the numbers of the rows after which lines are added, and those rows."""


# Each row is found by its key, however few there were when the server made its plan: that plan is
# kept, and made once. One that reads the whole table would cost more with every line.
_PLANS: Final = (
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;"
    " SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
)


def prepare(connection: Connection) -> None:
    """Have the server know the statement, and how to find rows. Raises psycopg.Error."""
    connection.execute(_PLANS)
    types = (_INT8S, _INT4S, _BYTEAS, _INT8S, _INT4S, _BYTEAS)
    _checked(connection, connection.pgconn.prepare(_NAME, _ADD, types))


def send_lines(connection: Connection, lines: Sequence[tuple[int, int, bytes]], ends: Ends) -> None:
    """Have lines on their way: place of the run, number of the row, and the line.

    It waits for nobody, so that `is_sent` may not be true yet. All of them are added or none.

    Raises:
        psycopg.Error: the connection broke.
    """
    given = (
        _int8s([place for place, _, _ in lines]),
        _int4s([number for _, number, _ in lines]),
        _byteas([line for _, _, line in lines]),
        _int8s([place for place, _, _ in ends]),
        _int4s([number for _, number, _ in ends]),
        _byteas([line[-_TAIL:] for _, _, line in ends]),
    )
    pgconn = connection.pgconn
    if pgconn.pipeline_status == pq.PipelineStatus.OFF:
        pgconn.enter_pipeline_mode()
    pgconn.send_query_prepared(_NAME, given, _BINARY, pq.Format.BINARY)
    pgconn.pipeline_sync()  # a transaction of its own


def is_sent(connection: Connection) -> bool:
    """Whether the system has all that was sent: a killed process loses nothing of it then.

    Raises:
        psycopg.Error: the connection broke.
    """
    return not connection.pgconn.flush()


def answer_of(connection: Connection) -> tuple[int, bool]:
    """What came of the first `send_lines` that was not asked about yet.

    Returns:
        How many lines were added, and whether any of the runs has an order to stop.

    Raises:
        psycopg.Error: it was refused (a UniqueViolation: a number is taken), or never answered.
    """
    answer = connection.answer()
    end = connection.next_result()
    if end is None or end.status != pq.ExecStatus.PIPELINE_SYNC:
        connection.close()
        raise psycopg.OperationalError("the connection was lost")
    result = _checked(connection, answer)
    added, ordered = result.get_value(0, 0), result.get_value(0, 1)
    return int.from_bytes(added or b""), ordered == b"\1"


def stop_sending(connection: Connection) -> None:
    """Have the connection take other statements: all was answered. Raises psycopg.Error."""
    if connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        connection.pgconn.exit_pipeline_mode()


def _int8s(values: Sequence[int]) -> bytes:
    return b"".join((_head(1, 0, _INT8, len(values), 1), *(_int8(8, each) for each in values)))


def _int4s(values: Sequence[int]) -> bytes:
    return b"".join((_head(1, 0, _INT4, len(values), 1), *(_int4(4, each) for each in values)))


def _byteas(values: Sequence[bytes]) -> bytes:
    parts = (part for each in values for part in (_size(len(each)), each))
    return b"".join((_head(1, 0, _BYTEA, len(values), 1), *parts))


def _checked(connection: Connection, result: pq.abc.PGresult | None) -> pq.abc.PGresult:
    """An answer that is no error. Raises psycopg.Error."""
    if result is None:
        connection.close()
        raise psycopg.OperationalError("the connection was lost")
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        text = result.error_message.decode("utf-8", "replace")
        try:
            kind = psycopg.errors.lookup(state)
        except KeyError:
            kind = psycopg.OperationalError
        raise kind(text)
    return result
