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

from rollcage_mcp.conversation import GRACE, Conversation, ServerDeclarations
from rollcage_mcp.errors import MessageInvalid
from rollcage_mcp.lines import lines, reader_of, writer_of
from rollcage_mcp.messages import Message, as_failure, parse
from rollcage_mcp.upstream import Transport

__all__ = ["Connect", "Opening", "serve_stdio"]

Connect = Callable[[], Awaitable[Transport]]
Opening = Callable[[], tuple[Session, Connect | None, ServerDeclarations]]
"""Makes the parts of a conversation: a session, not entered yet; the server; the declarations."""

_log: Final = logging.getLogger("rollcage.mcp")


_PATIENCE: Final = 5.0  # seconds for a client to begin, to be told why it is not served


async def serve_stdio(
    opening: Opening, *, met: Callable[[Conversation], None] = lambda _: None
) -> None:
    """Serve the client at standard input and output, until it closes the input or a signal ends it.

    A client that can't be served gets the reason as the error of its first request.

    Args:
        opening: makes the parts of the conversation.
        met: gets the conversation, for an approver that asks the client.

    Raises:
        RollcageError: the error that halted the session, or that prevented it.
    """
    is_person = sys.stdin.isatty()
    reader = await reader_of(sys.stdin.buffer)
    writer = await writer_of(sys.stdout.buffer)

    async def send(message: Message) -> None:
        with contextlib.suppress(ConnectionError):  # the client reads no more
            await writer.write(message.raw)

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        try:
            session, connect, declared = opening()
            await stack.enter_async_context(session)
        except Exception as error:
            if not is_person:
                await _refuse(reader, send, error)
            raise
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


async def _refuse(
    reader: asyncio.StreamReader, send: Callable[[Message], Awaitable[None]], error: Exception
) -> None:
    """Answer the client's first request with the reason why it is not served."""
    with contextlib.suppress(TimeoutError, MessageInvalid):
        async with asyncio.timeout(_PATIENCE):
            async for line in lines(reader):
                message = parse(line)
                if message.kind == "request":
                    data = {"rollcage": type(error).__name__}
                    await send(as_failure(message.id, -32000, str(error), data))
                    return


def _unreadable(text: str) -> Message:
    failure = as_failure("", -32700, text)
    return Message(failure.raw.replace(b'"id":""', b'"id":null', 1), failure.data, "response")
