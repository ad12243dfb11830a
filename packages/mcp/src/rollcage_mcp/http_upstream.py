"""A server that is reached by HTTP (the transport "streamable HTTP")."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import httpx
from httpx_sse import EventSource, SSEError

from rollcage_mcp.errors import MessageInvalid, ServerError, ServerGone
from rollcage_mcp.lines import LONGEST
from rollcage_mcp.messages import Message, parse

__all__ = ["HttpServer"]

_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_NAMES: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_PLAIN: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_TIMEOUT: Final = httpx.Timeout(30.0, read=None)  # a tool may take as long as it takes


class HttpServer:
    """A connection to a server by HTTP: each message is a POST, whose answer may be a stream.

    Args:
        url: its endpoint.
        headers: sent with each request (authorization, say).
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._client = httpx.AsyncClient(headers=dict(headers or {}), timeout=_TIMEOUT)
        self._received: asyncio.Queue[bytes | ServerGone] = asyncio.Queue()
        self._session: dict[str, str] = {}  # headers that the server, or the handshake, has given
        self._listening: asyncio.Task[None] | None = None

    async def send(self, raw: bytes) -> None:
        """Send a message, and take in what it is answered with.

        Raises:
            ServerError: it can't be reached: nothing was sent.
            ServerGone: it refuses the message, or broke off while it answered.
        """
        message = parse(raw)
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            **self._session,
            **_headers_of(message),
        }
        try:
            async with self._client.stream(
                "POST", self._url, content=raw, headers=headers
            ) as response:
                await self._take(response, message)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # nothing was sent
            raise ServerError(-32001, f"{self._url} can't be reached: {error}") from None
        except (httpx.HTTPError, SSEError) as error:
            raise ServerGone(f"{self._url}: {type(error).__name__}: {error}") from error
        if message.kind == "notification" and message.method == "notifications/initialized":
            self._listening = asyncio.create_task(self._listen())

    async def _take(self, response: httpx.Response, message: Message) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip()
        if "mcp-session-id" in response.headers:
            self._session["mcp-session-id"] = response.headers["mcp-session-id"]
        if kind == "text/event-stream" and response.is_success:
            async for event in EventSource(response).aiter_sse():
                told = event.event == "message" and bool(event.data)
                if told and self._give(event.data.encode(), message):
                    return
            if message.kind == "request":
                raise ServerGone(f"{self._url} ended its answer before it was whole")
            return
        body = await _body_of(response)
        told = kind == "application/json" and bool(body)  # with any status, where it is an error
        if told and self._give(body, message):
            return
        if not response.is_success or message.kind == "request":
            text = body[:200].decode(errors="replace")
            raise ServerGone(f"{self._url} answered {response.status_code}: {text!a}")

    def _give(self, raw: bytes, request: Message) -> bool:
        """Take in a message; whether it is the answer to the request."""
        self._received.put_nowait(raw)
        try:
            message = parse(raw)
        except MessageInvalid:
            return False
        answers = message.kind == "response" and message.id == request.data.get("id")
        if answers and request.method == "initialize":
            result: Any = message.data.get("result")
            version = result.get("protocolVersion") if isinstance(result, dict) else None
            if isinstance(version, str):
                self._session["mcp-protocol-version"] = version
        return answers

    async def _listen(self) -> None:
        """Take in what the server sends by itself, where it does."""
        headers = {"accept": "text/event-stream", **self._session}
        with contextlib.suppress(httpx.HTTPError, SSEError):
            async with self._client.stream("GET", self._url, headers=headers) as response:
                if response.is_success:
                    async for event in EventSource(response).aiter_sse():
                        if event.event == "message" and event.data:
                            self._received.put_nowait(event.data.encode())

    async def received(self) -> AsyncIterator[bytes]:
        """What it sends, until the connection is closed."""
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
    """The whole body.

    Raises:
        ServerGone: it is longer than a message may be.
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
    """What a message's headers say again of it, where there is no handshake."""
    version: Any = message.meta.get(_VERSION) if message.kind == "request" else None
    if not isinstance(version, str):
        return {}
    headers = {"mcp-protocol-version": version, "mcp-method": message.method}
    name: Any = message.params.get(_NAMES.get(message.method, ""))
    if isinstance(name, str):
        headers["mcp-name"] = _as_header(name)
    return headers


def _as_header(text: str) -> str:
    """A text as a header's value; one that can't be sent as it is, in Base64."""
    if _PLAIN.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="
