"""The proxy as a server of its own, by HTTP: each client's conversation is a session."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import uvicorn
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rollcage_mcp.conversation import Conversation, Send
from rollcage_mcp.errors import MessageInvalid
from rollcage_mcp.lines import LONGEST
from rollcage_mcp.messages import Id, Message, as_failure, parse

__all__ = ["Talk", "proxy_app", "serve_http"]

Talk = Callable[[Send], contextlib.AbstractAsyncContextManager[Conversation]]
"""Opens a conversation; it is given what sends a message to the client."""

_log: Final = logging.getLogger("rollcage.mcp")

_SESSION: Final = "mcp-session-id"
_MOST: Final = 1_000  # conversations at once
_END: Final = None


class _Client:
    """A client's conversation, and where what is sent to it goes."""

    def __init__(self) -> None:
        self.id = secrets.token_urlsafe(24)
        self.conversation: Conversation
        self.streams: dict[Id, asyncio.Queue[Message | None]] = {}
        self.listening: asyncio.Queue[Message | None] | None = None
        self.unheard: list[Message] = []  # sent before anybody listened
        self.opened = asyncio.Event()
        self.ends = asyncio.Event()
        self.task: asyncio.Task[None]

    async def live(self, talk: Talk) -> None:
        """Be in a conversation until it is to end: it is entered and left in one task."""
        try:
            async with talk(self.send) as self.conversation:
                self.opened.set()
                await self.ends.wait()
        finally:
            self.opened.set()

    async def end(self) -> None:
        """End the conversation. What halted it is on record, and was told to the client."""
        self.ends.set()
        await asyncio.wait({self.task})
        self.task.exception()

    async def send(self, message: Message) -> None:
        """Send a message: an answer to whoever asked, all else with what is being answered."""
        if message.kind == "response":
            stream = self.streams.pop(message.id, None)
            if stream is not None:
                stream.put_nowait(message)
                stream.put_nowait(_END)
            return
        stream = next(iter(self.streams.values()), None) or self.listening
        if stream is None:
            self.unheard.append(message)
        else:
            stream.put_nowait(message)


class _Proxy:
    def __init__(self, talk: Talk, token: str | None) -> None:
        self._talk = talk
        self._token = token
        self._clients: dict[str, _Client] = {}
        self._stateless: _Client | None = None  # the one of all requests without a handshake
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
        if message.id in client.streams:
            return _error(400, -32600, f"the request {message.id!r} is still being answered")
        stream = client.streams[message.id] = asyncio.Queue()
        await client.conversation.take(message)
        first = await stream.get()
        assert first is not None
        if first.kind == "response":
            return Response(first.raw, media_type="application/json", headers=headers)
        return EventSourceResponse(_events(first, stream), headers=headers)

    async def get(self, request: Request) -> Response:
        """Listen to what the server sends by itself."""
        if (refused := self._refused(request)) is not None:
            return refused
        client = self._clients.get(request.headers.get(_SESSION, ""))
        if client is None:
            return _error(404, -32001, "no such session")
        if client.listening is not None:
            return _error(409, -32000, "somebody listens in this session already")
        client.listening = asyncio.Queue()
        for message in client.unheard:
            client.listening.put_nowait(message)
        client.unheard.clear()
        return EventSourceResponse(_listen(client), headers={_SESSION: client.id})

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

    # --- who is there ----------------------------------------------------------------------------

    def _refused(self, request: Request) -> Response | None:
        """Why a request is not taken: it comes from a page of somebody else's, or has no token."""
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
            if len(self._clients) >= _MOST:
                return _error(503, -32000, f"{_MOST} conversations are open: try again later")
            client = await self._opened()
            self._clients[client.id] = client
            return client
        async with self._opening:
            if self._stateless is None:
                self._stateless = await self._opened()
        return self._stateless

    async def _opened(self) -> _Client:
        client = _Client()
        client.task = asyncio.create_task(client.live(self._talk))
        await client.opened.wait()
        if client.task.done():
            client.task.result()  # it could not be opened: raises what says why
        return client


def proxy_app(talk: Talk, *, token: str | None = None, hosts: tuple[str, ...]) -> Starlette:
    """The proxy as an ASGI application with one endpoint, `/mcp`.

    Args:
        talk: opens a conversation.
        token: what clients have to send as a bearer token; None: nothing.
        hosts: the names by which it may be asked for.
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


async def serve_http(talk: Talk, *, port: int, token: str | None) -> None:
    """Serve on loopback until a signal ends it. It tells on standard error where it is."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        port = listening.getsockname()[1]
        app = proxy_app(talk, token=token, hosts=("127.0.0.1", "localhost"))
        _log.warning("serving on http://127.0.0.1:%d/mcp", port)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
        await uvicorn.Server(config).serve([listening])


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    length = 0
    async for part in request.stream():
        parts.append(part)
        length += len(part)
        if length > LONGEST:
            raise MessageInvalid(f"a message is longer than {LONGEST // 2**20} MiB")
    return b"".join(parts)


def _error(status: int, code: int, text: str) -> Response:
    failure: dict[str, Any] = {**as_failure(0, code, text).data, "id": None}
    return JSONResponse(failure, status_code=status)


async def _events(first: Message, stream: asyncio.Queue[Message | None]) -> AsyncIterator[Any]:
    message: Message | None = first
    while message is not None:
        yield {"event": "message", "data": message.raw.decode()}
        message = await stream.get()


async def _listen(client: _Client) -> AsyncIterator[Any]:
    stream = client.listening
    assert stream is not None
    try:
        while (message := await stream.get()) is not None:
            yield {"event": "message", "data": message.raw.decode()}
    finally:
        client.listening = None
