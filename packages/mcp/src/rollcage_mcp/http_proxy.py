"""The proxy as a server of its own, by HTTP: each client's conversation is a session."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from rollcage_mcp.conversation import Conversation, Send
from rollcage_mcp.errors import MessageInvalid
from rollcage_mcp.http_streams import Outbox, Stream
from rollcage_mcp.lines import LONGEST
from rollcage_mcp.messages import (
    Id,
    Message,
    as_failure,
    as_notification,
    as_request,
    parse,
    readdressed,
)

__all__ = ["Talk", "proxy_app", "serve_http"]

Talk = Callable[[Send], contextlib.AbstractAsyncContextManager[Conversation]]
"""Opens a conversation; it gets the function that sends a message to the client."""

_log: Final = logging.getLogger("rollcage.mcp")

_SESSION: Final = "mcp-session-id"
_MOST: Final = 1_000  # conversations at once
_PATIENCE: Final = 30.0  # seconds for a client to complete a request that it began


class _Client:
    """A client's conversation, and the streams of its messages."""

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(24)
        self.conversation: Conversation
        self.streams: dict[Id, Outbox] = {}
        self.is_heard = False  # a stream is listening
        self.unasked = Outbox()  # messages that belong to no request
        self.opened = asyncio.Event()
        self.ends = asyncio.Event()
        self.task: asyncio.Task[None]

    async def live(self, talk: Talk) -> None:
        """Live in a conversation until its end, so that one task enters and leaves it."""
        try:
            async with talk(self.send) as self.conversation:
                self.opened.set()
                await self.ends.wait()
        finally:
            self.opened.set()

    async def end(self) -> None:
        """End the conversation, and answer waiting requests.

        The reason of a halt is on record, and the client was told.
        """
        self.ends.set()
        await asyncio.wait({self.task})
        self.task.exception()
        for number in list(self.streams):
            await self.send(as_failure(number, -32001, "the conversation was ended before that"))
        self.unasked.end()

    @property
    def is_idle(self) -> bool:
        """Return whether no request waits for it."""
        return not self.streams and not self.is_heard

    async def send(self, message: Message) -> None:
        """Send a message: an answer to its request, any other with the request being answered."""
        if message.kind == "response":
            stream = self.streams.pop(message.id, None)
            if stream is not None:  # otherwise the request's sender has gone
                stream.put(message)
        elif not (self._of(message) or self.unasked).put(message):
            await self._unread(message)

    async def _unread(self, message: Message) -> None:
        """Handle a message that the client is too far behind for; answer the server's requests."""
        _log.warning("dropped %.100r: the client does not read", message.method)
        if message.kind == "request":
            text = "the client does not read what it is asked"
            await self.conversation.take(as_failure(message.id, -32000, text))

    def _of(self, message: Message) -> Outbox | None:
        """Return the stream of the request being answered, for messages sent meanwhile."""
        token = message.params.get("progressToken")
        known = self.streams.get(token) if isinstance(token, str | int) else None
        return known or next(reversed(self.streams.values()), None)


class _Stateless(_Client):
    """All clients without a handshake: their ids and tokens are kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self._theirs: dict[Id, Message] = {}  # by our id

    def taken_in(self, message: Message) -> Message:
        """Return a client's request with an id, and a progress token, of our own."""
        own = secrets.token_hex(12)
        self._theirs[own] = message
        params = message.data.get("params")
        if "progressToken" in message.meta:
            params = {**message.params, "_meta": {**message.meta, "progressToken": own}}
        return as_request(own, message.method, params)

    def forget(self, own: Id) -> None:
        """Forget a request whose sender has gone."""
        self._theirs.pop(own, None)

    async def send(self, message: Message) -> None:
        """Send a message to its one client; to none if the client is not certain."""
        if message.kind == "response":
            await self._answer(message)
            return
        token = message.params.get("progressToken")
        asked = self._theirs.get(token) if isinstance(token, str) else None
        if asked is not None:
            own = {**message.params, "progressToken": asked.meta["progressToken"]}
            self._put(token, as_notification(message.method, own))
        elif len(self.streams) == 1 and token is None:
            self._put(next(iter(self.streams)), message)
        else:
            _log.warning("dropped %.100r of the server: several clients wait", message.method)

    async def _answer(self, message: Message) -> None:
        asked = self._theirs.pop(message.id, None)
        stream = self.streams.pop(message.id, None)
        if asked is not None and stream is not None:
            stream.put(readdressed(message, asked.id))

    def _put(self, own: Any, message: Message) -> None:
        stream = self.streams.get(own)
        if stream is not None and not stream.put(message):
            _log.warning("dropped %.100r: the client does not read", message.method)


