"""A store on the simulated server, as any store on a server has to be written.

It is no store to use: it is what a network does to a store, in as few lines as that takes, under
the real sessions. Where no answer came, it connects again and looks whether its request was done;
where somebody else wrote, it gives up; it never appends behind a line that it does not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rollcage.errors import (
    Fenced,
    RollcageError,
    RunInUse,
    RunNotFound,
    StoreError,
    TraceUnwritable,
)
from rollcage.trace.chain import HASH, ROOT
from rollcage.trace.folder import Ends

from tests.simulation.database import Connection, Disconnected, Server

__all__ = ["ServerLog", "ServerStore"]

PATIENCE = 20  # seconds for which it tries to reach the server


class Link:
    """The connection of one process to the server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.connection: Connection | None = None

    def once(self, what: str, *given: Any) -> Any:
        """Ask once. Raises Disconnected."""
        if self.connection is None:
            self.connection = self.server.connect()
        try:
            return self.server.ask(self.connection, what, *given)
        except Disconnected:
            self.connection = None
            raise

    def ask(self, what: str, *given: Any) -> Any:
        """Ask until there is an answer: for what may be done twice.

        Raises:
            StoreError: the server can't be reached.
        """
        return self.trying(lambda: self.once(what, *given))

    def trying(self, do: Callable[[], Any]) -> Any:
        """Try until it gets through.

        Raises:
            StoreError: the server can't be reached.
        """
        scheduler = self.server.scheduler
        until = scheduler.now + PATIENCE * 10**9
        while True:
            try:
                return do()
            except Disconnected:
                if scheduler.now > until:
                    raise StoreError("the server can't be reached") from None
                scheduler.sleep(0.5)


class ServerLog:
    """The log of one run, as one process writes it."""

    is_at_once = True

    def __init__(self, link: Link, run: str) -> None:
        self.where = f"run {run}"
        self.last = b""
        self.bell = link.ask("bell")
        self._link = link
        self._run = run
        self._held = link.connection
        self._head = ROOT
        self._refusal: RollcageError | None = None

    def hear(self) -> None:
        """There is no such thing."""

    def read(self) -> list[bytes]:
        lines: list[bytes] = self._link.ask("lines", self._run)
        if lines:
            self.last, self._head = lines[-1], lines[-1][HASH]
        return lines

    def lines(self) -> Iterator[bytes]:
        yield from self.read()

    def append(self, line: bytes) -> None:
        if self._refusal is not None:
            raise self._refusal
        asked: list[bool] = []  # whether a request of it may have been done
        try:
            bell = self._link.trying(lambda: self._insert(line, asked))
        except StoreError as error:
            self._refusal = TraceUnwritable(f"{self.where} can't be written: {error}")
            raise self._refusal from error
        if bell is None:
            self._refusal = Fenced(f"{self.where} was taken over by another session")
            raise self._refusal
        self.bell, self.last, self._head = bell, line, line[HASH]

    def _insert(self, line: bytes, asked: list[bool]) -> int | None:
        if asked:
            last, bell = self._link.once("last", self._run)
            if last == line:
                return int(bell)
        if self._link.connection is not self._held and self._link.once("lock", self._run):
            self._held = self._link.connection
        asked.append(True)
        bell = self._link.once("append", self._run, self._head, line)
        return None if bell is None else int(bell)

    def wait(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    async def settled(self) -> None:
        self.wait()

    def replace(self, lines: Sequence[bytes]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._refusal = self._refusal or TraceUnwritable(f"{self.where} is closed")
        if self._link.connection is self._held:  # else it ended with that
            with contextlib.suppress(Disconnected):
                self._link.once("unlock", self._run)


class ServerStore:
    """A store on a server, as one process has it."""

    url = "simulated://server"

    def __init__(self, server: Server) -> None:
        self._link = Link(server)

    def open(self, run: str, *, take: bool = False) -> ServerLog:
        if take:
            self._link.ask("take", run)
        elif not self._link.ask("lock", run):
            raise RunInUse(f"run {run} is written by another session")
        return ServerLog(self._link, run)

    def read(self, run: str, after: int = 0) -> list[bytes]:
        lines: list[bytes] = self._link.ask("lines", run)
        if not lines:
            raise RunNotFound(f"there is no run {run}")
        return lines[after:]

    def runs(self, before: str = "", limit: int = 1000) -> list[Ends]:
        found = sorted((Ends(*each) for each in self._link.ask("runs")), reverse=True)
        return [each for each in found if not before or each.run < before][:limit]

    def ends(self, run: str) -> Ends:
        lines = self.read(run)
        return Ends(run, lines[0], lines[-1])

    def is_live(self, run: str) -> bool:
        return bool(self._link.ask("is_locked", run))

    def get(self, kind: str, key: str) -> bytes | None:
        value: bytes | None = self._link.ask("get", kind, key)
        return value

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        asked: list[bool] = []

        def once() -> bool:
            if asked and self._link.once("get", kind, key) == new:
                return True
            asked.append(True)
            return bool(self._link.once("swap", kind, key, was, new))

        return bool(self._link.trying(once))

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> list[str]:
        return [key for key in self._link.ask("keys", kind) if key > after][:limit]

    def bell(self) -> int:
        return int(self._link.ask("bell"))
