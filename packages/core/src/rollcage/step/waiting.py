"""How a thread and a task wait: for what a user declared, for another call, for a coroutine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import weakref
from collections import deque
from collections.abc import Awaitable
from concurrent.futures import Future
from types import CoroutineType
from typing import Any, Final, TypeVar

from rollcage.errors import NotReplayable, SessionError
from rollcage.step.requests import Consult, Raised, Returned

__all__ = ["aconsult", "awaited", "caught", "consult", "stepped", "unwrap", "waited_for"]

T = TypeVar("T")


def consult(effect: Consult) -> Returned | Raised:
    """Call what a user declared, in this thread."""
    try:
        answer: Any = effect.function(*effect.positional, **effect.words)
    except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised again
        return Raised(error)
    if not inspect.isawaitable(answer):
        return Returned(answer)
    if type(answer) is CoroutineType:
        answer.close()
    return Raised(
        SessionError(f"{effect.what} is async, but this call is not: use await session.acall(...)")
    )


async def aconsult(effect: Consult) -> Returned | Raised:
    """Call what a user declared; a sync one must not keep the loop waiting: it gets a thread."""
    function = functools.partial(effect.function, *effect.positional, **effect.words)
    try:
        if inspect.iscoroutinefunction(effect.function):
            return Returned(await function())
        answer: Any = function() if effect.here else await asyncio.to_thread(function)
        return Returned(await answer if inspect.isawaitable(answer) else answer)
    except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised again
        return Raised(error)


def unwrap(result: Returned | Raised, *, stream: bool = False) -> Any:
    """What a flow gave, or its error raised; a stream's own loop shows that it was cut."""
    if type(result) is Returned:
        if result.cut and not stream:
            raise NotReplayable("the recorded stream was not read to its end")
        return result.value
    assert isinstance(result, Raised)
    try:
        raise result.error
    finally:
        del result  # no cycle of the error with its own traceback


def waited_for(until: Future[None]) -> Returned | Raised:
    """Wait in this thread."""
    try:
        return Returned(until.result())
    except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised again
        return Raised(error)


class _Woken:
    """Tasks of one loop whose wait is over: another thread wakes the loop once for many of them.

    It keeps neither them nor the loop alive: if that is closed, nobody waits.
    """

    def __init__(self) -> None:
        self._over: deque[weakref.ref[asyncio.Future[None]]] = deque()
        self._is_called = False

    def add(self, loop: asyncio.AbstractEventLoop, over: asyncio.Future[None]) -> None:
        self._over.append(weakref.ref(over))
        if not self._is_called:  # asked after: whoever is called takes all that is there
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_called = False
        while self._over:
            over = self._over.popleft()()
            if over is not None and not over.done():
                over.set_result(None)


_loops: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Woken]] = (
    weakref.WeakKeyDictionary()
)


def _woken(loop: asyncio.AbstractEventLoop) -> _Woken:
    found = _loops.get(loop)
    if found is None:
        found = _loops[loop] = _Woken()
    return found


async def awaited(until: Future[None]) -> Returned:
    """Wait in this task; that it is cancelled changes nothing about what it waits for."""
    if until.done():
        await asyncio.sleep(0)  # a task that has been cancelled goes no further
    else:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        woken = _woken(loop)
        until.add_done_callback(lambda _: woken.add(loop, over))
        await over
    return Returned(until.result())


def stepped(coroutine: Awaitable[T]) -> T:
    """What a coroutine gives that never suspends.

    An async loop that is given only what performs at once is a sync one: written once for both.
    """
    try:
        next(coroutine.__await__())
    except StopIteration as stop:
        value: T = stop.value
    else:
        raise AssertionError("what performs at once never suspends")
    return value


async def caught(waiting: Any) -> Returned | Raised:
    """What this waits for, cancellation included, as data."""
    try:
        answer: Returned | Raised = await waiting
    except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised again
        return Raised(error)
    return answer
