"""A server that is started on the first request, with the client's own handshake."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rollcage_mcp.errors import ServerError, ServerGone
from rollcage_mcp.messages import Message, as_notification, as_request, result_of
from rollcage_mcp.upstream import Transport, Upstream

__all__ = ["GreetedServer"]


class GreetedServer:
    """A server of one conversation.

    Args:
        connect: starts it, or connects to it; None without a server (a replay).
        deliver: gets each of its requests and notifications, in their order.

    Attributes:
        is_live: whether there is a server.
        hello: the client's beginning (`initialize`); None before it.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Transport]] | None,
        deliver: Callable[[Message], Awaitable[None]],
    ) -> None:
        self.is_live = connect is not None
        self.hello: Message | None = None
        self._upstream = Upstream(connect or _nowhere, deliver)
        self._meta: dict[str, Any] = {}
        self._is_greeted = False
        self._opening: asyncio.Task[None] | None = None

    @property
    def gone(self) -> ServerGone | None:
        """Return why the server can't be reached; None if it can, or was not needed yet."""
        return self._upstream.gone

    async def request(self, message: Message) -> Message:
        """Return the server's answer to a request, when it is `ready`.

        Raises:
            ServerGone: the server ended before it answered.
        """
        return await self._upstream.request(message)

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request of the proxy's own.

        Raises:
            ServerError: the server answers with an error.
            ServerGone: the server can't be reached, or ended before it answered.
        """
        await self.ready()
        return result_of(await self.request(self.own_request(method, params)))

    def own_request(self, method: str, params: Mapping[str, Any]) -> Message:
        """Return a request of the proxy's own, in the client's era."""
        return as_request(f"rollcage-{secrets.token_hex(8)}", method, {**params, **self._meta})

    async def pass_on(self, message: Message) -> None:
        """Pass on a message without an answer, if the server was started."""
        if self._upstream.is_up:
            with contextlib.suppress(ServerGone, ServerError):  # the waiting requests get the error
                await self._upstream.send(message)

    def note_meta(self, message: Message) -> None:
        """Use the client's own `_meta` for requests; without a handshake, each request has one."""
        meta = {name: each for name, each in message.meta.items() if name != "progressToken"}
        self._meta = {"_meta": meta} if meta else {}

    async def ready(self, request: Message | None = None) -> None:
        """Start the server and make the handshake, unless the request is one.

        Raises:
            ServerGone: the server can't be reached.
            ServerError: the server refuses the handshake.
        """
        opening = self._opening
        if opening is None or opening.done():
            if self._upstream.is_up and (self._is_greeted or self.hello is None):
                return
            opening = self._opening = asyncio.create_task(self._open(request))
        await asyncio.shield(opening)  # others may wait for it when this task is cancelled

    async def _open(self, request: Message | None) -> None:
        await self._upstream.start()
        if self._is_greeted or self.hello is None:
            return
        if request is not self.hello:
            hello = as_request(f"rollcage-{secrets.token_hex(8)}", "initialize", self.hello.params)
            result_of(await self._upstream.request(hello))
            await self._upstream.send(as_notification("notifications/initialized"))
        self._is_greeted = True

    async def close(self) -> None:
        """End the connection, and the server, if it was started for it."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._upstream.close()


async def _nowhere() -> Transport:
    raise ServerGone("no server is there: this is a replay")
