"""Decide which errors of a write leave its outcome unknown (DESIGN §3b, "Unknown by error").

After a timeout, or a lost connection, a client without an answer can't tell whether the server
performed the request. If nothing can have been sent (refused, no such host, no connection in time),
the write did not happen. Libraries wrap these errors in their own, so an error is examined with its
whole chain. No library is imported: its classes are known by name.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, cast

__all__ = ["certainty", "leaves_unknown"]

Certainty = Literal["unknown", "not_sent", "depends"]
"""The certainty of an error's type: the outcome is unknown, or nothing was sent.

Or the chained error decides, and without one, the outcome is unknown.
"""

_LEAVES: Final = frozenset(
    {"ConnectionRefusedError", "gaierror", "herror"}
)  # nothing below causes them
_LOW_LEVEL: Final = frozenset({"builtins", "ssl", "socket", "asyncio", "anyio"})
"""Modules whose errors a library's "no connection" wraps: then they have no say of their own."""

_GRPC: Final = {"DEADLINE_EXCEEDED", "UNAVAILABLE", "CANCELLED", "UNKNOWN"}
_UNREACHABLE: Final = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET}
_NOT_CONNECTED: Final = re.compile(
    r"connection to server .*failed|could not (connect to server|translate host name)", re.DOTALL
)  # libpq's words while it connects
_BY_NAME: Final = re.compile(
    r"Time(d)?_?[oO]ut|TIMEOUT|DeadlineExceeded|Disconnected|BrokenPipe"
    r"|Connection(Reset|Closed|Lost|Aborted|Dropped)"
)  # the classes of libraries that are in no table


def _os_error(error: Any) -> Certainty | None:
    return "unknown" if error.errno in _UNREACHABLE else None


def _grpc(error: Any) -> Certainty | None:
    """By the status; a channel that never came up says so in its details only."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if not callable(code):
        return "depends"
    message = str(details()) if callable(details) else ""
    if message.startswith(("failed to connect to all addresses", "DNS resolution failed")):
        return "not_sent"
    return "unknown" if getattr(code(), "name", "") in _GRPC else None


def _postgres(error: Any) -> Certainty | None:
    """By the SQLSTATE that the server sent; without one the connection broke, or never was."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state in ("08001", "08004", "57P03"):
        return "not_sent"
    if state:
        return "unknown" if state[:2] == "08" or state[:3] == "57P" else None
    return "not_sent" if _NOT_CONNECTED.search(str(error)) else "unknown"


def _mysql(error: Any) -> Certainty | None:
    number = error.args[0] if error.args else None
    if number in (2002, 2003, 2005):  # can't connect, unknown host
        return "not_sent"
    return "unknown" if number in (2006, 2013, 2055) else None  # gone away, lost


def _sqlalchemy(error: Any) -> Certainty | None:
    return "depends" if getattr(error, "connection_invalidated", False) else None


def _mcp(error: Any) -> Certainty | None:
    """By the code: no answer in time, or the connection closed."""
    code = getattr(getattr(error, "error", None), "code", None)
    return "unknown" if code in (408, -32000, -32001) else None


_TABLE: Final[dict[str, dict[str, Certainty | Callable[[Any], Certainty | None]]]] = {
    "builtins": {
        "ConnectionRefusedError": "not_sent",
        "TimeoutError": "unknown",
        "ConnectionError": "unknown",  # reset, aborted, broken pipe
        "OSError": _os_error,
    },
    "socket": {"gaierror": "not_sent", "herror": "not_sent"},
    "ssl": {
        "SSLCertVerificationError": "not_sent",
        "SSLEOFError": "unknown",
        "SSLZeroReturnError": "unknown",
    },
    "asyncio": {"IncompleteReadError": "unknown"},
    "anyio": {"BrokenResourceError": "unknown", "EndOfStream": "unknown"},
    "subprocess": {"TimeoutExpired": "unknown"},
    "http": {"IncompleteRead": "unknown", "BadStatusLine": "unknown"},
    "urllib": {
        "URLError": "depends",
        "HTTPError": lambda _: None,
        "ContentTooShortError": "unknown",
    },
    "smtplib": {"SMTPServerDisconnected": "unknown", "SMTPConnectError": "not_sent"},
    "httpx": {
        "ConnectTimeout": "not_sent",
        "ConnectError": "not_sent",
        "PoolTimeout": "not_sent",
        "ProxyError": "not_sent",
        "TimeoutException": "unknown",
        "NetworkError": "unknown",
        "RemoteProtocolError": "unknown",
    },
    "urllib3": {
        "NewConnectionError": "not_sent",
        "ConnectTimeoutError": "not_sent",
        "ProxyError": "not_sent",
        "EmptyPoolError": "not_sent",
        "TimeoutError": "unknown",
        "ProtocolError": "unknown",
        "SSLError": "depends",
        "MaxRetryError": "depends",
    },
    "requests": {
        "ConnectTimeout": "not_sent",
        "Timeout": "unknown",
        "ChunkedEncodingError": "unknown",
        "ConnectionError": "depends",
    },
    "aiohttp": {
        "ClientConnectorError": "not_sent",
        "ConnectionTimeoutError": "not_sent",
        "ServerFingerprintMismatch": "not_sent",
        "ClientConnectionError": "unknown",
        "ClientPayloadError": "unknown",
    },
    "botocore": {
        "ConnectTimeoutError": "not_sent",
        "EndpointConnectionError": "not_sent",
        "ProxyConnectionError": "not_sent",
        "ReadTimeoutError": "unknown",
        "ConnectionError": "unknown",
        "ResponseStreamingError": "unknown",
        "HTTPClientError": "depends",
    },
    "azure": {"ServiceRequestError": "not_sent", "ServiceResponseError": "unknown"},
    "grpc": {"RpcError": _grpc},
    "mcp": {"McpError": _mcp, "MCPError": _mcp},
    "psycopg": {"ConnectionTimeout": "not_sent", "OperationalError": _postgres},
    "psycopg2": {"OperationalError": _postgres},
    "pymysql": {"OperationalError": _mysql},
    "MySQLdb": {"OperationalError": _mysql},
    "sqlalchemy": {"DBAPIError": _sqlalchemy},
    "redis": {"ConnectionError": "depends", "TimeoutError": "unknown"},
    "pymongo": {"ServerSelectionTimeoutError": "not_sent", "AutoReconnect": "unknown"},
    "paramiko": {"NoValidConnectionsError": "not_sent"},
    "websockets": {"InvalidHandshake": "not_sent", "ConnectionClosed": "unknown"},
}
"""By the top package of a class, and its name: its own, or a base's. The first that fits counts."""

