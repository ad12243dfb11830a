"""All runs of a PostgreSQL store that this process has locked, and what the server knows of them.

Whoever has the connection (see `PostgresCommitter`) calls this, one at a time.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from rollcage.store.held import Held, Row
from rollcage.store.postgres_address import Address, describe
from rollcage.store.postgres_connection import Connection
from rollcage.store.postgres_lines import answer_of, is_sent, send_lines, stop_sending
from rollcage.store.protocol import StopOrder
from rollcage.store.sql import ATTEST
from rollcage.store.stubs import KIND

__all__ = ["BATCH", "Runs"]

BATCH: Final = 1000  # lines of one statement

Batch = list[tuple[Held, list[Row]]]
"""What one statement adds: rows, by their runs."""

_STANDS: Final = "SELECT number, line FROM lines WHERE place = ? AND number >= ? ORDER BY number"
_ORDERS: Final = "SELECT place, run, said_by, reason, time, kind FROM orders WHERE place = ANY (?)"
_GONE: Final = (
    f"{ATTEST} AND NOT EXISTS (SELECT FROM documents WHERE kind = '{KIND}' AND key = run)"
)


class Runs:
    """The runs that are locked.

    Attributes:
        address: of their store.
        held: each of them, by its place.
        spoke: when something was last sent to the server (monotonic, s).
        has_orders: whether orders were given or lifted that were not read yet.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.held: dict[int, Held] = {}
        self.spoke = 0.0
        self.has_orders = False
        self._sent: deque[Batch] = deque()  # what was not answered yet
        self._last: dict[int, Row] = {}  # of each run: its last row among them

    @property
    def any_live(self) -> bool:
        """Whether anything can still be written to one of them."""
        return any(not held.lost for held in list(self.held.values()))

    def execute(self, connection: Connection, statement: str, given: Sequence[Any] = ()) -> Any:
        """Send a statement of any kind. Raises psycopg.Error."""
        found = connection.execute(statement, given)
        self.spoke = time.monotonic()
        return found

    def give_up(self, reason: str) -> None:
        """Nothing can be written to any of them."""
        for held in list(self.held.values()):
            if not held.lost:
                held.lose(reason)

    # --- adding ----------------------------------------------------------------------------------

    def add(self, connection: Connection) -> bool:
        """Add what is queued, or as much as goes into one statement; whether anything was.

        Raises:
            psycopg.Error: nobody knows whether it was added: the connection broke.
        """
        self.send(connection)
        return self.receive(connection)

    def send(self, connection: Connection) -> bool:
        """Have what is queued, or as much of it, on its way; whether the system has all of that.

        Raises:
            psycopg.Error: the connection broke.
        """
        batch = self._unsent()
        if batch:
            self._send(connection, batch)
        return is_sent(connection)

    def is_sent(self, held: Held) -> bool:
        """Whether all that was added to a run is on its way, or there."""
        return self._last.get(held.place, held.end).number >= held.last.number

    def receive(self, connection: Connection) -> bool:
        """Learn what came of what was sent; whether anything was.

        Raises:
            psycopg.Error: nobody knows: the connection broke.
        """
        added: list[Batch] = []
        failed: dict[int, Held] = {}
        ordered = False
        if not self._sent:
            return False
        for batch in self._sent:
            all_of_it, ordered_here = self._answered(connection, batch)
            ordered = ordered or ordered_here
            if all_of_it:
                added.append(batch)
            else:
                failed |= {held.place: held for held, _ in batch}
        stop_sending(connection)
        self.forget_sent()
        if ordered:  # first: who waits for the line of a call goes on with that
            self.read_orders(connection)
        for batch in added:
            for held, rows in batch:
                held.settle(rows)
        for held in failed.values():
            if held.queue and not held.lost:
                self._add_alone(connection, held)
        return True

    def forget_sent(self) -> None:
        """Nothing is under way: all was answered, or the connection is gone."""
        self._sent.clear()
        self._last.clear()

    def _unsent(self) -> Batch:
        left = BATCH
        batch: Batch = []
        for held in list(self.held.values()):
            if held.queue and not held.lost and left > 0:
                held.settle(())  # if an interrupt kept somebody from that
                sent = self._last.get(held.place, held.end).number - held.end.number
                rows = list(itertools.islice(held.queue, sent, sent + left))
                if rows:
                    left -= len(rows)
                    batch.append((held, rows))
        return batch

    def _send(self, connection: Connection, batch: Batch) -> None:
        new = [(held.place, row.number, row.line) for held, rows in batch for row in rows]
        ends = [(held.place, self._last.get(held.place, held.end)) for held, _ in batch]
        send_lines(connection, new, [(place, end.number, end.line) for place, end in ends])
        self._sent.append(batch)
        self._last |= {held.place: rows[-1] for held, rows in batch}
        self.spoke = time.monotonic()

    def _answered(self, connection: Connection, batch: Batch) -> tuple[bool, bool]:
        """Whether all rows were added, and whether one of the runs has an order to stop."""
        try:
            added, ordered = answer_of(connection)
        except psycopg.errors.UniqueViolation:
            return False, False
        except psycopg.Error as error:
            if connection.closed:
                raise
            for held, _ in batch:
                held.lose(f"it can't be written: {describe(self.address, error)}")
            return False, False
        return added == sum(len(rows) for _, rows in batch), ordered

    def _add_alone(self, connection: Connection, held: Held) -> None:
        """Add what is queued of one run, which did not go in with that of others."""
        batch = [(held, list(itertools.islice(held.queue, BATCH)))]
        self._send(connection, batch)
        added, ordered = self._answered(connection, batch)
        stop_sending(connection)
        self.forget_sent()
        if ordered:
            self.read_orders(connection)
        if added:
            held.settle(batch[0][1])
        elif not held.lost:
            self.examine(connection, held)

    def examine(self, connection: Connection, held: Held) -> None:
        """See what stands after what was written to a run, and whose it is."""
        held.settle(())  # if an interrupt kept somebody from that
        stands = self.execute(connection, _STANDS, (held.place, held.end.number)).fetchall()
        own = [held.end, *held.queue]
        if not stands:
            self._miss(connection, held)
        elif len(stands) > len(own) or stands != [row[:2] for row in own[: len(stands)]]:
            held.lose(
                "somebody else has taken it over, or changed it, while its connection to "
                f"{self.address.url} was lost. Nothing more runs in it here"
            )
        else:
            held.settle(own[1 : len(stands)])

    def _miss(self, connection: Connection, held: Held) -> None:
        """The end of a run is gone, and its attested end says so from now on."""
        count = held.end.number - held.fences
        left = self.execute(
            connection,
            "SELECT count(*) FROM lines WHERE place = ? AND NOT fence",
            (held.place,),
        ).fetchone()[0]
        self.execute(connection, _GONE, ("halted", count, held.end.head.hex(), held.place))
        gone = f"lines {left + 1} to {count} are" if left + 1 < count else f"line {count} is"
        held.lose(
            f"{gone} gone from {self.address.url}, which had them: was it replaced by a standby "
            f"that lacks its last transactions? Nothing more runs in it; bring them back to resume "
            f"it"
        )

    # --- orders ----------------------------------------------------------------------------------

    def read_orders(self, connection: Connection) -> None:
        """Learn which of the runs have an order to stop or pause."""
        self.has_orders = False  # first: what comes from here on is read again
        if not self.held:
            return  # it is somebody else's
        found = self.execute(connection, _ORDERS, (list(self.held),)).fetchall()
        orders = {place: StopOrder(*order) for place, *order in found}
        for place, held in list(self.held.items()):
            held.order = orders.get(place)
