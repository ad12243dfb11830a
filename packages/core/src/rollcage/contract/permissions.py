"""What a tool may touch: the words of its permissions.

| word | covers |
|---|---|
| `fs:read`, `fs:read:<root>` | reading any file, or the files at or below a path |
| `fs:write`, `fs:write:<root>` | changing any file, or the files at or below a path |
| `net`, `net:<host>`, `net:<host>:<port>` | any host, or one: name, `*.name`, address, network |
| `net:unix`, `net:unix:<path>` | Unix sockets |
| `process`, `process:<program>` | other processes, and native code that is loaded |

Any other word covers nothing: it is for policies. Bodies are held to them by `rollcage_policy`.
"""

from __future__ import annotations

import ipaddress
from typing import Final, Literal, NamedTuple

from rollcage.errors import ContractError

__all__ = ["Permission", "read_permission"]

_PORTS: Final = range(1, 65536)


class Permission(NamedTuple):
    """A permission that covers something.

    Attributes:
        kind: the covered access.
        only: the one path, host or program that is covered; empty: any.
        port: the one port of the host that is covered; None: any.
    """

    kind: Literal["fs:read", "fs:write", "net", "net:unix", "process"]
    only: str = ""
    port: int | None = None


def read_permission(word: str) -> Permission | None:
    """Return what a word of a contract's permissions covers; None: nothing.

    Raises:
        ContractError: it begins like a word that covers something, and can't be read.
    """
    kind, colon, rest = word.partition(":")
    if colon and not rest and kind in ("fs", "net", "process"):
        raise ContractError(f"permission {word!r} names nothing after its colon")
    part, named, path = rest.partition(":")
    if named and not path and (kind == "fs" or (kind, part) == ("net", "unix")):
        raise ContractError(f"permission {word!r} names no path")
    match kind, part:
        case "fs", "read":
            return Permission("fs:read", path)
        case "fs", "write":
            return Permission("fs:write", path)
        case "net", "unix":
            return Permission("net:unix", path)
        case "net", _:
            return _net(word, "" if rest == "*" else rest)
        case "process", _:
            return Permission("process", rest)
        case _:
            return None


def _net(word: str, text: str) -> Permission:
    if _is_network(text.strip("[]")):  # an IPv6 address has colons of its own
        return Permission("net", text.strip("[]"))
    name, colon, number = text.rpartition(":")
    if not colon:
        return Permission("net", text)
    if not number.isascii() or not number.isdigit() or int(number) not in _PORTS:
        raise ContractError(f"permission {word!r}: {number!r} is not a port")
    if not name:
        raise ContractError(f"permission {word!r} names no host")
    return Permission("net", name.strip("[]"), int(number))


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
