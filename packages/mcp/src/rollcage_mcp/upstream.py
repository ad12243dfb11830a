"""The proxy's view of a server: requests that are answered by id, and the server's own messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from rollcage_mcp.errors import MessageInvalid, ServerGone
from rollcage_mcp.lines import LONGEST, LineWriter, lines
from rollcage_mcp.messages import Id, Message, parse

__all__ = ["ServerProcess", "Transport", "Upstream"]

_log: Final = logging.getLogger("rollcage.mcp")

_ENDS_WITHIN: Final = 2.0  # seconds for a server to end without a signal, then once more to obey


class Transport(Protocol):
    """How messages reach a server and come from it."""

    async def send(self, raw: bytes) -> None:
        """Send one message.

        Raises:
            ServerGone: the server can't be reached any more.
        """

    def received(self) -> AsyncIterator[bytes]:
        """Yield the server's messages, until it ends.

        Raises:
            ServerGone: the server broke the protocol.
        """
        ...

    async def close(self) -> None:
        """End the connection, and the process that was started for it."""


class ServerProcess:
    """A server that is a process of this machine: a message is a line of its pipes.

    Args:
        process: as asyncio started it.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018 - both are piped
        self._process = process
        self._writer = LineWriter(process.stdin)
        self._reader = process.stdout

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        longest: int = LONGEST,
    ) -> ServerProcess:
        """Start a server.

        Args:
            command: the program and its arguments.
            env: variables besides those of this process.
            cwd: its working directory.
            longest: the most bytes that a message of it may have.

        Raises:
            ServerGone: the server can't be started; says why.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                limit=longest,
                start_new_session=True,  # Ctrl-C ends the proxy, which then ends the server
            )
        except (OSError, ValueError) as error:
            raise ServerGone(f"the server {command[0]!r} can't be started: {error}") from error
        return cls(process)

    async def send(self, raw: bytes) -> None:
        """Send one message. Raises `ServerGone`."""
        try:
            await self._writer.write(raw)
        except (ConnectionError, RuntimeError) as error:
            raise ServerGone(f"the server reads no more{self._ended()}") from error

    async def received(self) -> AsyncIterator[bytes]:
        """Yield the server's messages, until it ends. Raises `ServerGone`."""
        try:
            async for line in lines(self._reader):
                yield line
        except MessageInvalid as error:
            raise ServerGone(str(error)) from None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _ENDS_WITHIN)
        raise ServerGone(f"the server has ended{self._ended()}")

    def _ended(self) -> str:
        code = self._process.returncode
        if code is None:
            return ""
        return f" (signal {-code})" if code < 0 else f" (exit code {code})"

    async def close(self) -> None:
        """Close its input and wait for its end; tell it to end, then kill it."""
        self._writer.close()
        for wanted in (None, signal.SIGTERM, signal.SIGKILL):
            if wanted is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, wanted)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _ENDS_WITHIN)
                return


class Upstream:
    """Sends requests to a server and waits for their answers; passes on the server's own messages.

    Args:
        connect: starts the server, or connects to it.
        deliver: gets each request and notification of the server, in their order.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Transport]],
        deliver: Callable[[Message], Awaitable[None]],
    ) -> None:
        self._connect = connect
        self._deliver = deliver
        self._connection: Transport | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[Id, asyncio.Future[Message]] = {}
        self._starting = asyncio.Lock()
        self.gone: ServerGone | None = None

    @property
    def is_up(self) -> bool:
        """Whether it is connected, and has not ended since."""
        return self._connection is not None and self.gone is None

    async def start(self) -> None:
        """Connect, once. Raises `ServerGone`."""
        async with self._starting:
            if self._connection is None:
                self._connection = await self._connect()
                self._reading = asyncio.create_task(self._read(self._connection))

    async def request(self, message: Message) -> Message:
        """Send a request, and wait for its response.

        Raises:
            ServerGone: the server ended before it answered.
        """
        answer = asyncio.get_running_loop().create_future()
        self._waiting[message.id] = answer
        try:
            await self.send(message)
            response: Message = await answer
            return response
        finally:
            self._waiting.pop(message.id, None)

    async def send(self, message: Message) -> None:
        """Send a message without an answer. Raises `ServerGone`."""
        if self._connection is None or self.gone is not None:
            raise self.gone or ServerGone("the server was not started")
        await self._connection.send(message.raw)

    async def _read(self, connection: Transport) -> None:
        try:
            async for line in connection.received():
                await self._take(line)
        except ServerGone as error:
            self.gone = error
        except Exception as error:  # noqa: BLE001 - the waiting request gets the error
            _log.exception("the server's output can't be read any more")
            self.gone = ServerGone(f"it can't be read any more: {type(error).__name__}: {error}")
        else:
            self.gone = ServerGone("the server has ended")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self.gone)

    async def _take(self, line: bytes) -> None:
        try:
            message = parse(line)
        except MessageInvalid as error:
            _log.warning("dropped a line of the server: %s", error)
            return
        if message.kind != "response":
            await self._deliver(message)
            return
        answer = self._waiting.get(message.id)
        if answer is None or answer.done():
            _log.warning("dropped an answer of the server to no request: id %.100r", message.id)
        else:
            answer.set_result(message)

    async def close(self) -> None:
        """End the connection. Waiting requests learn that no answer will come."""
        if self._connection is None:
            return
        await self._connection.close()
        if self._reading is not None:
            await self._reading
