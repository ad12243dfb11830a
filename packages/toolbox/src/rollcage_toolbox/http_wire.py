"""One exchange over HTTP: to a checked address, in bounded time, with a bounded answer.

The name is resolved, checked and connected to in one place (`PinnedTransport`), so that a name that
resolves to another address a moment later (DNS rebinding) has no effect. TLS still verifies the
host's name: only the address is pinned.
"""

from __future__ import annotations

import functools
import ssl
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import httpcore
import httpx

from rollcage_toolbox.addresses import AddressRefused, Reachable, Resolver, Target, system_resolver
from rollcage_toolbox.errors import ToolboxError

__all__ = ["Exchange", "HttpFailed", "NoAnswer", "PinnedTransport", "exchange"]

_CHUNK: Final = 65_536


class HttpFailed(ToolboxError):
    """A request that was not made, or whose answer can't be accepted."""

    code = "http_failed"


class NoAnswer(TimeoutError):
    """A request was sent, wholly or partly, without an answer: it may have been carried out.

    As a TimeoutError it makes the outcome of a write unknown.
    """


class Exchange(NamedTuple):
    """An answer.

    Attributes:
        status: its status code.
        headers: by lower-case name; repeated headers are joined by commas.
        body: decoded.
        cut: whether the body is incomplete.
        charset: the charset in the answer.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    cut: bool
    charset: str | None


# --- connecting ----------------------------------------------------------------------------------


class _TimedStream(httpcore.NetworkStream):
    """A stream on which no operation waits past `deadline` (monotonic seconds)."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._deadline, httpcore.ReadTimeout, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._deadline, httpcore.WriteTimeout, timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        limit = _left(self._deadline, httpcore.ConnectTimeout, timeout)
        return _TimedStream(
            self._stream.start_tls(ssl_context, server_hostname, limit), self._deadline
        )

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(
    deadline: float, otherwise: type[httpcore.TimeoutException], timeout: float | None
) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise otherwise("the time for the whole request is over")
    return left if timeout is None else min(left, timeout)


