"""The shield before every route: accepted hosts, size limits, response headers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LOCAL", "Shield", "host_of"]

LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_MOST_BYTES: Final = 1_000_000  # of a request's body
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def host_of(header: str) -> str:
    """Return the host in a `Host` header, without its port; empty if it is invalid."""
    try:
        return (urlsplit(f"//{header}").hostname or "") if "@" not in header else ""
    except ValueError:
        return ""


class Shield:
    """Refuses requests that must not reach a route, and adds security headers.

    Args:
        app: the application behind it.
        hosts: the accepted names of the server, besides those of this machine.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset((*LOCAL, *(host.lower() for host in hosts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no WebSockets here
        headers = Headers(scope=scope)
        refused = self._refusal(scope["method"], headers)
        if refused is not None:
            code, message = refused
            answer = PlainTextResponse(f"{message}\n", code)
            await answer(scope, receive, _guarded(send))
            return
        await self._app(scope, _bounded(receive), _guarded(send))

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_of(hosts[0]) not in self._hosts:
            return 421, "this server does not answer to that name: rollcage serve --allow-host NAME"
        origin = headers.get("origin")
        if method not in _SAFE and origin is not None:
            parts = urlsplit(origin)
            if parts.scheme not in ("http", "https") or parts.netloc != hosts[0]:
                return 403, "the request comes from another site"
        if headers.get("sec-fetch-site") == "cross-site" and method not in _SAFE:
            return 403, "the request comes from another site"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            return 413, f"the request has over {_MOST_BYTES} bytes"
        return None


def _bounded(receive: Receive) -> Receive:
    """Return a body that is refused if it turns out too long."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > _MOST_BYTES:
            raise HTTPException(413, f"the request has over {_MOST_BYTES} bytes")
        return message

    return bounded


def _guarded(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return guarded
