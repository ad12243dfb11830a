"""A database server of runs, and the network to it: what a store on a server has to live with.

The server knows rows and locks, as the table of `STORES` has it: a line of a run is a row of the
primary key (run, number); a *fence* is such a row without a line, inserted by whoever takes a run
over, so that whoever wrote it before can't add the next one. A lock belongs to a connection, and
ends when the server believes that the connection has. What it has acknowledged is committed, and a
failover keeps it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.simulation.scheduler import Process, Scheduler

__all__ = ["Connection", "Disconnected", "Row", "Server"]

DROPS = 15  # seconds without a word after which the server gives a connection up


class Disconnected(Exception):
    """A request that got no answer: it was done, or it was not."""


@dataclasses.dataclass(eq=False)
class Connection:
    """A connection, as the server has it."""

    number: int
    process: Process | None
    heard: int  # when (ns)
    lost: bool = False  # to the client


@dataclasses.dataclass(eq=False)
class Row:
    """A run."""

    started: dict[str, Any]
    lines: list[bytes | None] = dataclasses.field(default_factory=list)  # None: a fence
    status: str | None = None
    count: int | None = None
    head: str | None = None
    order: Any = None

    @property
    def data(self) -> bytes:
        return b"".join(line for line in self.lines if line is not None)


class Server:
    """The server."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.rows: dict[str, Row] = {}
        self.documents: dict[tuple[str, str], bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.key = b""
        self.locks: dict[str, Connection] = {}
        self.connections: list[Connection] = []
        self.down_until = 0
        self.buffered = False  # whether clients collect lines, until they must have been added
        self._number = 0
        # What befalls processes on their way here.
        self.frozen: dict[Process, int] = {}  # until when
        self.cuts: dict[Process, str] = {}  # their next request, `before` it is done or `after`

    # --- the network -----------------------------------------------------------------------------

    def connect(self) -> Connection:
        """Raises Disconnected where there is no way to the server."""
        process = self.scheduler.current
        self.scheduler.point("connects")
        self._travel(process)
        if self.scheduler.now < self.down_until:
            raise Disconnected
        self._number += 1
        connection = Connection(self._number, process, self.scheduler.now)
        self.connections.append(connection)
        return connection

    def ask(self, connection: Connection, what: str, *given: Any) -> Any:
        """Have something done, as a whole, and wait for the answer.

        Raises:
            Disconnected: there is no answer.
        """
        process = self.scheduler.current
        self.scheduler.point(f"asks {what} {given[0] if given else ''}")
        self._travel(process)
        cut = self.cuts.pop(process, "") if process is not None else ""
        if cut == "before" or connection not in self.connections:
            self._cut(connection)
            raise Disconnected
        connection.heard = self.scheduler.now
        answer = getattr(self, what)(connection, *given)
        if cut == "after":
            self.scheduler.note(f"the answer to {what} is lost")
            self._cut(connection)
            raise Disconnected
        self._travel(process)
        return answer

    def _travel(self, process: Process | None) -> None:
        """A packet is on its way, until the network is there."""
        while process is not None and process in self.frozen:
            left = max(0, self.frozen[process] - self.scheduler.now) / 1e9
            self.scheduler.wait(lambda: process not in self.frozen, "hears nothing", seconds=left)
            self.passes()

    def _cut(self, connection: Connection) -> None:
        """The client has lost its connection; the server may not know that for a while."""
        connection.lost = True
        if self.scheduler.random.random() < 0.5:
            self.drop(connection)

    def drop(self, connection: Connection) -> None:
        """The connection has ended, and its locks with it."""
        if connection in self.connections:
            self.connections.remove(connection)
        for name in [name for name, holder in self.locks.items() if holder is connection]:
            del self.locks[name]

    def passes(self) -> None:
        """Time has passed."""
        now = self.scheduler.now
        for process, until in list(self.frozen.items()):
            if until <= now:
                del self.frozen[process]
                self.scheduler.note(f"{process.name} hears again")
        for connection in list(self.connections):
            if not connection.lost and connection.process not in self.frozen:
                connection.heard = now  # the system of who is idle answers that it is there
            elif connection.heard + DROPS * 10**9 < now:
                self.drop(connection)

    def buried(self, process: Process) -> None:
        """A process has died: the server hears of it at once."""
        self.frozen.pop(process, None)
        self.cuts.pop(process, None)
        for connection in [each for each in self.connections if each.process is process]:
            self.drop(connection)

    # --- what it does, each as one transaction ---------------------------------------------------

    def lock(self, connection: Connection, name: str) -> bool:
        return self.locks.setdefault(name, connection) is connection

    def unlock(self, connection: Connection, name: str) -> None:
        if self.locks.get(name) is connection:
            del self.locks[name]

    def create(
        self, connection: Connection, started: dict[str, Any], line: bytes, order: Any
    ) -> bool:
        """Begin a run, locked, where the connection has the lock of whoever opens a session."""
        if self.locks.get("opening") is not connection:
            return False
        run = started["run"]
        self.rows[run] = Row(started, [line], order=order)
        self.locks[run] = connection
        return True

    def insert(self, _: Connection, run: str, number: int, lines: list[bytes]) -> bool:
        """Add lines from this number (from 0) on; False where it is not that of the next one."""
        row = self.rows[run]
        if len(row.lines) != number:
            return False
        row.lines += lines
        return True

    def fence(self, _: Connection, run: str) -> int:
        """Add a fence at the end; the number of what comes next."""
        row = self.rows[run]
        row.lines.append(None)
        return len(row.lines)

    def end(self, _: Connection, run: str) -> list[bytes | None]:
        return list(self.rows[run].lines)

    def attest(
        self, _: Connection, run: str, number: int, status: str, count: int, head: str
    ) -> bool:
        row = self.rows[run]
        if len(row.lines) != number:
            return False
        row.status, row.count, row.head = status, count, head
        return True

    def get(self, _: Connection, run: str) -> Row | None:
        row = self.rows.get(run)
        return None if row is None else dataclasses.replace(row, lines=list(row.lines))

    def all(self, _: Connection) -> list[Row]:
        return [dataclasses.replace(row, lines=list(row.lines)) for row in self.rows.values()]

    def order(self, _: Connection, run: str) -> Any:
        return self.rows[run].order

    def stop(self, _: Connection, run: str, order: Any) -> bool:
        if run not in self.rows or not self._takes(run, order):
            return False
        for each in (run, *filter(lambda other: self._takes(other, order), self._built_on(run))):
            self.rows[each].order = order
        return True

    def _takes(self, run: str, order: Any) -> bool:
        """Whether an order may take the place of a run's own: no pause does that of a stop."""
        own = self.rows[run].order
        return not order.is_pause or own is None or own.is_pause

    def lift(self, _: Connection, run: str, kind: str | None) -> bool | None:
        if run not in self.rows:
            return None
        there = False
        for name, row in self.rows.items():
            own = row.order
            if own is not None and own.run == run and kind in (None, own.kind):
                row.order, there = self._above(name), there or name == run
        return there

    def _above(self, run: str) -> Any:
        """The order of a run that this one builds on: a stop before a pause."""
        row, found = self.rows[run], None
        while row.started["mode"] == "resume" and row.started["source"] in self.rows:
            row = self.rows[row.started["source"]]
            if row.order is not None and not row.order.is_pause:
                return row.order
            found = found or row.order
        return found

    def _built_on(self, run: str) -> list[str]:
        found = [run]
        for name, row in self.rows.items():  # what a run builds on stands before it
            if row.started["source"] in found and row.started["mode"] == "resume":
                found.append(name)
        return found[1:]

    def is_locked(self, _: Connection, name: str) -> bool:
        return name in self.locks

    def put(self, _: Connection, kind: str, key: str, data: bytes) -> bool:
        return self.documents.setdefault((kind, key), data) is data

    def document(self, _: Connection, kind: str, key: str) -> bytes | None:
        return self.documents.get((kind, key))

    def keys(self, _: Connection, kind: str) -> list[str]:
        return sorted(key for own, key in self.documents if own == kind)

    def put_blob(self, _: Connection, digest: str, data: bytes) -> None:
        self.blobs[digest] = data

    def blob(self, _: Connection, digest: str) -> bytes | None:
        return self.blobs.get(digest)

    def secret_key(self, _: Connection) -> bytes:
        self.key = self.key or self.scheduler.random.randbytes(32)
        return self.key
