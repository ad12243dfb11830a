"""Messages that wait for a client that reads by HTTP: bounded, however slowly it reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from sse_starlette import EventSourceResponse

from rollcage_mcp.lines import LONGEST
from rollcage_mcp.messages import Message

__all__ = ["BEHIND", "Outbox", "Stream"]

BEHIND: Final = 1_000  # messages that a client may leave unread
_UNREAD: Final = LONGEST  # bytes of these messages
_PATIENCE: Final = 300.0  # seconds for a client to read sent messages


class Outbox:
    """Messages in their order, until the client reads them. An answer always has room."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()
        self._bytes = 0

    def put(self, message: Message) -> bool:
        """Add a message; return False if the client is too far behind."""
        size = len(message.raw)
        full = self._queue.qsize() >= BEHIND or self._bytes + size > _UNREAD
        if full and message.kind != "response":
            return False
        self._bytes += size
        self._queue.put_nowait(message)
        return True

    def end(self) -> None:
        """Note that no more messages will come."""
        self._queue.put_nowait(None)

    async def get(self) -> Message | None:
        """Return the next message; None after the last."""
        message = await self._queue.get()
        if message is not None:
            self._bytes -= len(message.raw)
        return message


class Stream(EventSourceResponse):
    """Messages as events; `left` is called at the end, even if the stream never began.

    Args:
        messages: yields them.
        left: called at its end.
        headers: the headers of the response.
    """

    def __init__(
        self,
        messages: AsyncIterator[Message],
        left: Callable[[], Awaitable[None]],
        headers: dict[str, str],
    ) -> None:
        super().__init__(_events(messages), headers=headers, send_timeout=_PATIENCE)
        self._left = left

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the messages."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._left()


async def _events(messages: AsyncIterator[Message]) -> AsyncIterator[dict[str, str]]:
    async for message in messages:
        yield {"event": "message", "data": message.raw.decode()}
