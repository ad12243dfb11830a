"""A server's stream of events, each of bounded size: one message each."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

import httpx
from httpx_sse import EventSource, ServerSentEvent

from rollcage_mcp.errors import ServerGone
from rollcage_mcp.lines import LONGEST

__all__ = ["events_of"]

_BLANK: Final = re.compile(rb"\n\n|\r\r|\r\n\r\n")


def events_of(response: httpx.Response) -> AsyncIterator[ServerSentEvent]:
    """Return the events of a stream.

    Raises:
        ServerGone: an event is longer than a message may be, or the stream is compressed, so that
            the
            length is unknown.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ServerGone("its events are compressed, and were asked for uncompressed")
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _Bounded(response.stream)
    return EventSource(response).aiter_sse()


class _Bounded(httpx.AsyncByteStream):
    """The bytes of a stream of events, none of which may be longer than a message."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length, end = 0, b""
        async for part in self._stream:
            end = end[-3:] + part  # the end of an event may be split between two parts
            length = 0 if _BLANK.search(end) else length + len(part)
            if length > LONGEST:
                raise ServerGone(f"a message is longer than {LONGEST // 2**20} MiB")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
