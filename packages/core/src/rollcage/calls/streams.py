"""Make the calls whose bodies yield chunks: live, or as far as they are on record."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rollcage.calls.driver import Flow, drive
from rollcage.calls.flow import (
    admit,
    enter,
    failed,
    give_back,
    inside,
    returned,
    stream_ended,
    stream_returned,
    surrounded,
)
from rollcage.errors import NotReplayable
from rollcage.replay.call import at
from rollcage.trace.run import CHANGES

if TYPE_CHECKING:
    from rollcage.replay.call import Call

__all__ = ["astreamed", "stream", "streamed"]

_END: Final = object()


class _Chunk(NamedTuple):
    """Hold a chunk for the consumer."""

    value: Any


def streamed(call: Call) -> Generator[Any]:
    """Yield the chunks of a call whose body returns an iterator."""
    flow = stream(call)
    said: Any = None
    raised: BaseException | None = None
    while True:
        try:
            request = flow.send(said) if raised is None else flow.throw(raised)
        except StopIteration:
            return
        said = raised = None
        try:
            if isinstance(request, _Chunk):
                yield request.value
            else:
                said = drive(_asking(request))
        except BaseException as error:  # noqa: BLE001 - the flow decides; it raises it again
            raised = error


async def astreamed(call: Call) -> AsyncGenerator[Any]:
    """Yield the chunks of a call whose body returns an async iterator."""
    flow = stream(call)
    said: Any = None
    raised: BaseException | None = None
    while True:
        try:
            request = flow.send(said) if raised is None else flow.throw(raised)
        except StopIteration:
            return
        said = raised = None
        try:
            if isinstance(request, _Chunk):
                yield request.value
            else:
                said = request()
                if hasattr(said, "__await__"):
                    said = await said
        except BaseException as error:  # noqa: BLE001 - the flow decides; it raises it again
            raised = error


def _asking(request: Callable[[], Any]) -> Flow:
    """Ask for one thing: a flow of its own, for what a driver knows of answers."""
    return (yield request)


def stream(call: Call) -> Generator[Callable[[], Any] | _Chunk, Any]:
    """Make the call: a flow that yields its chunks, too.

    Raises:
        NotReplayable: the recorded stream was not read to its end, and may have had more chunks.
    """
    attempt, is_async = call.attempt, call.is_async
    yield from admit(call, enter(call))
    if call.recorded is not None:
        for chunk in (yield from give_back(call)):
            yield _Chunk(chunk)
        if b'"cut":true' in (call.recorded.outcome or b""):
            raise attempt.halt(
                NotReplayable("the recorded stream was not read any further than this")
            )
        return
    chunks: list[Any] = []
    place = inside(attempt, call)
    source: Any = None
    try:
        with at(place), surrounded(call):
            source = (aiter if is_async else iter)(call.body(**call.values))
        following = functools.partial(anext if is_async else next, source, _END)
        while True:
            with at(place), surrounded(call):
                chunk = yield following
            if chunk is _END:
                break
            chunks.append(chunk)
            yield _Chunk(chunk)
        with at(place):
            yield functools.partial(stream_ended, call, chunks)
    except BaseException as error:
        close = getattr(source, "aclose" if is_async else "close", None)
        if close is not None:
            with contextlib.suppress(Exception), at(place):
                yield close
        if isinstance(error, Exception):
            with contextlib.suppress(type(error)), at(place):
                yield functools.partial(stream_ended, call, chunks, error)
        if isinstance(error, GeneratorExit) and call.effect not in CHANGES:
            yield from returned(attempt, call, chunks, cut=True)
        else:
            yield from failed(attempt, call, error)
        raise
    yield from stream_returned(call, chunks)
