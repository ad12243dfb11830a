"""A store on the simulated server, as any store on a server has to be written.

It is no store to use: it is the table of failures in `STORES`, in as few lines as that takes, under
the real sessions. Where no answer came, it connects again and looks whether what it asked for was
done; where somebody else wrote, it gives up; it never adds a line behind one that it does not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

from rollcage.errors import ControlLost, RunInUse, RunNotFound, StoreError, TraceUnwritable
from rollcage.store import (
    Log,
    OrderKind,
    Repair,
    RunInfo,
    RunTrace,
    StopOrder,
    newest_run,
)
from rollcage.store.pausing import not_pausable
from rollcage.trace.events import seal_line
from rollcage.trace.reader import ended, tail_of

from tests.simulation.database import Connection, Disconnected, Row, Server

__all__ = ["ServerStore"]

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


class ServerLock:
    """A lock of a connection."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._name = name
        self.connection = link.connection

    def release(self) -> None:
        if self._link.connection is self.connection:  # else it ended with that
            with contextlib.suppress(Disconnected):
                self._link.once("unlock", self._name)


class ServerWriter:
    """Adds lines to a run, until somebody else does."""

    forked = False

    def __init__(self, link: Link, run: str, lock: ServerLock, number: int, data: bytes) -> None:
        self.run = run
        self.buffered = link.server.buffered
        self.waits = True
        self._link = link
        self._lock = lock
        self._number = number  # of the next row
        self._waiting: list[bytes] = []
        self._lost = False  # to somebody else, or nobody can tell
        tail = tail_of(data)
        self._count, self._head = tail.lines, tail.head

    def append(self, event: dict[str, Any]) -> None:
        line, self._head = seal_line(event, self._head)
        self._count += 1
        self._waiting.append(line)
        if not self.buffered:
            self.sync()

    def send(self) -> bool:
        """Always waits: see `sync`."""
        return False

    def sync(self) -> None:
        """What is acknowledged is committed."""
        if not self._waiting:
            return
        lost = self._lost
        try:
            lost = lost or not self._link.trying(self._insert)
        except StoreError as error:
            self._lost = True
            raise TraceUnwritable(f"run {self.run} can't be written: {error}") from error
        if lost:
            self._lost = True
            raise TraceUnwritable(f"run {self.run} was taken over by somebody else")
        self._number += len(self._waiting)
        self._waiting.clear()

    def queue(self) -> None:
        """All lines do."""

    def synced(self) -> None:
        """Only a thread can wait for it."""

    def _insert(self) -> bool:
        """Add what waits, all of it or nothing; False where somebody else has the run."""
        if self._link.connection is not self._lock.connection:  # no answer came, here or before
            lines = self._link.once("end", self.run)
            if len(lines) > self._number:
                return bool(lines[self._number :] == self._waiting) and self._again()
            if len(lines) < self._number or not self._again():
                return False
        return bool(self._link.once("insert", self.run, self._number, self._waiting))

    def _again(self) -> bool:
        """Take the lock with a new connection; False where somebody else has it."""
        if not self._link.once("lock", self.run):
            return False
        self._lock = ServerLock(self._link, self.run)
        return True

    def stop_order(self, *, closely: bool = False) -> StopOrder | None:
        try:
            order: StopOrder | None = self._link.ask("order", self.run)
        except StoreError as error:
            raise ControlLost(self.run, str(error)) from error
        return order

    def attest(self, status: str) -> None:
        self.sync()
        given = (self.run, self._number, status, self._count, self._head.hex())
        try:
            attested = self._link.ask("attest", *given)
        except StoreError as error:
            raise TraceUnwritable(f"run {self.run}: {error}") from error
        if not attested:
            raise TraceUnwritable(f"run {self.run} was taken over by somebody else")

    def close(self) -> None:
        self._lock.release()


