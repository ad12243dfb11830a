"""What the permissions of a contract cover: paths, hosts, sockets and programs."""

# Paths are texts in this module: they are compared in the system's spelling.
# ruff: noqa: PTH100, PTH111, PTH118, PTH119

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import os
from collections.abc import Iterable
from typing import Literal

from rollcage.contract.permissions import read_permission

__all__ = ["Access", "Grants", "Host", "grants_of"]

Access = Literal["read", "write"]

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
    """Return the grants of a set of permissions.

    Args:
        permissions: as a contract declares them.
        base: the directory that relative paths start from; by default the current one.

    Raises:
        ContractError: a permission can't be read.
    """
    roots: dict[Access, tuple[str, ...] | None] = {"read": (), "write": ()}
    hosts: tuple[Host, ...] | None = ()
    sockets: tuple[str, ...] | None = ()
    programs: frozenset[str] | None = frozenset()
    for word in permissions:
        match read_permission(word):
            case None:
                pass
            case ("fs:read" | "fs:write") as kind, path, _:
                access: Access = "read" if kind == "fs:read" else "write"
                roots[access] = _more(roots[access], _rooted(path, base) if path else "")
            case "net", "", None:
                hosts = sockets = None
            case "net", name, port:
                hosts = None if hosts is None else (*hosts, _host(name, port))
            case "net:unix", path, _:
                sockets = _more(sockets, _rooted(path, base) if path else "")
            case _, program, _:
                programs = None if not program or programs is None else programs | {program}
    return Grants(roots, hosts, sockets, programs)


def _more(known: tuple[str, ...] | None, root: str) -> tuple[str, ...] | None:
    """Add a root to the covered roots; once one is empty, all paths are covered."""
    return None if known is None or not root else (*known, root)


def _rooted(path: str, base: str) -> str:
    """Resolve a declared root from a directory; `/srv/**` is `/srv`."""
    root = os.path.expanduser(path.removesuffix("**") or os.sep)
    return os.path.abspath(os.path.join(base, root))


def _host(name: str, port: int | None) -> Host:
    network = _network(name)
    if network is not None and port is None:
        return Host("", network, None)
    return Host(name.lower().rstrip("."), network, port)


def _network(text: str) -> _Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None
