"""What may wait for a lock or a disk, done in a thread while the event loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Generator
from typing import Final, Generic, NoReturn, TypeVar, cast

from rollcage.session.batches import in_batch
from rollcage.session.threads import in_threads_of

__all__ = ["Withdrawn", "in_loop", "in_thread", "perform", "perform_in_thread"]

T = TypeVar("T")
R = TypeVar("R")


class Withdrawn(Exception):
    """Whoever asked for it was cancelled meanwhile."""


class _Work(Generic[T]):
    """One piece of work in a thread, and who waits for it."""

    def __init__(
        self, where: str, do: Callable[[Callable[[], None]], T], undo: Callable[[T], None]
    ) -> None:
        self._where, self._do, self._undo = where, do, undo
        self._loop = asyncio.get_running_loop()
        self._context: Final = contextvars.copy_context()
        self._guard: Final = threading.Lock()
        self._begun = self._withdrawn = False
        self._result: tuple[T] | None = None
        self._error: BaseException | None = None
        self.done: Final[asyncio.Future[None]] = self._loop.create_future()

    def start(self, *, or_here: bool = False) -> None:
        """Do it in a thread; if the system has none for it, do it here or raise RuntimeError."""
        try:
            in_threads_of(self._where, self._run)
        except RuntimeError:
            if not or_here:
                raise
            self._run()

    def _run(self) -> None:
        if self.perform():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.settle)
                return
            self.give_up()

    def perform(self) -> bool:
        """Do it, unless somebody does; whether anybody waits for it."""
        with self._guard:
            if self._begun:
                return False
            self._begun = True
        result: tuple[T] | None = None
        error: BaseException | None = None
        try:
            result = (self._context.run(self._do, self._check),)
        except BaseException as raised:  # noqa: BLE001 - it is raised where it is waited for
            error = raised
        with self._guard:
            self._result, self._error = result, error
            if not self._withdrawn:
                return True
        if result is not None:
            self._context.run(self._undo, result[0])
        return False

    def give_up(self) -> None:
        """It is done, and nobody can be told."""
        self._context.run(self.withdraw)

    def _check(self) -> None:
        if self._withdrawn:
            raise Withdrawn

    def settle(self) -> None:
        """Tell who waits for it; in the loop."""
        if not self.done.done():
            self.done.set_result(None)

    def withdraw(self) -> None:
        """Nobody waits for it any more: what it has done, or will do, is undone."""
        with self._guard:
            result = None if self._withdrawn else self._result
            self._withdrawn = True
        if result is not None:
            self._undo(result[0])

    async def finished(self) -> asyncio.CancelledError | None:
        """Wait until it is done, also if the task is cancelled: by what it was, then.

        Whatever else comes in between withdraws it.
        """
        cancelled: asyncio.CancelledError | None = None
        try:
            while not self.done.done():
                try:
                    await asyncio.shield(self.done)
                except asyncio.CancelledError as error:
                    cancelled = error
        except BaseException:
            self.withdraw()
            if not self._begun:  # it was to begin in a loop that may be gone
                with contextlib.suppress(RuntimeError):  # no thread: the loop, if it is there
                    self.start()
            raise
        return cancelled

    def result(self) -> T:
        """What it gave; or its error is raised."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it refers to this frame
        assert self._result is not None
        return self._result[0]


async def in_thread(
    where: str, do: Callable[[Callable[[], None]], T], undo: Callable[[T], None]
) -> T:
    """Do what may block in a thread, in this context; the loop goes on meanwhile.

    Args:
        where: whose threads these are: what blocks one place does not block another.
        do: is given a function to call while it can still stop; that raises `Withdrawn`.
        undo: what is done with its result if the task was cancelled meanwhile; in that thread,
            unless it was done already.
    """
    work = _Work(where, do, undo)
    try:
        work.start()
        await work.done
    except BaseException:
        work.withdraw()
        raise
    return work.result()


def perform(flow: Generator[Callable[[], T], T, R], work: Callable[[], T] | None = None) -> R:
    """Do each piece of work that a flow asks for, here; what it returns.

    Args:
        flow: gets what each piece gives, or its error.
        work: the piece that it has asked for, if it has begun.
    """
    try:
        work = work or next(flow)
        while True:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the flow knows what to do
                work = flow.throw(error)
            else:
                work = flow.send(result)
    except StopIteration as end:
        return cast("R", end.value)


async def perform_in_thread(
    where: str, flow: Generator[Callable[[], T], T, object], *, short: bool
) -> None:
    """Do each in a thread; to its end, also if the task is cancelled: that is raised then.

    A task that is forgotten can't wait: a thread goes on with the flow, to its end. So does one if
    the loop is gone.

    Args:
        where: whose threads these are.
        flow: gets what each piece gives, or its error.
        short: whether each piece is so short that it is done in one go with others.
    """
    cancelled: asyncio.CancelledError | None = None

    def go_on(work: Callable[[], T]) -> None:
        in_threads_of(where, functools.partial(perform, flow, work))

    try:
        do = next(flow)
        while True:
            if not in_loop():
                go_on(do)
                return
            work = _Work(where, functools.partial(_outcome, do), go_on)
            if short:
                in_batch(where, work)
            else:
                work.start(or_here=True)
            cancelled = await work.finished() or cancelled
            try:
                result = work.result()()
            except BaseException as error:  # noqa: BLE001 - the flow knows what to do
                do = flow.throw(error)
            else:
                do = flow.send(result)
    except StopIteration:
        pass
    except BaseException as error:
        if cancelled is not None:
            raise cancelled from error
        raise
    if cancelled is not None:
        raise cancelled


def in_loop() -> bool:
    """Whether an event loop runs this."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _outcome(do: Callable[[], T], check: Callable[[], None]) -> Callable[[], T]:
    """What is done whether anybody waits for it or not: what gives its result, or its error."""
    del check
    try:
        result = do()
    except BaseException as error:  # noqa: BLE001 - it is raised where its result is asked for
        return functools.partial(_raise, error)
    return lambda: result


def _raise(error: BaseException) -> NoReturn:
    raise error