class ServerStore:
    """A store on a server, as one process has it."""

    url = "simulated://server"
    waits = True

    def __init__(self, server: Server) -> None:
        self._link = Link(server)
        self._opening: ServerLock | None = None

    def exists(self) -> bool:
        return True

    # --- sessions --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def opening(self) -> Generator[None]:
        scheduler = self._link.server.scheduler
        until = scheduler.now + PATIENCE * 10**9
        while not self._link.ask("lock", "opening"):
            if scheduler.now > until:
                raise StoreError("somebody else has been opening a session for too long")
            scheduler.sleep(0.2)
        self._opening = ServerLock(self._link, "opening")
        try:
            yield
        finally:
            opening, self._opening = self._opening, None
            opening.release()

    def create(self, started: dict[str, Any], order: StopOrder | None = None) -> ServerWriter:
        run = started["run"]
        line, _ = seal_line(started, bytes(32))
        lost = StoreError("the connection was lost while a session was opening")
        if self._opening is None or self._link.connection is not self._opening.connection:
            raise lost
        try:
            if not self._link.once("create", started, line, order):
                raise lost
        except Disconnected:
            raise lost from None  # a run that began all the same is one that was cut off
        return ServerWriter(self._link, run, ServerLock(self._link, run), 1, line)

    def lock(self, run: str) -> ServerLock:
        return self._taken(run)[0]

    def reopen(self, run: str) -> ServerWriter:
        lock, number = self._taken(run)
        return ServerWriter(self._link, run, lock, number, self._row(run).data)

    def _taken(self, run: str) -> tuple[ServerLock, int]:
        """Lock a run, and fence off whoever wrote it before."""
        self._row(run)
        try:
            if not self._link.once("lock", run):
                raise RunInUse(f"run {run} is being written or resumed by another session")
            lock = ServerLock(self._link, run)
            return lock, self._link.once("fence", run)
        except Disconnected:
            raise StoreError(f"the connection was lost while run {run} was being locked") from None

    # --- reading ---------------------------------------------------------------------------------

    def _row(self, run: str) -> Row:
        row: Row | None = self._link.ask("get", run)
        if row is None:
            raise RunNotFound(f"there is no run {run}")
        return row

    def read(self, run: str, *, after: int = 0) -> RunTrace:
        row = self._row(run)
        lines = row.data.splitlines(keepends=True)[after:]
        return RunTrace(run, f"run {run}", b"".join(lines), b"", _info(row), after)

    def info(self, run: str) -> RunInfo:
        return _info(self._row(run))

    def runs(
        self,
        *,
        name: str | None = None,
        status: str | None = None,
        source: str | None = None,
        since: int | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> Sequence[RunInfo]:
        found = [
            info
            for info in map(_info, self._link.ask("all"))
            if name in (None, info.name)
            and status in (None, info.status or "unfinished")
            and source in (None, info.source)
            and (since is None or info.time >= since)
            and (before is None or info.time < before)
        ]
        return found if limit is None else found[len(found) - limit :]

    def newest(self, name: str, of: str | None) -> RunInfo | None:
        return newest_run(self.runs(), name, of)

    def live(self, run: str) -> bool:
        self._row(run)
        return bool(self._link.ask("is_locked", run))

    def stop_order(self, run: str) -> StopOrder | None:
        self._row(run)
        order: StopOrder | None = self._link.ask("order", run)
        return order

    def stop(self, order: StopOrder) -> None:
        if not self._link.ask("stop", order.run, order):  # whoever opens from now on sees it
            raise not_pausable(order.run, self.stop_order(order.run), "")  # or there is no such run
        with self.opening():  # and who had looked before has begun: it is stopped with the rest
            self._link.ask("stop", order.run, order)

    def lift(self, run: str, kind: OrderKind | None = None) -> bool:
        lifted = self._link.ask("lift", run, kind)
        if lifted is None:
            raise RunNotFound(f"there is no run {run}")
        return bool(lifted)

    def repair(self) -> Repair:
        return Repair(runs=len(self.runs()))

    # --- what goes with runs ---------------------------------------------------------------------

    def put_once(self, kind: str, key: str, data: bytes) -> bool:
        return bool(self._link.ask("put", kind, key, data))

    def get(self, kind: str, key: str) -> bytes | None:
        data: bytes | None = self._link.ask("document", kind, key)
        return data

    def keys(self, kind: str) -> Sequence[str]:
        keys: list[str] = self._link.ask("keys", kind)
        return keys

    def put_blob(self, digest: str, data: bytes) -> None:
        self._link.ask("put_blob", digest, data)

    def get_blob(self, digest: str) -> bytes:
        data: bytes | None = self._link.ask("blob", digest)
        if data is None:
            raise StoreError(f"blob {digest} is missing")
        return data

    def secret_key(self) -> bytes:
        key: bytes = self._link.ask("secret_key")
        return key

    # What no session and no operator of a universe asks for.

    def drop(self, kind: str, key: str) -> None:
        raise NotImplementedError

    def check(self) -> Repair:
        raise NotImplementedError

    def log(self, name: str, begins: str) -> Log:
        raise NotImplementedError

    def blobs(self) -> Sequence[str]:
        raise NotImplementedError

    def drop_blob(self, digest: str) -> None:
        raise NotImplementedError

    def take_key(self, key: bytes) -> bool:
        raise NotImplementedError

    def restore(self, trace: RunTrace) -> bool:
        raise NotImplementedError

    def prune(self, run: str, *, by: str, time: int, skeleton: bytes = b"") -> None:
        raise NotImplementedError


def _info(row: Row) -> RunInfo:
    started, data = row.started, row.data
    status = row.status
    if status is None or row.count != data.count(b"\n"):
        status = ended(data) or status
    return RunInfo(
        run=started["run"],
        name=started["name"],
        mode=started["mode"],
        source=started["source"],
        time=started["time"],
        status=status,
        count=row.count,
        head=row.head,
        input=started["input"]["digest"] if "input" in started else None,
    )
