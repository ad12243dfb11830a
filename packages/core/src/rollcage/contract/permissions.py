"""Parse the permissions that a tool declares, and decide what they cover.

| word | covers |
|---|---|
| `fs:read`, `fs:read:<root>` | reading any file, or files at or below a path |
| `fs:write`, `fs:write:<root>` | changing any file, or files at or below a path |
| `net`, `net:<host>`, `net:<host>:<port>` | any host, or one: name, `*.name`, address, network |
| `net:unix`, `net:unix:<path>` | Unix sockets |
| `process`, `process:<program>` | other processes, and loaded native code |

Any other word covers nothing: it is for policies.
"""

# Paths are texts here: they are compared as the system spells them.
# ruff: noqa: PTH100, PTH111, PTH118, PTH119

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import os
from collections.abc import Iterable
from typing import Final, Literal

from rollcage.errors import ContractError

__all__ = ["Access", "Grants", "Host", "grants_of"]

Access = Literal["read", "write"]

_PORTS: Final = range(1, 65536)
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """Match a host: a name in lower case (`*`: any), or a network of addresses."""

    name: str
    network: _Network | None
    port: int | None

    def is_called(self, name: str) -> bool:
        """Tell whether a name is this host's, or, for `*.name`, lies below it."""
        if self.name.startswith("*"):
            return name.endswith(self.name[1:])
        return name == self.name

    def holds(self, address: _Address) -> bool:
        """Tell whether an address is in the network."""
        return self.name == "*" or (self.network is not None and address in self.network)


@dataclasses.dataclass(frozen=True)
class Grants:
    """Decide what a set of permissions covers.

    Attributes:
        roots: by access, the declared paths; None: any.
        hosts: the hosts that may be reached; None: any.
        sockets: the paths of Unix sockets; None: any.
        programs: the programs that may be run, by name or path; None: any.
    """

    roots: dict[Access, tuple[str, ...] | None]
    hosts: tuple[Host, ...] | None
    sockets: tuple[str, ...] | None
    programs: frozenset[str] | None

    @functools.cached_property
    def _real(self) -> dict[Access, tuple[str, ...] | None]:
        """Return the roots with symbolic links followed, as of now."""
        return {
            access: None if roots is None else tuple(map(_below, roots))
            for access, roots in self.roots.items()
        }

    def covers_path(self, access: Access, path: str) -> bool:
        """Tell whether a path, absolute and without symbolic links, may be read or changed."""
        roots = self._real[access]
        return roots is None or any(_is_below(path, root) for root in roots)

    def covers_any_path(self, access: Access) -> bool:
        """Tell whether every path may be read or changed."""
        return self.roots[access] is None

    def covers_socket(self, path: str) -> bool:
        """Tell whether the Unix socket at a path may be reached."""
        if self.sockets is None:
            return True
        return any(_is_below(path, _below(root)) for root in self.sockets)

    def covers_name(self, name: str) -> bool:
        """Tell whether the addresses of a host may be looked up."""
        wanted = name.lower().rstrip(".")
        return self.hosts is None or any(each.is_called(wanted) for each in self.hosts)

    def covers_program(self, program: str) -> bool:
        """Tell whether a program may be run."""
        named = (program, os.path.basename(program))
        return self.programs is None or any(each in self.programs for each in named)


def _below(root: str) -> str:
    """Return a root in the form for comparisons: with a separator after it."""
    real = os.path.normcase(os.path.realpath(root))
    return real if real.endswith(os.sep) else real + os.sep


def _is_below(path: str, root: str) -> bool:
    return (os.path.normcase(path) + os.sep).startswith(root)


def grants_of(permissions: Iterable[str], base: str = "") -> Grants:
    """Return the grants of permissions.

    Args:
        permissions: the permissions of a contract.
        base: the directory for relative paths; by default the current one.

    Raises:
        ContractError: a permission begins like a known one and can't be parsed.
    """
    roots: dict[str, list[str] | None] = {"read": [], "write": []}
    hosts: list[Host] | None = []
    sockets: list[str] | None = []
    programs: set[str] | None = set()
    for word in permissions:
        kind, colon, rest = word.partition(":")
        if colon and not rest and kind in ("fs", "net", "process"):
            raise ContractError(f"permission {word!r} names nothing after its colon")
        if kind == "fs":
            access, named, root = rest.partition(":")
            known = roots.get(access)
            if named and not root:
                raise ContractError(f"permission {word!r} names no path")
            if access in roots and known is not None:
                roots[access] = [*known, _rooted(root, base)] if root else None
        elif kind == "net":
            scheme, named, path = rest.partition(":")
            if scheme == "unix":
                sockets = None if not named or sockets is None else [*sockets, _rooted(path, base)]
            elif rest in ("", "*"):
                hosts = sockets = None
            elif hosts is not None:
                hosts.append(_host(word, rest))
        elif kind == "process":
            programs = None if not rest or programs is None else programs | {rest}
    allowed_roots: dict[Access, tuple[str, ...] | None] = {
        "read": None if roots["read"] is None else tuple(roots["read"]),
        "write": None if roots["write"] is None else tuple(roots["write"]),
    }
    return Grants(
        allowed_roots,
        None if hosts is None else tuple(hosts),
        None if sockets is None else tuple(sockets),
        None if programs is None else frozenset(programs),
    )


def _rooted(path: str, base: str) -> str:
    """Return a declared root, relative to a directory; `/srv/**` is `/srv`."""
    root = os.path.expanduser(path.removesuffix("**") or os.sep)
    return os.path.abspath(os.path.join(base, root))


def _host(word: str, text: str) -> Host:
    network = _network(text.strip("[]"))
    if network is not None:  # an IPv6 address has colons of its own
        return Host("", network, None)
    name, colon, number = text.rpartition(":")
    if not colon:
        return Host(text.lower().rstrip("."), None, None)
    if not number.isascii() or not number.isdigit() or int(number) not in _PORTS:
        raise ContractError(f"permission {word!r}: {number!r} is not a port")
    if not name:
        raise ContractError(f"permission {word!r} names no host")
    if name == "*":
        return Host("*", None, int(number))
    return Host(name.lower().rstrip("."), _network(name.strip("[]")), int(number))


def _network(text: str) -> _Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None