class _Proxy:
    def __init__(self, talk: Talk, token: str | None) -> None:
        self._talk = talk
        self._token = token
        self._clients: dict[str, _Client] = {}
        self._stateless: _Stateless | None = None
        self._opening = asyncio.Lock()

    async def post(self, request: Request) -> Response:
        """Take one message."""
        if (refused := self._refused(request)) is not None:
            return refused
        try:
            message = parse(await _body(request))
        except MessageInvalid as error:
            return _error(400, -32700, str(error))
        client = await self._client_of(request, message)
        if isinstance(client, Response):
            return client
        headers = {} if client is self._stateless else {_SESSION: client.id}
        if message.kind != "request":
            await client.conversation.take(message)
            return Response(status_code=202, headers=headers)
        if isinstance(client, _Stateless):
            message = client.taken_in(message)
        elif message.id in client.streams:
            return _error(400, -32600, f"the request {message.id!r} is still being answered")
        stream = client.streams[message.id] = Outbox()
        await client.conversation.take(message)
        first = await _first(request, stream)
        if first is None:
            await _left(client, message)
            return Response(status_code=202)  # no client reads it
        if first.kind == "response":
            return Response(first.raw, media_type="application/json", headers=headers)
        left = functools.partial(_left, client, message)
        return Stream(_until_answered(first, stream), left, headers)

    async def get(self, request: Request) -> Response:
        """Listen to the server's own messages."""
        if (refused := self._refused(request)) is not None:
            return refused
        client = self._clients.get(request.headers.get(_SESSION, ""))
        if client is None:
            return _error(404, -32001, "no such session")
        if client.is_heard:
            return _error(409, -32000, "somebody listens in this session already")
        client.is_heard = True

        async def left() -> None:
            client.is_heard = False

        return Stream(_until_ended(client.unasked), left, {_SESSION: client.id})

    async def delete(self, request: Request) -> Response:
        """End a conversation."""
        if (refused := self._refused(request)) is not None:
            return refused
        client = self._clients.pop(request.headers.get(_SESSION, ""), None)
        if client is None:
            return _error(404, -32001, "no such session")
        await client.end()
        return Response(status_code=204)

    async def close(self) -> None:
        """End all conversations."""
        for client in [*self._clients.values(), *filter(None, [self._stateless])]:
            await client.end()

    # --- the clients -----------------------------------------------------------------------------

    def _refused(self, request: Request) -> Response | None:
        """Return why a request is refused: it comes from a foreign page, or has no token."""
        origin = request.headers.get("origin")
        if origin is not None and origin.split("://")[-1] != request.headers.get("host"):
            return _error(403, -32000, "this origin may not talk to this server")
        if self._token is not None:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                return _error(401, -32000, "a bearer token is needed")
        return None

    async def _client_of(self, request: Request, message: Message) -> _Client | Response:
        known = request.headers.get(_SESSION)
        if known is not None:
            client = self._clients.get(known)
            return client or _error(404, -32001, "no such session: begin with initialize")
        if message.kind == "request" and message.method == "initialize":
            if not await self._has_room():
                return _error(503, -32000, f"{_MOST} conversations are open: try again later")
            client = _Client()
            if (failed := await self._open(client)) is not None:
                return failed
            self._clients[client.id] = client
            return client
        async with self._opening:
            stateless = self._stateless
            if stateless is not None and stateless.conversation.is_over:
                self._stateless = None  # the new clients were not in it
                await stateless.end()
            if self._stateless is None:
                client = _Stateless()
                if (failed := await self._open(client)) is not None:
                    return failed
                self._stateless = client
        return self._stateless

    async def _has_room(self) -> bool:
        """Return whether one more conversation may begin; the oldest idle one makes room."""
        if len(self._clients) < _MOST:
            return True
        idle = next((each for each in self._clients.values() if each.is_idle), None)
        if idle is None:
            return False
        del self._clients[idle.id]
        await idle.end()
        return True

    async def _open(self, client: _Client) -> Response | None:
        """Begin a conversation; return the response for the client if it can't begin."""
        client.task = asyncio.create_task(client.live(self._talk))
        await client.opened.wait()
        if not client.task.done():
            return None
        error = client.task.exception()
        _log.error("no conversation can begin: %s", error)
        return _error(503, -32000, f"no conversation can begin: {error}")


