"""The one connection of a process that has the locks of its runs, and writes their lines.

Whoever waits for a line in a thread sends what all sessions have to add, in one statement (group
commit): those who come meanwhile wait for their turn, and often find their lines added by then. No
other thread is woken for that. A thread of the committer's own does it for tasks, which must not
keep their loop waiting. It also connects anew, and says something now and then: the server gives
up a session that falls silent, and its locks with it.
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
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import psycopg

from rollcage.errors import RollcageError, StoreError
from rollcage.store.held import Held, Row
from rollcage.store.postgres_address import Address, failed, lock_key
from rollcage.store.postgres_connection import Connection, Server
from rollcage.store.postgres_lines import prepare
from rollcage.store.postgres_runs import Runs
from rollcage.store.postgres_taking import try_lock

__all__ = ["PostgresCommitter", "left", "tries"]

T = TypeVar("T")

_GRACE: Final = 2.0  # seconds for the server to see that the connection before is no more
_SOON: Final = 50  # ms after which a line is added that nobody waits for
_NONE: Final = bytes(4)  # how many bytes there are to read, of the system's: an int

_END: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = ? AND pid <> pg_backend_pid()"
)

left: Final[list[object]] = []
"""The parent's connections, in a forked child: never closed there."""


class PostgresCommitter:
    """Adds the lines of all runs that this process has locked."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._address: Address = server.address
        self._name = f"rollcage-{os.getpid()}-{secrets.token_hex(6)}"
        self._beat = server.address.silence / 3  # seconds after which something is sent
        self._channel = f"rollcage_{server.address.schema}"
        self._guard = threading.Lock()
        self._turn = threading.Lock()  # whoever has it uses the connection, and nobody else
        self.runs = Runs(server.address)
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

        `unless` is called with its result, if nobody waits for that any more (Ctrl-C).

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
        became of it is learned with the next line, or when something is sent anyway.
        """
        taken: list[bool] = []
        try:
            taken.extend(map(self._turn.acquire, (False,)))  # in one go: no Ctrl-C comes between
            return taken[0] and self._lead(sends=True) and self.runs.is_sent(held)
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
            listens: only read what the server has sent by now.
            sends: only have it on its way; False, too, where the system does not take all of it.
        """
        connection = self._connection
        if connection is None:
            return False
        try:
            if sends:
                return self.runs.send(connection)
            if listens:
                connection.hear()
                if not connection.pgconn.is_busy():
                    self.runs.receive(connection)
            else:
                self.runs.add(connection)
            if self.runs.has_orders:
                self.runs.read_orders(connection)
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

    def release(self, held: Held, *, wait: bool = True) -> None:
        """Let others have a run."""

        def job(connection: Connection) -> None:
            if self.runs.held.pop(held.place, None) is not None:
                key = lock_key(self._address.schema, held.run)
                connection.execute("SELECT pg_advisory_unlock(?)", (key,))

        with contextlib.suppress(StoreError):  # without the connection, the lock is gone, too
            done = self._submit(job)
            if wait:
                done.result()

    def read_orders(self) -> None:
        """Learn of orders now."""
        if self._thread is not None and self.runs.held:
            self.do(self.runs.read_orders)

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
            left = max(self.runs.spoke + self._beat - time.monotonic(), 0) * 1000
        elif self.runs.any_live:
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
        if self._connection is None and not self._jobs and not self.runs.any_live:
            return
        connection = self._connected()
        self.runs.receive(connection)
        while self._jobs:
            self._run(connection, *self._jobs[0])
            self._jobs.popleft()
        while self.runs.add(connection):
            pass
        if self.runs.has_orders:
            self.runs.read_orders(connection)
        if time.monotonic() - self.runs.spoke >= self._beat:
            self.runs.execute(connection, "SELECT 1")

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
            connection.add_notify_handler(lambda _: setattr(self.runs, "has_orders", True))
            self.runs.spoke = time.monotonic()
            if self.epoch:  # it may live on, and have the locks
                connection.execute(_END, (self._name,))
            prepare(connection)
            if self._is_durable:
                self.be_durable(connection)
            self.epoch += 1
            for held in list(self.runs.held.values()):
                if not held.lost:
                    self._take_again(connection, held)
            self.runs.has_orders = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _take_again(self, connection: Connection, held: Held) -> None:
        """Lock a run once more, if nobody else has it, and see whether it is as it was left."""
        for _ in tries(_GRACE):
            if try_lock(connection, self._address, held.run):
                return self.runs.examine(connection, held)
        return held.lose(
            f"somebody else has taken it over while its connection to {self._address.url} was "
            f"lost. Nothing more runs in it here",
        )

    def _hang_up(self) -> None:
        self._socket = -1
        self.runs.forget_sent()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _give_up(self, error: StoreError) -> None:
        """Nothing more can be written."""
        self.runs.give_up(str(error))
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
