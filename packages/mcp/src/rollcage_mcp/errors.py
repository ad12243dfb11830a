"""The errors between a client, the proxy and a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from rollcage.errors import RollcageError

__all__ = [
    "MessageInvalid",
    "NotConfirmed",
    "OpenAPIInvalid",
    "PackInvalid",
    "ServerError",
    "ServerGone",
    "ServersInvalid",
]


class MessageInvalid(RollcageError):
    """A line that is not a JSON-RPC message; the text says why."""


class NotConfirmed(RollcageError):
    """The person at the client was not asked, or did not confirm; nothing was done."""


class ServerError(Exception):
    """The server answered a request with a JSON-RPC error, which is recorded and replayed.

    Attributes:
        code: the error's number.
        message: its text.
        data: the server's further data.
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

    It is a broken connection: whether a running write has happened is unknown.
    """


class PackInvalid(RollcageError):
    """A pack can't be used; the text names each problem."""

    @classmethod
    def several(cls, source: str, wrong: Iterable[str]) -> Self:
        """Return the error that names all problems of a pack."""
        listed = list(wrong)
        rest = "".join(f"\n  {each}" for each in listed)
        return cls(f"{source} can't be used:{rest}")


class ServersInvalid(RollcageError):
    """The file of servers can't be used; the text says why."""


class OpenAPIInvalid(ServersInvalid):
    """An OpenAPI document can't be used; the text says why."""
