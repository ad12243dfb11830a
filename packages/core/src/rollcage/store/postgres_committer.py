"""The one connection of a process that has the locks of its runs, and writes their lines.

A thread of its own serves it: what any number of sessions have to add goes into one statement,
while the one before is under way (group commit). It also learns of orders to stop (LISTEN), and
says something now and then: the server gives up a session that falls silent, and its locks with it.

A lock alone does not keep an old writer out that has lost it without knowing. So whoever takes a
run over adds a row of its own, a fence: the next line of the old writer finds its number taken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import secrets
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

import psycopg

from rollcage.errors import RollcageError, StoreError, TraceUnwritable
from rollcage.store.postgres_database import (
    Address,
    Connection,
    Server,
    failed,
    lock_key,
    said,
)
from rollcage.store.postgres_lines import add_lines, prepare
from rollcage.store.protocol import StopOrder
from rollcage.store.sql import ATTEST, BEGIN
from rollcage.store.stubs import KIND

__all__ = ["Committer", "Held", "Row", "left", "tries"]

T = TypeVar("T")

_BATCH: Final = 1000  # lines of one statement
_GRACE: Final = 2.0  # seconds for the server to see that the connection before is no more

_STANDS: Final = "SELECT number, line FROM lines WHERE place = ? AND number >= ? ORDER BY number"
_ORDERS: Final = "SELECT place, run, said_by, reason, time FROM orders WHERE place = ANY (?)"
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
_END: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = ? AND pid <> pg_backend_pid()"
)
_GONE: Final = (
    f"{ATTEST} AND NOT EXISTS (SELECT FROM documents WHERE kind = '{KIND}' AND key = run)"
)


left: Final[list[object]] = []
"""The parent's connections, in a forked child: never closed there."""


class Row(NamedTuple):
    """A row of a run: its number, what stands there, and the head of the trace from there on."""

    number: int
    line: bytes
    head: bytes


@dataclasses.dataclass(slots=True, eq=False)
class Held:
    """A run that this process has locked.

    Attributes:
        run: its id.
        place: where it stands among all.
        end: the last row that is known to be in the store, and ours.
        fences: how many rows up to there are no lines.
        queue: what is to be added behind it.
        waits: who waits for a row to be in the store.
        order: the order to stop it.
        lost: why nothing can be added to it any more.
    """

    run: str
    place: int
    end: Row
    fences: int
    queue: deque[Row] = dataclasses.field(default_factory=deque[Row])
    waits: list[tuple[int, Future[None]]] = dataclasses.field(default_factory=list)
    order: StopOrder | None = None
    lost: str = ""

    @property
    def last(self) -> Row:
        """The row that was added last, be it in the store or not."""
        try:
            return self.queue[-1]
        except IndexError:
            return self.end

    @property
    def lines(self) -> int:
        """How many lines of a trace there are, with those in the queue."""
        return self.last.number - self.fences


