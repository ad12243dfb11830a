"""The two loops of streams: bodies that give iterators, live or recorded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from rollcage.step.call import Step
from rollcage.step.driver import Driver, aconsult, caught, unwrap
from rollcage.step.requests import Admit, Consult, Execute, Flow, Raised, Returned, Settle, Sync

__all__ = ["astream", "stream"]

_END: Final = object()


def stream(  # noqa: C901, PLR0912 - a generator's exit reaches its own frame only
    driver: Driver, flow: Flow
) -> Iterator[Any]:
    """Drive a flow whose body gives an iterator: its chunks, live or recorded.

    The step's value is the list of its chunks. A consumer that stops early cuts a write off;
    of anything else what it took is recorded, and no more of it can be replayed.
    """
    answer: Any = None
    live = False
    ended: GeneratorExit | None = None  # the consumer wants no more
    with driver.driven() as calls:
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as stop:
                answer = stop.value
                break
            if type(effect) is Execute:
                live = True
                answer = driver.refusal(effect.step)
                chunks: list[Any] = []
                source: Any = None
                try:
                    while answer is None:
                        with driver.inside(effect.step):
                            if source is None:
                                source = iter(effect.body(**effect.step.call.passed))
                            chunk = next(source, _END)
                        if chunk is _END:
                            answer = Returned(chunks)
                        else:
                            chunks.append(chunk)
                            yield chunk
                except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised again
                    answer = _cut_off(error, effect.step, chunks)
                    if source is not None and hasattr(source, "close"):
                        with contextlib.suppress(Exception), driver.inside(effect.step):
                            source.close()
                    if isinstance(error, GeneratorExit):
                        ended = error
            elif type(effect) is Sync:
                answer = driver.sync()
            else:
                if type(effect) is Admit:
                    calls.append(effect.call)
                answer = driver.perform(effect)
                if type(effect) is Settle:
                    calls.clear()
    if ended is not None:
        raise ended
    value = unwrap(answer, stream=True)
    if not live:
        yield from value
        if answer.cut:
            raise driver.beyond_cut()


async def astream(  # noqa: C901, PLR0912, PLR0915 - as `stream`
    driver: Driver, flow: Flow
) -> AsyncGenerator[Any]:
    """`stream` for a body that gives an async iterator."""
    answer: Any = None
    live = False
    ended: GeneratorExit | None = None  # the consumer wants no more
    with driver.driven() as calls:
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as stop:
                answer = stop.value
                break
            if type(effect) is Execute:
                live = True
                answer = driver.refusal(effect.step)
                chunks: list[Any] = []
                source: Any = None
                try:
                    while answer is None:
                        with driver.inside(effect.step):
                            if source is None:
                                source = aiter(effect.body(**effect.step.call.passed))
                            chunk = await anext(source, _END)
                        if chunk is _END:
                            answer = Returned(chunks)
                        else:
                            chunks.append(chunk)
                            yield chunk
                except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised again
                    answer = _cut_off(error, effect.step, chunks)
                    if source is not None and hasattr(source, "aclose"):
                        with contextlib.suppress(Exception), driver.inside(effect.step):
                            await source.aclose()
                    if isinstance(error, GeneratorExit):
                        ended = error
            elif type(effect) is Sync:
                answer = await caught(asyncio.to_thread(driver.sync))
            elif type(effect) is Consult:
                driver.ended(effect)
                answer = await aconsult(effect)
            else:
                if type(effect) is Admit:
                    calls.append(effect.call)
                answer = driver.perform(effect)
                if type(effect) is Settle:
                    calls.clear()
    if ended is not None:
        raise ended
    value = unwrap(answer, stream=True)
    if not live:
        for chunk in value:
            yield chunk
        if answer.cut:
            raise driver.beyond_cut()


def _cut_off(error: BaseException, step: Step, chunks: list[Any]) -> Returned | Raised:
    """How a stream ends that was not read to its end."""
    if isinstance(error, GeneratorExit) and not step.world_effect:
        return Returned(chunks, cut=True)
    return Raised(error)
