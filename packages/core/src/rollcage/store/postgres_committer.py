"""The one connection of a process that has the locks of its runs, and writes their lines.

Whoever waits for a line in a thread sends what all sessions have to add, in one statement (group
commit): those who come meanwhile wait for their turn, and often find their lines added by then. No
other thread is woken for that. A thread of the committer's own does it for tasks, which must not
keep their loop waiting. It also connects anew, and says something now and then: the server gives
up a session that falls silent, and its locks with it.

A lock alone does not keep an old writer out that has lost it without knowing. So whoever takes a
run over adds a row of its own, a fence: the next line of the old writer finds its number taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import secrets
import select
import termios
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import psycopg

from rollcage.errors import RollcageError, StoreError, TraceUnwritable
from rollcage.store.held import Held, Row
from rollcage.store.postgres_database import Address, Connection, Server, failed, lock_key
from rollcage.store.postgres_lines import prepare
from rollcage.store.postgres_runs import Runs
from rollcage.store.protocol import StopOrder
from rollcage.store.sql import ATTEST, BEGIN, put_order

__all__ = ["Committer", "left", "tries"]

T = TypeVar("T")

_GRACE: Final = 2.0  # seconds for the server to see that the connection before is no more
_SOON: Final = 50  # ms after which a line is added that nobody waits for
_NONE: Final = bytes(4)  # how many bytes there are to read, of the system's: an int

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

left: Final[list[object]] = []
"""The parent's connections, in a forked child: never closed there."""