class _PinnedBackend(httpcore.NetworkBackend):
    """Connects only to the checked addresses."""

    def __init__(
        self,
        reachable: Reachable,
        resolver: Resolver,
        backend: httpcore.NetworkBackend,
        deadline: float,
    ) -> None:
        self._reachable = reachable
        self._resolver = resolver
        self._backend = backend
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            addresses = self._reachable.addresses(host, port, self._resolver)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} can't be resolved: {error}") from error
        failed: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            limit = _left(self._deadline, httpcore.ConnectTimeout, timeout)
            try:
                stream = self._backend.connect_tcp(
                    address, port, limit, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
            else:
                return _TimedStream(stream, self._deadline)
        raise failed


class PinnedTransport(httpx.BaseTransport):
    """A transport for `httpx.Client` that reaches only allowed addresses.

    It checks the URL of each request, resolves the name itself, checks every address and connects
    to one of them. It makes a connection of its own for each request and knows no proxy. Give the
    client `trust_env=False`, or it bypasses this transport to a proxy of the environment.

    Args:
        reachable: the allowed addresses.
        seconds: how long a request may take as a whole, its answer included.
        resolver: returns all addresses of a name.
        backend: connects to an address; for tests, and for networks that need it.
        ssl_context: verifies the server's certificate.
    """

    def __init__(
        self,
        reachable: Reachable,
        *,
        seconds: float,
        resolver: Resolver = system_resolver,
        backend: httpcore.NetworkBackend | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._reachable = reachable
        self._seconds = seconds
        self._resolver = resolver
        self._backend = backend or httpcore.SyncBackend()
        self._ssl_context = ssl_context or _verifying()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Make one request.

        Raises:
            AddressRefused: the address is not allowed; nothing was sent.
            httpx.TransportError: a failure on the way.
        """
        target = self._reachable.check(str(request.url))
        url = request.url
        if (url.scheme, url.raw_host.decode(), url.port) not in _spellings(target):
            raise AddressRefused(f"{url} is read in two ways: as {target.url}, too")
        backend = _PinnedBackend(
            self._reachable, self._resolver, self._backend, time.monotonic() + self._seconds
        )
        pool = httpcore.ConnectionPool(
            ssl_context=self._ssl_context, max_keepalive_connections=0, network_backend=backend
        )
        assert isinstance(request.stream, httpx.SyncByteStream)
        asked = httpcore.Request(
            request.method,
            httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
        )
        try:
            answer = pool.handle_request(asked)
        except Exception as error:
            pool.close()
            raise _as_httpx(error) from error
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Answered(pool, answer), request=request
        )


@functools.cache
def _verifying() -> ssl.SSLContext:
    """Return the system's certificates; reading them takes longer than most requests."""
    return ssl.create_default_context()


class _Answered(httpx.SyncByteStream):
    """The body of an answer; its end closes its connection."""

    def __init__(self, pool: httpcore.ConnectionPool, answer: httpcore.Response) -> None:
        self._pool = pool
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._answer.iter_stream()
        except Exception as error:
            raise _as_httpx(error) from error

    def close(self) -> None:
        self._answer.close()
        self._pool.close()


def _spellings(target: Target) -> set[tuple[str, str, int | None]]:
    """Return httpx's possible readings of a URL: it leaves out a scheme's own port."""
    return {(target.scheme, target.host, port) for port in (None, target.port)}


_ON_THE_WAY: Final[Mapping[type[Exception], type[httpx.TransportError]]] = {
    httpcore.ConnectTimeout: httpx.ConnectTimeout,
    httpcore.ConnectError: httpx.ConnectError,
    httpcore.ReadTimeout: httpx.ReadTimeout,
    httpcore.WriteTimeout: httpx.WriteTimeout,
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.LocalProtocolError: httpx.LocalProtocolError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
}


def _as_httpx(error: Exception) -> Exception:
    kind = _ON_THE_WAY.get(type(error))
    return error if kind is None else kind(str(error) or type(error).__name__)


# --- one exchange --------------------------------------------------------------------------------


def exchange(
    transport: httpx.BaseTransport,
    method: str,
    target: Target,
    *,
    headers: Mapping[str, str],
    content: bytes | None,
    max_bytes: int,
) -> Exchange:
    """Send one request and take its answer; a redirect is an answer like any other.

    The answer of a GET must fit into `max_bytes`, packed and unpacked. A write's answer is cut if
    it is too long or incomplete, because the write happened.

    Raises:
        AddressRefused: nothing was sent.
        HttpFailed: nothing was sent, or the answer can't be accepted.
        NoAnswer: something was sent, and no answer came.
    """
    try:
        request = httpx.Request(method, target.url, headers=headers, content=content)
    except httpx.InvalidURL as error:
        raise AddressRefused(f"{target.url} is no URL: {error}") from None
    try:
        # Not through a client, which adds cookies, and fails on unparsable redirects.
        response = transport.handle_request(request)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.LocalProtocolError) as error:
        raise HttpFailed(f"{method} {target.url}: nothing was sent: {error}") from error
    except httpx.TransportError as error:
        raise NoAnswer(f"{method} {target.url}: sent, and no answer came: {error}") from error
    try:
        body, cut = _body(response, max_bytes, may_cut=method != "GET")
    finally:
        response.close()
    return Exchange(
        response.status_code,
        {name.lower(): value for name, value in response.headers.items()},
        body,
        cut,
        response.charset_encoding,
    )


def _body(response: httpx.Response, max_bytes: int, *, may_cut: bool) -> tuple[bytes, bool]:
    body = bytearray()
    try:
        for part in _unpacked(response):
            body += part
            if len(body) > max_bytes:
                raise HttpFailed(f"{response.url}: the answer is larger than {max_bytes} bytes")
    except (HttpFailed, httpx.TransportError) as error:
        if may_cut:
            return bytes(body[:max_bytes]), True
        if isinstance(error, HttpFailed):
            raise
        raise NoAnswer(f"{response.url}: the answer broke off: {error}") from error
    return bytes(body), False


def _unpacked(response: httpx.Response) -> Iterator[bytes]:
    """Yield the body's parts, unpacked: at most a part and one byte over the limit at once."""
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    if packed in ("identity", ""):
        yield from response.iter_raw()
        return
    if packed not in ("gzip", "x-gzip", "deflate"):
        raise HttpFailed(
            f"{response.url}: the answer is packed as {packed!r}, which was not asked for"
        )
    unpack = zlib.decompressobj(zlib.MAX_WBITS + 32)  # gzip or zlib, by the first bytes
    try:
        for part in response.iter_raw():
            data = part
            while data and not unpack.eof:
                out = unpack.decompress(data, _CHUNK)
                data = unpack.unconsumed_tail
                yield out
        while not unpack.eof and (out := unpack.decompress(b"", _CHUNK)):
            yield out
    except zlib.error as error:
        raise HttpFailed(f"{response.url}: the answer is packed wrongly: {error}") from None
    if not unpack.eof:
        raise HttpFailed(f"{response.url}: the packed answer breaks off")
