"""What goes wrong between a client, the proxy and a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from rollcage.errors import RollcageError

__all__ = [
    "MessageInvalid",
    "OpenAPIInvalid",
    "PackInvalid",
    "ServerError",
    "ServerGone",
    "ServersInvalid",
]


class MessageInvalid(RollcageError):
    """A line that is no message of JSON-RPC; the text says why."""


class ServerError(Exception):
    """The server answered a request with an error of JSON-RPC, which is recorded and replayed.

    Attributes:
        code: the error's number.
        message: its text.
        data: whatever else the server says of it.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class ServerGone(ConnectionError):
    """The server ended, or broke the protocol so that nothing more can be read from it.

    It is a connection that broke: whether a write that was under way has happened is unknown.
    """


class PackInvalid(RollcageError):
    """A pack can't be used; the text names each place that is wrong."""

    @classmethod
    def several(cls, source: str, wrong: Iterable[str]) -> Self:
        """The error that names all places of a pack that are wrong."""
        listed = list(wrong)
        rest = "".join(f"\n  {each}" for each in listed)
        return cls(f"{source} can't be used:{rest}")


class ServersInvalid(RollcageError):
    """The file that names the servers can't be used; the text says why."""


class OpenAPIInvalid(ServersInvalid):
    """An OpenAPI document can't be used; the text says why."""