class Committer:
    """Adds the lines of all runs that this process has locked."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._address: Address = server.address
        self._name = f"rollcage-{os.getpid()}-{secrets.token_hex(6)}"
        self._beat = server.address.silence / 3  # seconds after which something is said
        self._channel = f"rollcage_{server.address.schema}"
        self._guard = threading.Lock()
        self._turn = threading.Lock()  # whoever has it uses the connection, and nobody else
        self._runs = Runs(server.address)
        self._jobs: deque[tuple[Callable[[Connection], Any], Future[Any]]] = deque()
        self._connection: Connection | None = None
        self._socket = -1  # of the connection
        self._thread: threading.Thread | None = None
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._bell)
        self._rung = self._hurries = False
        self._stopped = False
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
        """Add a row after the last one; it is in the store when `sync` or `synced` says so."""
        held.queue.append(row)
        self._ring(soon=True)

    def sync(self, held: Held) -> None:
        """Have all that was added to a run in the store; this thread sees to it itself.

        Raises:
            TraceUnwritable: it can't be written.
        """
        number = held.last.number
        while held.end.number < number:
            held.check()
            with self._turn:
                is_done = held.end.number >= number or (not self._jobs and self._lead())
            if not is_done:
                self.synced(held).result()

    def synced(self, held: Held) -> Future[None]:
        """Done when all that was added to a run is in the store; the committer's thread sees to it.

        Its exception is a TraceUnwritable, where it can't be written.
        """
        done = held.wait()
        if not done.done():
            self._ring()
        return done

    def send(self, held: Held) -> bool:
        """Have all that was added to a run on its way, if nobody has to be waited for.

        Then a killed process loses nothing of it: the server adds what the system has taken. What
        became of it is learned with the next line, or when something is said anyway.
        """
        taken: list[bool] = []
        try:
            taken.extend(map(self._turn.acquire, (False,)))  # in one go: no Ctrl-C comes between
            return taken[0] and self._lead(sends=True) and self._runs.is_sent(held)
        finally:
            if True in taken:
                self._turn.release()

    def hear(self) -> None:
        """Learn of orders that were given by now; this costs one system call."""
        if self._socket < 0:
            return
        try:
            unread = fcntl.ioctl(self._socket, termios.FIONREAD, _NONE)
        except OSError:  # it was closed just now
            return
        if unread != _NONE and not self._turn.locked():  # else it is an answer, or both
            with self._turn:
                self._lead(listens=True)

    def _lead(self, *, listens: bool = False, sends: bool = False) -> bool:
        """Add what is queued, in this thread; the caller has the turn.

        False where the thread of the committer has to see to it: the connection is no good.

        Args:
            listens: only read what the server has said by now.
            sends: only have it on its way; False, too, where the system does not take all of it.
        """
        connection = self._connection
        if connection is None:
            return False
        try:
            if sends:
                return self._runs.send(connection)
            if listens:
                connection.hear()
                if not connection.pgconn.is_busy():
                    self._runs.receive(connection)
            else:
                self._runs.add(connection)
            if self._runs.told:
                self._runs.read_orders(connection)
        except BaseException as error:  # an interrupt, too, may have left an answer in it
            self._hang_up()
            self._ring()
            if not isinstance(error, psycopg.Error):
                raise
            return False
        return True

    def be_durable(self, connection: Connection) -> None:
        """Wait with each commit for the disk of the server, from now on; in a job."""
        self._is_durable = True
        if connection.execute("SHOW synchronous_commit").fetchone()[0] == "off":
            connection.execute("SET synchronous_commit = on")

    def begin(
        self,
        connection: Connection,
        fields: Sequence[Any],
        first: Row,
        epoch: int | None,
        order: StopOrder | None,
    ) -> Held:
        """A new run with its first line, locked, and its order, if it has one; in a job.

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
        if order is not None:
            put_order(connection, row[0], order)
        held = self._runs.held[row[0]] = Held(run, row[0], first, 0, order=order)
        return held

    def take(self, connection: Connection, run: str, place: int) -> Held | None:
        """Lock a run, and fence its old writer off; in a job. None where somebody else has it."""
        if place in self._runs.held or not self._try(connection, run):
            return None
        token = secrets.token_bytes(16)
        while (row := connection.execute(_FENCE, (place, token, place)).fetchone()) is None:
            pass  # an old writer that has lost its lock was faster once more
        lines, last = connection.execute(_COUNT, (place, place)).fetchone()
        head = bytes.fromhex(last[-67:-3].decode())
        held = self._runs.held[place] = Held(run, place, Row(row[0], token, head), row[0] - lines)
        return held

    def attest(self, connection: Connection, held: Held, status: str) -> None:
        """Note where a run ends, all of whose lines are in the store; in a job."""
        number, head = held.end.number, held.end.head.hex()
        given = (status, number - held.fences, head, held.place, number, held.place)
        if not connection.execute(_ATTEST, given).rowcount:
            self._runs.examine(connection, held)
            raise TraceUnwritable(held.lost or f"run {held.run} is gone from {self._address.url}")

    def _try(self, connection: Connection, run: str) -> bool:
        key = lock_key(self._address.schema, run)
        got: bool = connection.execute("SELECT pg_try_advisory_lock(?)", (key,)).fetchone()[0]
        return got

    def release(self, held: Held, *, wait: bool = True) -> None:
        """Let others have a run."""

        def job(connection: Connection) -> None:
            if self._runs.held.pop(held.place, None) is not None:
                key = lock_key(self._address.schema, held.run)
                connection.execute("SELECT pg_advisory_unlock(?)", (key,))

        with contextlib.suppress(StoreError):  # without the connection, the lock is gone, too
            done = self._submit(job)
            if wait:
                done.result()

    def read_orders(self) -> None:
        """Learn of orders now."""
        if self._thread is not None and self._runs.held:
            self.do(self._runs.read_orders)

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
        self._turn = threading.Lock()
        self._thread = None
        self._socket = -1
        left.append(self._connection)

    def _ring(self, *, soon: bool = False) -> None:
        """Have the thread look for what is to be done: at once, or before long."""
        if not (self._rung and (soon or self._hurries)):
            self._rung = True
            self._hurries = self._hurries or not soon
            os.eventfd_write(self._bell, 1)

    # --- the thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._stopped:
                self._sleep()
                with self._turn:
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
            with self._turn:
                self._hang_up()

    def _sleep(self) -> None:
        """Wait until there is something to do, or the connection is broken."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        left: float | None = None
        if (connection := self._connection) is not None and (there := self._socket) >= 0:
            poll.register(there, select.POLLRDHUP)  # what it says is for who uses it
            left = max(self._runs.spoke + self._beat - time.monotonic(), 0) * 1000
        elif self._runs.any_live:
            return
        for ready, _ in poll.poll(left):
            if ready == self._bell:
                os.eventfd_read(self._bell)
                self._linger()
            else:
                with self._turn:
                    if self._connection is connection:
                        self._hang_up()
        self._rung = self._hurries = False  # first: what comes from here on rings again

    def _linger(self) -> None:
        """Wait a little more for somebody in a hurry: who waits in a thread does it all itself."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        while not self._hurries:
            if poll.poll(_SOON):
                os.eventfd_read(self._bell)
            elif not self._turn.locked():
                return

    def _work(self) -> None:
        if self._connection is None and not self._jobs and not self._runs.any_live:
            return
        connection = self._connected()
        self._runs.receive(connection)
        while self._jobs:
            self._run(connection, *self._jobs[0])
            self._jobs.popleft()
        while self._runs.add(connection):
            pass
        if self._runs.told:
            self._runs.read_orders(connection)
        if time.monotonic() - self._runs.spoke >= self._beat:
            self._runs.execute(connection, "SELECT 1")

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

    # --- connecting ------------------------------------------------------------------------------

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._hang_up()
            self._connection = self._server.waited_for(self._open, stopped=lambda: self._stopped)
            self._socket = self._connection.pgconn.socket
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
            connection.add_notify_handler(lambda _: setattr(self._runs, "told", True))
            self._runs.spoke = time.monotonic()
            if self.epoch:  # it may live on, and have the locks
                connection.execute(_END, (self._name,))
            prepare(connection)
            if self._is_durable:
                self.be_durable(connection)
            self.epoch += 1
            for held in list(self._runs.held.values()):
                if not held.lost:
                    self._take_again(connection, held)
            self._runs.told = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _take_again(self, connection: Connection, held: Held) -> None:
        """Lock a run once more, if nobody else has it, and see whether it is as it was left."""
        for _ in tries(_GRACE):
            if self._try(connection, held.run):
                return self._runs.examine(connection, held)
        return held.lose(
            f"somebody else has taken it over while its connection to {self._address.url} was "
            f"lost. Nothing more runs in it here",
        )

    def _hang_up(self) -> None:
        self._socket = -1
        self._runs.forget_sent()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _give_up(self, error: StoreError) -> None:
        """Nothing more can be written."""
        self._runs.give_up(str(error))
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