for _kin, _of in {
    "httpcore": "httpx",
    "httpx2": "httpx",
    "httpcore2": "httpx",
    "aiobotocore": "botocore",
    "asyncpg": "psycopg",
}.items():
    _TABLE[_kin] = _TABLE[_of]
for _client in ("openai", "anthropic", "groq", "cohere", "mistralai"):  # they wrap httpx's
    _TABLE[_client] = {"APIConnectionError": "depends"}


def leaves_unknown(error: BaseException, more: tuple[type[BaseException], ...] = ()) -> bool:
    """Tell whether an error leaves the outcome of a request unknown.

    Args:
        error: the error of a write.
        more: further types that leave it unknown (a contract's `unknown_on`).
    """
    return certainty(error, more) == "unknown"


def certainty(error: BaseException, more: tuple[type[BaseException], ...] = ()) -> Certainty | None:
    """Return the certainty of an error about a request: `unknown`, `not_sent`, or None.

    Args:
        error: the error of a write.
        more: further types for `unknown` (a contract's `unknown_on`).
    """
    return _look(error, more, set(), connecting=False)


def _look(
    error: BaseException, more: tuple[type[BaseException], ...], seen: set[int], *, connecting: bool
) -> Certainty | None:
    """Return the certainty of an error and its chain.

    `connecting`: the error made a library report a missing connection, so nothing was sent. An
    error before it (of a first attempt, for example) is examined afresh.
    """
    if id(error) in seen:
        return None
    seen.add(id(error))
    if isinstance(error, more):
        return "unknown"
    package, known = _says(error)
    if known == "unknown":
        if not (connecting and package in _LOW_LEVEL):
            return "unknown"
        known, connecting = "not_sent", False
    elif known == "not_sent":
        connecting = type(error).__name__ not in _LEAVES
    below = {_look(each, more, seen, connecting=connecting) for each in _chained(error)}
    if "unknown" in below:
        return "unknown"
    if known == "not_sent" or "not_sent" in below:
        return "not_sent"
    return "unknown" if known == "depends" else None


def _says(error: BaseException) -> tuple[str, Certainty | None]:
    """Return the certainty of an error's type alone, and the package of the deciding class."""
    for cls in type(error).__mro__:
        package = cls.__module__.partition(".")[0]
        known = _TABLE.get(package, {}).get(cls.__qualname__)
        if callable(known):
            try:
                return package, known(error)
            except Exception:  # noqa: BLE001 - a library's own attributes: then it is unknown
                return package, "unknown"
        if known is not None:
            return package, known
    if any(_BY_NAME.search(cls.__name__) for cls in type(error).__mro__):
        connects = any(cls.__name__.startswith("ConnectTimeout") for cls in type(error).__mro__)
        return "", "not_sent" if connects else "unknown"
    return "", None


def _chained(error: BaseException) -> Iterator[BaseException]:
    """Yield the cause, the context, the group members and the original of an error."""
    parts: list[object] = [error.__cause__, error.__context__, *error.args]
    if isinstance(error, BaseExceptionGroup):
        parts.extend(cast("BaseExceptionGroup[BaseException]", error).exceptions)
    return (each for each in parts if isinstance(each, BaseException))
