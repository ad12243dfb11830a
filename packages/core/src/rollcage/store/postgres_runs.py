"""All runs of a PostgreSQL store that this process has locked, and what the server knows of them.

Whoever has the connection (see `Committer`) calls this, one at a time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from rollcage.store.held import Held, Row
from rollcage.store.postgres_database import Address, Connection, said
from rollcage.store.postgres_lines import add_lines
from rollcage.store.protocol import StopOrder
from rollcage.store.sql import ATTEST
from rollcage.store.stubs import KIND

__all__ = ["BATCH", "Runs"]

BATCH: Final = 1000  # lines of one statement

_STANDS: Final = "SELECT number, line FROM lines WHERE place = ? AND number >= ? ORDER BY number"
_ORDERS: Final = "SELECT place, run, said_by, reason, time, kind FROM orders WHERE place = ANY (?)"
_GONE: Final = (
    f"{ATTEST} AND NOT EXISTS (SELECT FROM documents WHERE kind = '{KIND}' AND key = run)"
)


class Runs:
    """The runs that are locked.

    Attributes:
        held: each of them, by its place.
        spoke: when the server was told something last (monotonic, s).
        told: whether orders were given or lifted that were not read yet.
    """

    def __init__(self, address: Address) -> None:
        self.held: dict[int, Held] = {}
        self.spoke = 0.0
        self.told = False
        self._address = address

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
        left = BATCH
        batch: list[tuple[Held, list[Row]]] = []
        for held in list(self.held.values()):
            if held.queue and not held.lost and left > 0:
                held.settle(())  # if an interrupt kept somebody from that
                rows = list(itertools.islice(held.queue, left))
                if rows:
                    left -= len(rows)
                    batch.append((held, rows))
        if batch:
            self._add(connection, batch)
        return bool(batch)

    def _add(self, connection: Connection, batch: list[tuple[Held, list[Row]]]) -> None:
        """Add rows of some runs in one statement; where that fails, run by run."""
        new = [(held.place, row.number, row.line) for held, rows in batch for row in rows]
        ends = [(held.place, held.end.number) for held, _ in batch]
        try:
            added, ordered = add_lines(connection, new, ends)
            self.spoke = time.monotonic()
        except psycopg.errors.UniqueViolation:
            added, ordered = 0, False
        except psycopg.Error as error:
            if connection.closed:
                raise
            for held, _ in batch:
                held.lose(f"it can't be written: {said(self._address, error)}")
            return
        if ordered:  # first: who waits for the line of a call goes on with that
            self.read_orders(connection)
        if added == len(new):
            for held, rows in batch:
                held.settle(rows)
        elif len(batch) > 1:
            for each in batch:
                self._add(connection, [each])
        else:
            self.examine(connection, batch[0][0])

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
                f"{self._address.url} was lost. Nothing more runs in it here"
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
            f"{gone} gone from {self._address.url}, which had them: was it replaced by a standby "
            f"that lacks its last transactions? Nothing more runs in it; bring them back to resume "
            f"it"
        )

    # --- orders ----------------------------------------------------------------------------------

    def read_orders(self, connection: Connection) -> None:
        """Learn which of the runs were told to stop or pause."""
        self.told = False  # first: what is said from here on is read again
        if not self.held:
            return  # it is somebody else's
        found = self.execute(connection, _ORDERS, (list(self.held),)).fetchall()
        orders = {place: StopOrder(*order) for place, *order in found}
        for place, held in list(self.held.items()):
            held.order = orders.get(place)
