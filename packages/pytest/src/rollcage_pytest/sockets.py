"""No network during a replay."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Generator
from typing import Any, NoReturn
from unittest import mock

__all__ = ["refused"]

_METHODS = ("connect", "connect_ex", "sendto")


@contextlib.contextmanager
def refused(refuse: Callable[[str], NoReturn]) -> Generator[None]:
    """Call `refuse` when an internet socket is about to connect, or a name to be looked up."""

    def guarded(name: str) -> Callable[..., Any]:
        original: Callable[..., Any] = getattr(socket.socket, name)

        def method(self: socket.socket, *arguments: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6):
                self.close()  # its maker may never close it
                refuse(f"a connection to {arguments[-1]}")
            return original(self, *arguments)

        return method

    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        if host is not None and not _is_address(host):
            refuse(f"a look-up of {host!r}")
        return look_up(host, *arguments, **options)

    with contextlib.ExitStack() as patches:
        for name in _METHODS:
            patches.enter_context(mock.patch.object(socket.socket, name, guarded(name)))
        patches.enter_context(mock.patch.object(socket, "getaddrinfo", getaddrinfo))
        yield


def _is_address(host: Any) -> bool:
    text = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
