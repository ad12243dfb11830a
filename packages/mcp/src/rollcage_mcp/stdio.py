"""The proxy of one client at this process's standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from rollcage import Session

from rollcage_mcp.conversation import GRACE, Conversation, Declared
from rollcage_mcp.errors import MessageInvalid
from rollcage_mcp.lines import lines, reader_of, writer_of
from rollcage_mcp.messages import Message, as_failure, parse
from rollcage_mcp.upstream import Connection

__all__ = ["serve_stdio"]

_log: Final = logging.getLogger("rollcage.mcp")


async def serve_stdio(
    session: Session,
    connect: Callable[[], Awaitable[Connection]] | None,
    *,
    declared: Declared = Declared(),  # noqa: B008 - immutable
    met: Callable[[Conversation], None] = lambda _: None,
) -> None:
    """Serve the client at standard input and output, until it closes that or a signal ends it.

    Args:
        session: not entered yet; it is that of this conversation.
        connect: see `Conversation`.
        declared: of the server's tools.
        met: is told the conversation, for an approver that asks the client.

    Raises:
        RollcageError: what halted the session.
    """
    reader = await reader_of(sys.stdin.buffer)
    writer = await writer_of(sys.stdout.buffer)

    async def send(message: Message) -> None:
        with contextlib.suppress(ConnectionError):  # the client reads no more
            await writer.write(message.raw)

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stopped.set)
    async with session:
        conversation = Conversation(session, connect, send, declared=declared)
        met(conversation)
        reading = asyncio.create_task(_read(reader, conversation, send))
        stopping = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing = asyncio.create_task(conversation.close(0 if stopped.is_set() else GRACE))
            await asyncio.wait({closing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not closing.done():  # told to stop while it waited
                await conversation.close()
            await closing
            stopping.cancel()
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading


async def _read(
    reader: asyncio.StreamReader,
    conversation: Conversation,
    send: Callable[[Message], Awaitable[None]],
) -> None:
    try:
        async for line in lines(reader):
            try:
                message = parse(line)
            except MessageInvalid as error:
                _log.warning("refused a line of the client: %s", error)
                await send(_unreadable(str(error)))
            else:
                await conversation.take(message)
    except MessageInvalid as error:
        _log.error("the client broke the protocol: %s", error)
        await send(_unreadable(str(error)))


def _unreadable(text: str) -> Message:
    failure = as_failure("", -32700, text)
    return Message(failure.raw.replace(b'"id":""', b'"id":null', 1), failure.data, "response")
