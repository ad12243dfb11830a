"""Append lines in a thread for sessions on event loops, so that no loop ever waits.

A loop hands over a line, and awaits `settled` before a body runs. The thread takes all queued
lines, from all loops, appends them in order, waits once for each log, and wakes each loop once. A
line that was handed over is written whatever happens to its task: a cancelled `settled` takes
nothing back.

There is one thread for each kind of log, because a database that is silent for some seconds must
not hold up files. The thread ends with the process, once everything is written.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from rollcage.errors import Forked
from rollcage.trace.processes import keep_from_children
from rollcage.trace.store import Log

__all__ = ["Queued"]

_Waiter = asyncio.Future[None] | Callable[[], None]
_Job = tuple["Queued | None", bytes | None, _Waiter | None]


class Queued:
    """Queue the lines of a log for a thread. See `Log` for the promises.

    `append`, `settled` and `bell` never block. `read`, `wait`, `replace` and `close` do, so a
    session on a loop calls them in a thread.
    """

    __slots__ = (
        "__weakref__", "_done", "_error", "_jobs", "_log", "_sent", "_written", "bell", "last",
        "told", "where",
    )  # fmt: skip

    is_at_once = False

    def __init__(self, log: Log) -> None:
        self.where = log.where
        self.last = log.last
        self.bell = 0
        self.told = log.hear()
        self._log = log
        self._jobs = _writer(type(log)).jobs
        self._error: BaseException | None = None
        self._sent = self._written = self._done = 0  # lines: handed over, appended, on record
        keep_from_children(self)

    def hear(self) -> Callable[[], int] | None:
        return self.told

    def read(self) -> list[bytes]:
        lines = self._log.read()
        self.last = self._log.last
        self.bell = self._log.bell
        return lines

    def lines(self) -> Iterator[bytes]:
        yield from self.read()

    def append(self, line: bytes) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)
        self._sent += 1
        self.last = line
        self._jobs.put((self, line, None))

    async def settled(self) -> None:
        if self._done != self._sent and self._error is None:
            settled = asyncio.get_running_loop().create_future()
            self._jobs.put((self, None, settled))
            await settled
        if self._error is not None:
            raise self._error.with_traceback(None)

    def wait(self) -> None:
        if self._done != self._sent and self._error is None:
            settled = threading.Event()
            self._jobs.put((self, None, settled.set))
            settled.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)

    def replace(self, lines: Sequence[bytes]) -> None:
        self.wait()
        self._log.replace(lines)
        self.last = self._log.last

    def close(self) -> None:
        if isinstance(self._error, Forked):
            return
        try:
            self.wait()
        finally:
            self._log.close()

    def forked(self) -> None:
        """Leave the log to the parent process, whose thread writes it."""
        self._error = Forked(
            f"{self.where} is written by process {os.getppid()}, and this is a forked child of it: "
            f"open a session of its own here"
        )

    def write(self, line: bytes) -> None:
        """Append a line, on the writer's thread."""
        if self._error is None:
            try:
                self._log.append(line)
                self._written += 1
            except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
                self._error = error

    def settle(self) -> None:
        """Wait for all appended lines, on the writer's thread."""
        if self._error is None:
            written = self._written
            try:
                self._log.wait()
                self.bell = self._log.bell
                self._done = written
            except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
                self._error = error


class _Writer:
    """Serve queued logs in a thread."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        threading.Thread(target=self._serve, name="rollcage-writer", daemon=True).start()

    def drain(self) -> None:
        """Wait until all lines handed over so far are written."""
        drained = threading.Event()
        self.jobs.put((None, None, drained.set))
        drained.wait()

    def _serve(self) -> None:
        get, get_nowait = self.jobs.get, self.jobs.get_nowait
        while True:
            jobs = [get()]
            with contextlib.suppress(Empty):
                while True:
                    jobs.append(get_nowait())
            _serve_all(jobs)
            del jobs  # a log that nobody else has is let go


def _serve_all(jobs: list[_Job]) -> None:
    """Append the lines of some jobs, in order; then wait for the logs with waiters."""
    waiting: dict[Queued | None, list[_Waiter]] = {}
    for log, line, waiter in jobs:
        if line is not None and log is not None:
            log.write(line)
        elif waiter is not None:
            waiting.setdefault(log, []).append(waiter)
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for log, waiters in waiting.items():
        if log is not None:
            log.settle()
        for waiter in waiters:
            if isinstance(waiter, asyncio.Future):
                loops.setdefault(waiter.get_loop(), []).append(waiter)
            else:
                waiter()
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # it was closed: nobody waits any more
            loop.call_soon_threadsafe(_wake, futures)


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():  # it was cancelled
            future.set_result(None)


_lock = threading.Lock()
_writers: Final[dict[type, _Writer]] = {}


def _writer(kind: type) -> _Writer:
    found = _writers.get(kind)
    if found is None:
        with _lock:
            found = _writers.get(kind)
            if found is None:
                found = _writers[kind] = _Writer()
    return found


def _in_child() -> None:
    """Forget the threads of the parent in a forked child."""
    global _lock  # noqa: PLW0603 - another thread of the parent may have it
    _lock = threading.Lock()
    _writers.clear()


def _at_exit() -> None:
    for writer in list(_writers.values()):
        writer.drain()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