def proxy_app(talk: Talk, *, token: str | None = None, hosts: tuple[str, ...]) -> Starlette:
    """Return the proxy as an ASGI application with one endpoint, `/mcp`.

    Args:
        talk: opens a conversation.
        token: the bearer token of clients; None: none.
        hosts: the accepted host names.
    """
    proxy = _Proxy(talk, token)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:  # noqa: ARG001 - Starlette gives it
        yield
        await proxy.close()

    methods: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
        "POST": proxy.post,
        "GET": proxy.get,
        "DELETE": proxy.delete,
    }
    routes = [Route("/mcp", each, methods=[method]) for method, each in methods.items()]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return Starlette(routes=routes, middleware=[guard], lifespan=lifespan)


class Impatient(H11Protocol):
    """HTTP with a time limit for the beginning of a request."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(_PATIENCE, self._began)

    def _began(self) -> None:
        if self.cycle is None:
            self.transport.close()


async def serve_http(talk: Talk, *, port: int, token: str | None) -> None:
    """Serve on loopback until a signal ends it. Print the address on standard error."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        port = listening.getsockname()[1]
        app = proxy_app(talk, token=token, hosts=("127.0.0.1", "localhost"))
        _log.warning("serving on http://127.0.0.1:%d/mcp", port)
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=5, http=Impatient
        )
        await uvicorn.Server(config).serve([listening])


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    length = 0
    pieces = aiter(request.stream())
    while True:
        try:
            part = await asyncio.wait_for(anext(pieces, None), _PATIENCE)
        except ClientDisconnect:
            raise MessageInvalid("the client has gone in the midst of it") from None
        except TimeoutError:
            text = f"nothing came of the rest of the request for {_PATIENCE:.0f} seconds"
            raise MessageInvalid(text) from None
        if part is None:
            return b"".join(parts)
        parts.append(part)
        length += len(part)
        if length > LONGEST:
            raise MessageInvalid(f"a message is longer than {LONGEST // 2**20} MiB")


def _error(status: int, code: int, text: str) -> Response:
    failure: dict[str, Any] = {**as_failure(0, code, text).data, "id": None}
    return JSONResponse(failure, status_code=status)


async def _first(request: Request, stream: Outbox) -> Message | None:
    """Return the first message for a client; None if the client has gone first."""
    waits = asyncio.create_task(stream.get())
    leaves = asyncio.ensure_future(request.receive())  # the body is read: the next event is the end
    try:
        await asyncio.wait({waits, leaves}, return_when=asyncio.FIRST_COMPLETED)
        return waits.result() if waits.done() else None
    finally:
        waits.cancel()
        leaves.cancel()


async def _left(client: _Client, message: Message) -> None:
    """Handle a client that has gone. Without a handshake, that cancels its request."""
    waited = client.streams.pop(message.id, None) is not None
    if waited and isinstance(client, _Stateless):
        client.forget(message.id)
        note = as_notification("notifications/cancelled", {"requestId": message.id})
        await client.conversation.take(note)


async def _until_answered(first: Message, stream: Outbox) -> AsyncIterator[Message]:
    message: Message | None = first
    while message is not None:
        yield message
        message = None if message.kind == "response" else await stream.get()


async def _until_ended(stream: Outbox) -> AsyncIterator[Message]:
    while (message := await stream.get()) is not None:
        yield message
