"""HTTP for agents: limited to hosts, ports, methods and sizes, off private networks, undoable.

See `addresses` for the reachable addresses and `http_wire` for the connections.
"""

from __future__ import annotations

import base64
import contextlib
import json as json_format
import re
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urljoin

import httpcore
from rollcage import Compensation, compensate, current_step, tool

from rollcage_toolbox.addresses import AddressRefused, Reachable, Resolver, Target, system_resolver
from rollcage_toolbox.http_wire import Exchange, HttpFailed, NoAnswer, PinnedTransport, exchange

__all__ = ["AddressRefused", "Http", "HttpFailed", "NoAnswer", "Request", "delete_location"]

T = TypeVar("T")

_LABELS: Final = ("untrusted",)  # text from others
_WRITES: Final = ("POST", "PUT", "DELETE")
_METHODS: Final = ("GET", *_WRITES)
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_GONE: Final = frozenset({404, 410})
_GIVEN: Final = (
    "content-type", "etag", "last-modified", "link", "location", "retry-after",
)  # fmt: skip
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = frozenset(
    {"accept-encoding", "authorization", "connection", "content-encoding", "content-length"}
    | {"cookie", "expect", "host", "idempotency-key", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "via", "forwarded"}
)


class Request(NamedTuple):
    """A compensating request, as data.

    Attributes:
        method: `DELETE` or `PUT`; `POST` only if the services honour idempotency keys.
        url: the URL.
        json: a body, sent as JSON.
        text: a body, sent unchanged.
    """

    method: str
    url: str
    json: Any = None
    text: str | None = None


Compensate = Callable[[Mapping[str, Any], Mapping[str, Any]], Sequence[Request] | None]
"""Returns the requests that undo a call, from its arguments and result; None: there are none."""


def delete_location(args: Mapping[str, Any], result: Mapping[str, Any]) -> list[Request] | None:  # noqa: ARG001 - the signature of all of them
    """Undo a POST by a DELETE of the `Location` in its answer.

    Without a location the call can't be undone; a refused call (4xx) left nothing to undo.
    """
    if result["status"] >= 400:
        return []
    location = result["headers"].get("location")
    return None if location is None else [Request("DELETE", location)]


def _touched(
    hosts: Collection[str], ports: Collection[int], private: Collection[str]
) -> tuple[str, ...]:
    """Return the permissions that requests need."""
    shown = (f"[{host.strip('[]')}]" if host.count(":") > 1 else host for host in hosts)
    public = [f"net:{host}:{port}" for host in shown for port in ports]
    return (*public, *(f"net:{each}" for each in private))


