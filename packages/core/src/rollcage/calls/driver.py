"""Carry out a flow, in sync code or on an event loop.

A flow is a generator that yields functions without arguments, for everything that has to be waited
for, and is sent their results; in an async session, the results of awaitables. So all logic exists
once.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any

from rollcage.errors import SessionError
from rollcage.trace.threads import in_thread

__all__ = ["Flow", "adrive", "drive", "finished_in_thread", "in_background"]

Flow = Generator[Callable[[], Any], Any, Any]


def drive(flow: Flow) -> Any:
    """Carry out a flow, waiting in this thread."""
    thrown: BaseException | None = None
    try:
        request = next(flow)
        while True:
            try:
                answer = request()
                if hasattr(answer, "__await__"):
                    if inspect.iscoroutine(answer):
                        answer.close()
                    raise SessionError("this has to be awaited: use acall, in an async session")
            except BaseException as error:  # noqa: BLE001 - the flow decides; it raises it again
                thrown = error
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as stop:
        return stop.value
    except RuntimeError as error:  # as a generator makes of a StopIteration that a body raised
        if isinstance(thrown, StopIteration) and error.__cause__ is thrown:
            raise thrown from None
        raise


async def adrive(flow: Flow) -> Any:
    """Carry out a flow, awaiting on the loop."""
    try:
        request = next(flow)
        while True:
            try:
                answer = request()
                if hasattr(answer, "__await__"):
                    answer = await answer
            except BaseException as error:  # noqa: BLE001 - the flow decides; it raises it again
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as stop:
        return stop.value


async def finished_in_thread(
    function: Callable[[], Any],
) -> tuple[asyncio.Future[Any], asyncio.CancelledError | None]:
    """Run a function in a thread, and wait until it has ended, cancelled or not.

    A thread can't be stopped, and going on while it is at work would see half of its effects.

    Returns:
        The finished future; and the cancellation that came meanwhile, to be raised.
    """
    thread = asyncio.ensure_future(in_thread(function))
    cut: asyncio.CancelledError | None = None
    while not thread.done():
        try:
            await asyncio.wait([thread])
        except asyncio.CancelledError as error:
            cut = error
    return thread, cut


def in_background(function: Callable[[], None]) -> None:
    """Run a function in a thread without waiting; here, if the system has no thread left."""
    try:
        threading.Thread(target=function, name="rollcage-leaving").start()
    except RuntimeError:
        function()
