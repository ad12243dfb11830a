"""A server that is reached by HTTP (the transport "streamable HTTP")."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import httpx
from httpx_sse import SSEError

from rollcage_mcp.errors import MessageInvalid, ServerError, ServerGone
from rollcage_mcp.events import events_of
from rollcage_mcp.lines import LONGEST
from rollcage_mcp.messages import Message, parse

__all__ = ["HttpServer"]

_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_NAMES: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_PLAIN: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_TIMEOUT: Final = httpx.Timeout(30.0, read=None)  # a tool may take any time
_REFUSED: Final = frozenset({*range(300, 400), 401, 403, 404, 405, 406, 411, 413, 415, 426, 429})
"""Statuses by which a server, or a proxy before it, says that it did not accept a message."""
_TRIES: Final = 5  # for a stream that breaks off without anything new
_LONGEST_WAIT: Final = 10.0  # seconds before the next request for it, even if the server wants more


class _Stream:
    """How far a server's answer was read, for a request of the rest."""

    def __init__(self) -> None:
        self.last_id = ""
        self.wait = 1.0


class HttpServer:
    """A connection to a server by HTTP: each message is a POST, whose answer may be a stream.

    If the server numbers its events, a broken stream is resumed. If the server has forgotten the
    session (404), the handshake is repeated and the message sent once more, because the server did
    not accept it.

    Args:
        url: its endpoint.
        headers: sent with each request (for example authorization).
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._client = httpx.AsyncClient(headers=dict(headers or {}), timeout=_TIMEOUT)
        self._received: asyncio.Queue[bytes | ServerGone] = asyncio.Queue()
        self._session: dict[str, str] = {}  # headers from the server, or from the handshake
        self._listening: asyncio.Task[None] | None = None
        self._hello: Message | None = None
        self._greeting = asyncio.Lock()

    async def send(self, raw: bytes) -> None:
        """Send a message, and take in the answer.

        Raises:
            ServerError: the message was not accepted: the server can't be reached, or says so.
            ServerGone: the server broke off while it answered.
        """
        message = parse(raw)
        if message.kind == "request" and message.method == "initialize":
            self._hello = message
        session = dict(self._session)
        if not await self._post(message, session):
            await self._greet_again(session)
            if not await self._post(message, self._session):
                raise ServerError(-32001, f"{self._url} knows no session, not even a new one")
        if message.kind == "notification" and message.method == "notifications/initialized":
            self._listen_anew()

    async def _post(self, message: Message, session: Mapping[str, str]) -> bool:
        """Send a message in a session; return False if the server does not know the session."""
        headers = {
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",
            "content-type": "application/json",
            **session,
            **_headers_of(message),
        }
        try:
            async with self._client.stream(
                "POST", self._url, content=message.raw, headers=headers
            ) as response:
                if response.status_code == 404 and "mcp-session-id" in session:
                    return False
                stream = await self._take(response, message)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # nothing was sent
            raise ServerError(-32001, f"{self._url} can't be reached: {error}") from None
        except (httpx.HTTPError, SSEError) as error:
            raise ServerGone(f"{self._url}: {type(error).__name__}: {error}") from error
        if stream is not None:
            await self._go_on(stream, message)
        return True

    async def _greet_again(self, expired: Mapping[str, str]) -> None:
        """Begin a new session in place of a session that the server has forgotten."""
        async with self._greeting:
            if self._session != expired or self._hello is None:
                return  # another message has done it
            self._session = {}
            headers = {
                "accept": "application/json, text/event-stream",
                "content-type": "application/json",
            }
            try:
                async with self._client.stream(
                    "POST", self._url, content=self._hello.raw, headers=headers
                ) as response:
                    await self._take(response, self._hello, given=False)
                note = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
                headers |= self._session
                await self._client.post(self._url, content=note, headers=headers)
            except (httpx.HTTPError, SSEError) as error:
                text = f"{self._url} has forgotten the session, and takes no new one: {error}"
                raise ServerError(-32001, text) from None
            self._listen_anew()

    # --- the answers -----------------------------------------------------------------------------

    async def _take(
        self, response: httpx.Response, message: Message, *, given: bool = True
    ) -> _Stream | None:
        """Take in an answer; return an incomplete stream, to be resumed."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip()
        if "mcp-session-id" in response.headers:
            self._session["mcp-session-id"] = response.headers["mcp-session-id"]
        if kind == "text/event-stream" and response.is_success:
            stream = _Stream()
            with contextlib.suppress(httpx.ReadError, httpx.RemoteProtocolError):
                if await self._read(response, message, stream, given=given):
                    return None
            if message.kind != "request":
                return None
            if not stream.last_id:
                raise ServerGone(f"{self._url} ended its answer before it was whole")
            return stream
        body = await _body_of(response)
        # With any status: an error has a message, too.
        has_event = kind == "application/json" and bool(body)
        if has_event and self._give(body, message, given=given):
            return None
        if response.status_code in _REFUSED:
            raise ServerError(-32001, self._refusal(response, body))
        if not response.is_success or message.kind == "request":
            text = body[:200].decode(errors="replace")
            raise ServerGone(f"{self._url} answered {response.status_code}: {text!a}")
        return None

    def _refusal(self, response: httpx.Response, body: bytes) -> str:
        where = response.headers.get("location")
        if where is not None and 300 <= response.status_code < 400:
            return (
                f"{self._url} sends us on to {where!a}, where nothing is sent unasked: name the "
                f"address itself with --upstream"
            )
        text = body[:200].decode(errors="replace")
        return f"{self._url} did not take it: {response.status_code} {text!a}"

    async def _read(
        self, response: httpx.Response, message: Message, stream: _Stream, *, given: bool = True
    ) -> bool:
        """Take in the events of a stream; return whether the answer was among them."""
        async for event in events_of(response):
            stream.last_id = event.id or stream.last_id
            if event.retry is not None:
                stream.wait = min(event.retry / 1000, _LONGEST_WAIT)
            has_event = event.event == "message" and bool(event.data)
            if has_event and self._give(event.data.encode(), message, given=given):
                return True
        return False

    async def _go_on(self, stream: _Stream, message: Message) -> None:
        """Request the rest of an answer whose stream broke off.

        Raises:
            ServerGone: the rest does not come.
        """
        tries = 0
        while tries < _TRIES:
            await asyncio.sleep(stream.wait)
            before, tries = stream.last_id, tries + 1
            headers = {"accept": "text/event-stream", "last-event-id": before, **self._session}
            with contextlib.suppress(httpx.TransportError, SSEError):
                async with self._client.stream("GET", self._url, headers=headers) as response:
                    if not response.is_success:
                        break
                    if await self._read(response, message, stream):
                        return
            if stream.last_id != before:
                tries = 0
        raise ServerGone(f"{self._url} ended its answer before it was whole, and did not go on")

    def _give(self, raw: bytes, request: Message, *, given: bool = True) -> bool:
        """Take in a message; return whether it is the answer to the request."""
        try:
            message = parse(raw)
        except MessageInvalid:
            self._received.put_nowait(raw)  # the reader reports its problem
            return False
        answers = message.kind == "response" and message.id == request.data.get("id")
        if given or not answers:
            self._received.put_nowait(raw)
        if answers and request.method == "initialize":
            result: Any = message.data.get("result")
            version = result.get("protocolVersion") if isinstance(result, dict) else None
            if isinstance(version, str):
                self._session["mcp-protocol-version"] = version
        return answers

    # --- the server's own messages ---------------------------------------------------------------

    def _listen_anew(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        """Take in the server's own messages, if it sends any."""
        own = {"accept": "text/event-stream", "accept-encoding": "identity"}
        headers = {**own, **self._session}
        with contextlib.suppress(httpx.HTTPError, SSEError, ServerGone):
            async with self._client.stream("GET", self._url, headers=headers) as response:
                if response.is_success:
                    async for event in events_of(response):
                        if event.event == "message" and event.data:
                            self._received.put_nowait(event.data.encode())

    async def received(self) -> AsyncIterator[bytes]:
        """Yield the server's messages, until the connection is closed."""
        while not isinstance(raw := await self._received.get(), ServerGone):
            yield raw
        raise raw

    async def close(self) -> None:
        """End the session at the server, and the connection."""
        if self._listening is not None:
            self._listening.cancel()
        if "mcp-session-id" in self._session:
            with contextlib.suppress(httpx.HTTPError):
                await self._client.delete(self._url, headers=self._session, timeout=2.0)
        await self._client.aclose()
        self._received.put_nowait(ServerGone("the connection was closed"))


async def _body_of(response: httpx.Response) -> bytes:
    """Return the whole body.

    Raises:
        ServerGone: the body is longer than a message may be.
    """
    parts: list[bytes] = []
    length = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        length += len(part)
        if length > LONGEST:
            raise ServerGone(f"a message is longer than {LONGEST // 2**20} MiB")
    return b"".join(parts)


def _headers_of(message: Message) -> dict[str, str]:
    """Return the headers that repeat parts of a message without a handshake."""
    version: Any = message.meta.get(_VERSION) if message.kind == "request" else None
    if not isinstance(version, str):
        return {}
    headers = {"mcp-protocol-version": version, "mcp-method": message.method}
    name: Any = message.params.get(_NAMES.get(message.method, ""))
    if isinstance(name, str):
        headers["mcp-name"] = _as_header(name)
    return headers


def _as_header(text: str) -> str:
    """Return a text as a header's value; in Base64 if needed."""
    if _PLAIN.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="