class Http:
    """Governed HTTP tools: `http_get` (read), `http_post`, `http_put`, `http_delete` (writes).

    A URL is checked as written; its name is resolved, every address of it checked, and the checked
    address connected to. Each redirect of a GET is checked again; redirects of writes are not
    followed. Proxies, cookies and credentials of the environment are not used.

    Args:
        allowed_hosts: exact names, `*.example.com` for names below, `*` for the public internet.
        methods: the methods of an agent's tools.
        ports: the ports that may be connected to.
        schemes: `https`, `http` or both.
        max_bytes: the maximal size of an answer, packed and unpacked, and of a request's body.
        timeout: seconds for a whole request, its answer included. The system's resolver has time
            limits of its own.
        max_redirects: how many redirects of a GET are followed.
        credentials: headers by host, sent to it over https and never recorded.
        compensation: by method, the undo of a call (`delete_location`); without one a write is
            irreversible.
        observe: by method, `observe=` of its tool: the state that it changes.
        probe: by method, `probe=` of its tool: whether a call happened.
        honours_keys: the services carry out a POST once per `Idempotency-Key`. PUT and DELETE are
            idempotent by definition (RFC 9110, 9.2.2).
        allow_private: exact `host:port` pairs that may lie off the public internet.
        resolver: returns all addresses of a name.
        backend: connects to an address.
        ssl_context: verifies certificates.
        name: the prefix of the tools' names.

    Raises:
        ValueError: an option that can't be used.
    """

    def __init__(
        self,
        *,
        allowed_hosts: Collection[str],
        methods: Collection[str] = ("GET",),
        ports: Collection[int] = (80, 443),
        schemes: Collection[str] = ("https", "http"),
        max_bytes: int = 1_000_000,
        timeout: float = 30.0,
        max_redirects: int = 5,
        credentials: Mapping[str, Mapping[str, str]] | None = None,
        compensation: Mapping[str, Compensate] | None = None,
        observe: Mapping[str, Callable[..., Any]] | None = None,
        probe: Mapping[str, Callable[..., Any]] | None = None,
        honours_keys: bool = False,
        allow_private: Collection[str] = (),
        resolver: Resolver = system_resolver,
        backend: httpcore.NetworkBackend | None = None,
        ssl_context: ssl.SSLContext | None = None,
        name: str = "http",
    ) -> None:
        self._reachable = Reachable(
            hosts=allowed_hosts, ports=ports, schemes=schemes, private=allow_private
        )
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._max_redirects = max_redirects
        self._credentials = {host.lower(): dict(h) for host, h in (credentials or {}).items()}
        self._resolver = resolver
        self._touched: tuple[str, ...] = ("net",)  # another resolver, or backend, may go anywhere
        if resolver is system_resolver and backend is None:
            self._touched = _touched(allowed_hosts, ports, allow_private)
        self._backend = backend
        self._ssl_context = ssl_context
        self._honours_keys = honours_keys
        self._name = name
        self._undo = _by_method("compensation", compensation)
        self._observe = _by_method("observe", observe)
        self._probe = _by_method("probe", probe)
        if odd := set(methods) - set(_METHODS):
            raise ValueError(f"{sorted(odd)} are no methods; what can be: {list(_METHODS)}")
        self.compensating = self._compensating_tool()
        self.get = self._get_tool()
        self.post = self._body_tool("POST")
        self.put = self._body_tool("PUT")
        self.delete = self._delete_tool()
        self._methods = [each for each in _METHODS if each in methods]

    def tools(self, *, read_only: bool = False) -> list[Callable[..., Any]]:
        """Return the tools for an agent; with `read_only`, only GET."""
        offered = {"GET": self.get, "POST": self.post, "PUT": self.put, "DELETE": self.delete}
        return [offered[each] for each in self._methods if each == "GET" or not read_only]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        """Yield all tools: the tools for agents, and the compensating one."""
        yield from self.tools()
        yield self.compensating

    # --- the tools -------------------------------------------------------------------------------

    def _get_tool(self) -> Callable[..., dict[str, Any]]:
        @tool(
            name=f"{self._name}_get",
            effect="read",
            version="1",
            risk="low",
            permissions=("http:get", *self._touched),
            labels=_LABELS,
            raises=(AddressRefused, HttpFailed, NoAnswer),
        )
        def get(url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
            """Get what a URL names: its status, headers and text (base64 unless it is text)."""
            target = self._reachable.check(url)
            sent = _checked(headers)
            for _ in range(self._max_redirects + 1):
                answer = self._exchange("GET", target, sent, None)
                location = answer.headers.get("location")
                if answer.status not in _REDIRECTS or location is None:
                    return self._answer(target, answer)
                following = self._reachable.follow(target, location)
                if following.origin != target.origin:
                    sent = {}  # headers for one server are not for another
                target = following
            raise HttpFailed(f"{url} redirects more than {self._max_redirects} times")

        return get

    def _body_tool(self, method: str) -> Callable[..., dict[str, Any]]:
        @self._write(method)
        def send(
            url: str,
            json: Any = None,
            text: str | None = None,
            headers: dict[str, str] | None = None,
        ) -> dict[str, Any]:
            return self._send(method, url, headers, self._body(json, text))

        return send

    def _delete_tool(self) -> Callable[..., dict[str, Any]]:
        @self._write("DELETE")
        def delete(url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
            return self._send("DELETE", url, headers, None)

        return delete

    def _write(self, method: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        back = self._undo.get(method)

        def undo(args: Mapping[str, Any], result: Mapping[str, Any]) -> list[Compensation] | None:
            assert back is not None
            requests = back(args, result)
            if requests is None:
                return None
            return [compensate(self.compensating, **each._asdict()) for each in requests]

        return tool(
            name=f"{self._name}_{method.lower()}",
            description=f"{_SAYS[method]} Its redirects are not followed.",
            effect="write",
            version="1",
            idempotent=self._honours_keys or method != "POST",
            risk="high" if method == "DELETE" else "medium",
            permissions=(f"http:{method.lower()}", *self._touched),
            labels=_LABELS,
            raises=(AddressRefused, HttpFailed),
            undo=None if back is None else undo,
            observe=self._observe.get(method),
            probe=self._probe.get(method),
        )

    def _compensating_tool(self) -> Callable[..., dict[str, Any]]:
        able = ("DELETE", "PUT", "POST") if self._honours_keys else ("DELETE", "PUT")

        @tool(
            name=f"{self._name}_compensate",
            effect="write",
            version="1",
            idempotent=True,
            risk="medium",
            permissions=(*(f"http:{method.lower()}" for method in able), *self._touched),
            raises=(AddressRefused, HttpFailed),
        )
        def compensating(
            method: str, url: str, json: Any = None, text: str | None = None
        ) -> dict[str, Any]:
            """Undo a call; a refusal is an error, but a missing resource is not."""
            if method not in able:
                raise HttpFailed(f"{method} takes nothing back here; what does: {list(able)}")
            result = self._send(method, url, None, self._body(json, text))
            gone = method == "DELETE" and result["status"] in _GONE
            if result["status"] >= 300 and not gone:
                raise HttpFailed(f"{method} {url} was answered with {result['status']}")
            return result

        return compensating

    # --- a request -------------------------------------------------------------------------------

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: tuple[str, bytes] | None,
    ) -> dict[str, Any]:
        target = self._reachable.check(url)
        sent = _checked(headers)
        content = None
        if body is not None:
            kind, content = body
            sent = {"content-type": kind, **sent}
            if len(content) > self._max_bytes:
                raise HttpFailed(f"a body of {len(content)} bytes; at most {self._max_bytes}")
        step = current_step()
        if step is not None:
            sent["idempotency-key"] = step.idempotency_key
        answer = self._exchange(method, target, sent, content)
        if answer.status >= 500:
            raise HttpFailed(f"{method} {target.url} was answered with {answer.status}")
        return self._answer(target, answer)

    def _exchange(
        self, method: str, target: Target, headers: Mapping[str, str], content: bytes | None
    ) -> Exchange:
        secret = self._credentials.get(target.host, {})
        if secret and target.scheme != "https" and not self._reachable.is_private(target):
            raise AddressRefused(f"{target.url}: credentials are sent over https only")
        transport = PinnedTransport(
            self._reachable,
            seconds=self._timeout,
            resolver=self._resolver,
            backend=self._backend,
            ssl_context=self._ssl_context,
        )
        return exchange(
            transport,
            method,
            target,
            headers={"accept": "*/*", "accept-encoding": "identity", **headers, **secret},
            content=content,
            max_bytes=self._max_bytes,
        )

    @staticmethod
    def _body(json: Any, text: str | None) -> tuple[str, bytes] | None:
        if json is not None and text is not None:
            raise HttpFailed("a body is either json or text")
        if json is not None:
            data = json_format.dumps(json, ensure_ascii=False, allow_nan=False)
            return "application/json", data.encode()
        return None if text is None else ("text/plain; charset=utf-8", text.encode())

    def _answer(self, target: Target, answer: Exchange) -> dict[str, Any]:
        """Return a tool's result: the stable parts of the answer."""
        headers = {name: answer.headers[name] for name in _GIVEN if name in answer.headers}
        # a location that can't be joined is returned unchanged
        with contextlib.suppress(ValueError):
            if "location" in headers:
                headers["location"] = urljoin(target.url, headers["location"])
        shown: dict[str, Any] = {"status": answer.status, "url": target.url, "headers": headers}
        try:
            shown["text"] = answer.body.decode(answer.charset or "utf-8")
        except (UnicodeDecodeError, LookupError):
            shown["base64"] = base64.b64encode(answer.body).decode("ascii")
        if answer.cut:
            shown["cut"] = True
        return shown


_SAYS: Final = {
    "POST": "Send json or text to a URL, with POST.",
    "PUT": "Put json or text at a URL, with PUT.",
    "DELETE": "Delete what a URL names.",
}


def _by_method(option: str, given: Mapping[str, T] | None) -> Mapping[str, T]:
    if odd := set(given or {}) - set(_WRITES):
        raise ValueError(f"{option}= of {sorted(odd)}; what can be: {list(_WRITES)}")
    return dict(given or {})


def _checked(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return an agent's own headers, by lower-case name.

    Raises:
        HttpFailed: a header that the tool sets itself, or that is invalid.
    """
    checked: dict[str, str] = {}
    for name, value in (headers or {}).items():
        lower = name.lower()
        if not _TOKEN.fullmatch(name) or lower in _OURS or lower.startswith("proxy-"):
            raise HttpFailed(f"the header {name!r} can't be set")
        if not (value.isascii() and value.isprintable()):
            raise HttpFailed(f"the header {name!r} holds what no header can")
        checked[lower] = value
    return checked
