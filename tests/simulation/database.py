"""A database server of logs and values, and the network to it.

It does what a store on a server is made of, each as one transaction: a line is inserted where the
line before it is the one that its writer knows; a value is swapped for what was seen. A lock
belongs to a connection, and ends when the server believes that the connection has. What it has
acknowledged is committed, and a failover keeps it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rollcage.trace.chain import HASH, ROOT

from tests.simulation.scheduler import Process, Scheduler

__all__ = ["Connection", "Disconnected", "Server"]

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


class Server:
    """The server."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.logs: dict[str, list[bytes]] = {}
        self.values: dict[tuple[str, str], bytes] = {}
        self.rung = 0
        self.locks: dict[str, Connection] = {}
        self.connections: list[Connection] = []
        self.down_until = 0
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

    def lock(self, connection: Connection, run: str) -> bool:
        return self.locks.setdefault(run, connection) is connection

    def take(self, connection: Connection, run: str) -> None:
        self.locks[run] = connection

    def unlock(self, connection: Connection, run: str) -> None:
        if self.locks.get(run) is connection:
            del self.locks[run]

    def is_locked(self, _: Connection, run: str) -> bool:
        return run in self.locks

    def append(self, _: Connection, run: str, head: bytes, line: bytes) -> int | None:
        """Insert a line behind this one; the bell, or None where another line is the last."""
        lines = self.logs.get(run, [])
        if (lines[-1][HASH] if lines else ROOT) != head:
            return None
        self.logs.setdefault(run, []).append(line)
        return self.rung

    def last(self, _: Connection, run: str) -> tuple[bytes, int]:
        return (self.logs.get(run) or [b""])[-1], self.rung

    def lines(self, _: Connection, run: str) -> list[bytes]:
        return list(self.logs.get(run, []))

    def runs(self, _: Connection) -> list[tuple[str, bytes, bytes]]:
        return [(run, lines[0], lines[-1]) for run, lines in self.logs.items() if lines]

    def get(self, _: Connection, kind: str, key: str) -> bytes | None:
        return self.values.get((kind, key))

    def swap(
        self, _: Connection, kind: str, key: str, was: bytes | None, new: bytes | None
    ) -> bool:
        self.rung += kind == "orders"
        if self.values.get((kind, key)) != was:
            return False
        if new is None:
            self.values.pop((kind, key), None)
        else:
            self.values[kind, key] = new
        return True

    def keys(self, _: Connection, kind: str) -> list[str]:
        return sorted(key for own, key in self.values if own == kind)

    def bell(self, _: Connection) -> int:
        return self.rung