class Committer:
    """Adds the lines of all runs that this process has locked."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._address: Address = server.address
        self._name = f"rollcage-{os.getpid()}-{secrets.token_hex(6)}"
        self._beat = server.address.silence / 3  # seconds after which something is said
        self._channel = f"rollcage_{server.address.schema}"
        self._guard = threading.Lock()
        self._held: dict[int, Held] = {}
        self._jobs: deque[tuple[Callable[[Connection], Any], Future[Any]]] = deque()
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._bell)
        self._rung = False
        self._stopped = False
        self._said = 0.0  # when the server was told something last
        self._told = False  # whether orders were given or lifted
        self._is_durable = False
        self.forked = False
        self.epoch = 0  # how often it was connected: with a connection, its locks are gone

    # --- for any thread --------------------------------------------------------------------------

    def do(
        self, job: Callable[[Connection], T], *, unless: Callable[[T], None] = lambda _: None
    ) -> T:
        """Have something done on the connection; again, where that breaks meanwhile.

        `unless` is told what came of it, if nobody waits for that any more (Ctrl-C).

        Raises:
            StoreError: the database can't be reached, or refuses it.
        """
        done = self._submit(job)
        try:
            return done.result()
        except (KeyboardInterrupt, SystemExit):
            done.add_done_callback(lambda it: None if it.exception() else unless(it.result()))
            raise

    def _submit(self, job: Callable[[Connection], T]) -> Future[T]:
        done: Future[T] = Future()
        with self._guard:
            if self._stopped:
                raise StoreError(f"the store {self._address.url} was given up")
            self._jobs.append((job, done))
            if self._thread is None:
                name = f"rollcage commits to {self._address.schema}"
                self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._thread.start()
        self._ring()
        return done

    def add(self, held: Held, row: Row) -> None:
        """Add a row behind the last one; it is in the store when `wait` says so."""
        held.queue.append(row)
        self._ring()

    def wait(self, held: Held) -> Future[None]:
        """Done when all that was added to a run is in the store."""
        done: Future[None] = Future()
        with self._guard:
            number = held.last.number
            if not held.lost and held.end.number < number:
                held.waits.append((number, done))
                return done
        if held.lost:
            done.set_exception(TraceUnwritable(held.lost))
        else:
            done.set_result(None)
        return done

    def be_durable(self, connection: Connection) -> None:
        """Wait with each commit for the disk of the server, from now on; in a job."""
        self._is_durable = True
        if connection.execute("SHOW synchronous_commit").fetchone()[0] == "off":
            connection.execute("SET synchronous_commit = on")

    def begin(
        self, connection: Connection, fields: Sequence[Any], first: Row, epoch: int | None
    ) -> Held:
        """A new run with its first line, locked; in a job.

        Raises:
            StoreError: the locks that it was opened with in that `epoch` are lost.
        """
        run: str = fields[0]
        self._try(connection, run)  # nobody else knows of it
        lost = epoch not in (None, self.epoch)
        row = None if lost else connection.execute(_BEGIN, (*fields, first.line)).fetchone()
        if row is None:  # it is there where the acknowledgement of its commit was lost
            row = connection.execute("SELECT place FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None:
            raise StoreError(
                f"the connection to {self._address.url} was lost while a session opened, and "
                f"somebody else may have opened one; nothing has run: open it again"
            )
        held = self._held[row[0]] = Held(run, row[0], first, 0)
        return held

    def take(self, connection: Connection, run: str, place: int) -> Held | None:
        """Lock a run, and fence its old writer off; in a job. None where somebody else has it."""
        if place in self._held or not self._try(connection, run):
            return None
        token = secrets.token_bytes(16)
        while (row := connection.execute(_FENCE, (place, token, place)).fetchone()) is None:
            pass  # an old writer that has lost its lock was faster once more
        lines, last = connection.execute(_COUNT, (place, place)).fetchone()
        head = bytes.fromhex(last[-67:-3].decode())
        held = self._held[place] = Held(run, place, Row(row[0], token, head), row[0] - lines)
        return held

    def attest(self, connection: Connection, held: Held, status: str) -> None:
        """Note where a run ends, all of whose lines are in the store; in a job."""
        number, head = held.end.number, held.end.head.hex()
        given = (status, number - held.fences, head, held.place, number, held.place)
        if not connection.execute(_ATTEST, given).rowcount:
            self._examine(connection, held)
            raise TraceUnwritable(held.lost or f"run {held.run} is gone from {self._address.url}")

    def _try(self, connection: Connection, run: str) -> bool:
        key = lock_key(self._address.schema, run)
        got: bool = connection.execute("SELECT pg_try_advisory_lock(?)", (key,)).fetchone()[0]
        return got

    def release(self, held: Held, *, wait: bool = True) -> None:
        """Let others have a run."""

        def job(connection: Connection) -> None:
            if self._held.pop(held.place, None) is not None:
                key = lock_key(self._address.schema, held.run)
                connection.execute("SELECT pg_advisory_unlock(?)", (key,))

        with contextlib.suppress(StoreError):  # without the connection, the lock is gone, too
            done = self._submit(job)
            if wait:
                done.result()

    def look(self) -> None:
        """Learn of orders to stop now."""
        if self._thread is not None and self._held:
            self.do(self._read_orders)

    def stop(self) -> None:
        """Give it up: nobody uses it any more."""
        with self._guard:
            self._stopped, thread = True, self._thread
        self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_GRACE)  # so that the connection is closed

    def forget(self) -> None:
        """In a forked child: the runs, the connection and its thread are the parent's."""
        self.forked = self._stopped = True
        self._guard = threading.Lock()
        self._thread = None
        left.append(self._connection)

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            os.eventfd_write(self._bell, 1)

    # --- the thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._stopped:
                self._sleep()
                try:
                    self._work()
                except StoreError as error:  # it can't be reached, for as long as that may take
                    self._give_up(error)
                except (psycopg.OperationalError, psycopg.InterfaceError):
                    self._hang_up()  # what was to be done is still to be done
        except BaseException as error:
            with self._guard:
                self._stopped = True  # nobody would serve what comes from here on
            self._give_up(StoreError(f"nothing can be written to {self._address.url}: {error!r}"))
            raise
        finally:
            self._hang_up()

    def _sleep(self) -> None:
        """Wait until there is something to do."""
        connection = self._connection
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        left: float | None = None
        if connection is not None:
            poll.register(connection.pgconn.socket, select.POLLIN)
            left = max(self._said + self._beat - time.monotonic(), 0) * 1000
        elif self._has_live:
            return
        for ready, _ in poll.poll(left):
            if ready == self._bell:
                os.eventfd_read(self._bell)
            elif connection is not None:
                self._listen(connection)
        self._rung = False  # first: what comes from here on rings again

    @property
    def _has_live(self) -> bool:
        return any(not held.lost for held in list(self._held.values()))

    def _listen(self, connection: Connection) -> None:
        try:
            connection.pgconn.consume_input()
            while connection.pgconn.notifies() is not None:
                self._told = True
        except psycopg.OperationalError:
            self._hang_up()

    def _work(self) -> None:
        if self._connection is None and not self._jobs and not self._has_live:
            return
        connection = self._connected()
        while self._jobs:
            self._run(connection, *self._jobs[0])
            self._jobs.popleft()
        while batch := self._batch():
            self._commit(connection, batch)
        if self._told:
            self._read_orders(connection)
        if time.monotonic() - self._said >= self._beat:
            self._execute(connection, "SELECT 1")

    def _execute(self, connection: Connection, statement: str, given: Sequence[Any] = ()) -> Any:
        found = connection.execute(statement, given)
        self._said = time.monotonic()
        return found

    def _run(
        self, connection: Connection, job: Callable[[Connection], Any], done: Future[Any]
    ) -> None:
        try:
            answer = job(connection)
        except RollcageError as error:
            done.set_exception(error)
        except psycopg.Error as error:
            if connection.closed:
                raise
            done.set_exception(failed(self._address, error))
        else:
            done.set_result(answer)

    # --- adding ----------------------------------------------------------------------------------

    def _batch(self) -> list[tuple[Held, list[Row]]]:
        """What is to be added now."""
        left = _BATCH
        found: list[tuple[Held, list[Row]]] = []
        for held in list(self._held.values()):
            if held.queue and not held.lost and left > 0:
                rows = list(itertools.islice(held.queue, left))
                left -= len(rows)
                found.append((held, rows))
        return found

    def _commit(self, connection: Connection, batch: list[tuple[Held, list[Row]]]) -> None:
        """Add rows of some runs in one statement; where that fails, run by run."""
        new = [(held.place, row.number, row.line) for held, rows in batch for row in rows]
        ends = [(held.place, held.end.number) for held, _ in batch]
        try:
            added, ordered = add_lines(connection, new, ends)
            self._said = time.monotonic()
        except psycopg.errors.UniqueViolation:
            added, ordered = 0, False
        except psycopg.Error as error:
            if connection.closed:
                raise
            for held, _ in batch:
                self._lose(held, f"it can't be written: {said(self._address, error)}")
            return
        if ordered:  # first: who waits for the line of a call goes on with that
            self._read_orders(connection)
        if added == len(new):
            for held, rows in batch:
                self._settle(held, rows)
        elif len(batch) > 1:
            for each in batch:
                self._commit(connection, [each])
        else:
            self._examine(connection, batch[0][0])

    def _settle(self, held: Held, rows: Sequence[Row]) -> None:
        """These rows are in the store."""
        if not rows:
            return
        held.end = rows[-1]  # first: what is out of the queue is the end
        for _ in rows:
            held.queue.popleft()
        done: list[Future[None]] = []
        with self._guard:
            while held.waits and held.waits[0][0] <= held.end.number:
                done.append(held.waits.pop(0)[1])
        for each in done:
            each.set_result(None)

    def _examine(self, connection: Connection, held: Held) -> None:
        """See what stands behind what was written to a run, and whose it is."""
        stands = self._execute(connection, _STANDS, (held.place, held.end.number)).fetchall()
        own = [held.end, *held.queue]
        if not stands:
            self._miss(connection, held)
        elif len(stands) > len(own) or stands != [row[:2] for row in own[: len(stands)]]:
            self._lose(
                held,
                "somebody else has taken it over, or changed it, while its connection to "
                f"{self._address.url} was lost. Nothing more runs in it here",
            )
        else:
            self._settle(held, own[1 : len(stands)])

    def _miss(self, connection: Connection, held: Held) -> None:
        """The end of a run is gone, and its attested end says so from now on."""
        count = held.end.number - held.fences
        left = self._execute(
            connection,
            "SELECT count(*) FROM lines WHERE place = ? AND NOT fence",
            (held.place,),
        ).fetchone()[0]
        self._execute(connection, _GONE, ("halted", count, held.end.head.hex(), held.place))
        gone = f"lines {left + 1} to {count} are" if left + 1 < count else f"line {count} is"
        self._lose(
            held,
            f"{gone} gone from {self._address.url}, which had them: was it replaced by a standby "
            f"that lacks its last transactions? Nothing more runs in it; bring them back to resume "
            f"it",
        )

    def _lose(self, held: Held, reason: str) -> None:
        """Nothing can be added to a run any more."""
        with self._guard:
            held.lost = f"the trace of run {held.run} is not written any more: {reason}"
            waits, held.waits = held.waits, []
        for _, done in waits:
            done.set_exception(TraceUnwritable(held.lost))

    def _read_orders(self, connection: Connection) -> None:
        self._told = False
        found = self._execute(connection, _ORDERS, (list(self._held),)).fetchall()
        orders = {place: StopOrder(*order) for place, *order in found}
        for place, held in list(self._held.items()):
            held.order = orders.get(place)

    # --- connecting ------------------------------------------------------------------------------

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._hang_up()
            self._connection = self._server.waited_for(self._open, stopped=lambda: self._stopped)
        return self._connection

    def _open(self) -> Connection:
        connection = self._server.connect(self._name)
        try:
            connection.silent = silence = self._address.silence
            connection.execute(
                f"SET idle_session_timeout = '{silence}s'; SET tcp_user_timeout = '{silence}s';"
                f" SET tcp_keepalives_idle = 3; SET tcp_keepalives_interval = 3;"
                f" SET tcp_keepalives_count = 2; LISTEN {self._channel}"
            )
            self._said = time.monotonic()
            if self.epoch:  # it may live on, and have the locks
                connection.execute(_END, (self._name,))
            prepare(connection)
            if self._is_durable:
                self.be_durable(connection)
            self.epoch += 1
            for held in list(self._held.values()):
                if not held.lost:
                    self._take_again(connection, held)
            self._told = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _take_again(self, connection: Connection, held: Held) -> None:
        """Lock a run once more, if nobody else has it, and see whether it is as it was left."""
        for _ in tries(_GRACE):
            if self._try(connection, held.run):
                return self._examine(connection, held)
        return self._lose(
            held,
            f"somebody else has taken it over while its connection to {self._address.url} was "
            f"lost. Nothing more runs in it here",
        )

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _give_up(self, error: StoreError) -> None:
        """Nothing more can be written."""
        for held in list(self._held.values()):
            if not held.lost:
                self._lose(held, str(error))
        while self._jobs:
            self._jobs.popleft()[1].set_exception(error)


def tries(seconds: float) -> Iterator[int]:
    """Try again and again, a little later each time, for so long."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    for number in itertools.count():
        yield number
        if time.monotonic() + pause > deadline:
            return
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
