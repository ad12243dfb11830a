"""The loop of streams: bodies that give iterators, live or recorded; for sync and async."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final, Protocol

from rollcage.errors import NotReplayable
from rollcage.step.call import OpenStep
from rollcage.step.driver import Driver
from rollcage.step.performing import Perform
from rollcage.step.requests import (
    Admit,
    Consult,
    Execute,
    Flow,
    Raised,
    Returned,
    Settle,
    Sync,
    WaitForCall,
)
from rollcage.step.waiting import stepped, unwrap
from rollcage.step.watch import calls_body

__all__ = ["astream", "stream"]

_END: Final = object()


def stream(driver: Driver, flow: Flow) -> Iterator[Any]:
    """Drive a flow whose body gives an iterator: its chunks, live or recorded.

    The step's value is the list of its chunks. A consumer that stops early cuts a write off;
    for any other step, the chunks that it took are recorded, and no more can be replayed.
    """
    chunks = _chunks(driver, flow, driver.performing.here, _AtOnce)
    while True:
        chunk: Any = stepped(anext(chunks, _END))
        if chunk is _END:
            return
        try:
            yield chunk
        except BaseException as error:  # noqa: BLE001 - of the consumer; it is raised again there
            with contextlib.suppress(StopAsyncIteration):
                stepped(chunks.athrow(error))
            return


def astream(driver: Driver, flow: Flow) -> AsyncGenerator[Any]:
    """`stream` for a body that gives an async iterator."""
    return _chunks(driver, flow, driver.performing.there, _Awaited)


class _Source(Protocol):
    """An iterator, sync or async, as the loop reads it."""

    def __init__(self, iterable: Any) -> None: ...

    async def take(self) -> Any:
        """The next chunk, or `_END`."""
        ...

    async def close(self) -> None:
        """No more of it is wanted."""
        ...


class _AtOnce:
    @calls_body
    def __init__(self, iterable: Any) -> None:
        self._source = iter(iterable)

    @calls_body
    async def take(self) -> Any:
        return next(self._source, _END)

    @calls_body
    async def close(self) -> None:
        if hasattr(self._source, "close"):
            self._source.close()


class _Awaited:
    @calls_body
    def __init__(self, iterable: Any) -> None:
        self._source = aiter(iterable)

    @calls_body
    async def take(self) -> Any:
        return await anext(self._source, _END)

    @calls_body
    async def close(self) -> None:
        if hasattr(self._source, "aclose"):
            await self._source.aclose()


@calls_body
async def _chunks(  # noqa: C901, PLR0912 - a generator's exit reaches its own frame only
    driver: Driver, flow: Flow, wait: Perform, opened: type[_Source]
) -> AsyncGenerator[Any]:
    answer: Any = None
    live = False
    ended: GeneratorExit | None = None  # the consumer wants no more
    with driver.driven() as begun:
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as stop:
                answer = stop.value
                break
            if type(effect) is Execute:
                live = True
                answer = driver.orders.refusal(effect.step)
                chunks: list[Any] = []
                source: _Source | None = None
                try:
                    while answer is None:
                        with driver.bodies.inside(effect.step):
                            if source is None:
                                source = opened(effect.body(**effect.step.call.passed))
                            chunk = await source.take()
                        if chunk is _END:
                            answer = Returned(chunks)
                        else:
                            chunks.append(chunk)
                            yield chunk
                except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised again
                    answer = _cut_off(error, effect.step, chunks)
                    if source is not None:
                        with contextlib.suppress(Exception), driver.bodies.inside(effect.step):
                            await source.close()
                    if isinstance(error, GeneratorExit):
                        ended = error
            elif isinstance(effect, (Sync, Consult, WaitForCall)):
                answer = await wait(effect)
            else:
                if type(effect) is Admit:
                    begun.append(effect.progress)
                answer = driver.perform(effect)
                if type(effect) is Settle:
                    begun.clear()
    if ended is not None:
        raise ended
    value = unwrap(answer, stream=True)
    if not live:
        for chunk in value:
            yield chunk
        if answer.cut:
            unread = NotReplayable("the recorded stream was not read any further than this")
            driver.halt(unread)
            raise unread


def _cut_off(error: BaseException, step: OpenStep, chunks: list[Any]) -> Returned | Raised:
    """How a stream ends that was not read to its end."""
    if isinstance(error, GeneratorExit) and not step.world_effect:
        return Returned(chunks, cut=True)
    return Raised(error)
