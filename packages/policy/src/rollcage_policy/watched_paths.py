"""The files and hosts of an audit event: absolute paths, addresses."""

# Audit events pass texts, bytes and descriptors, and each call counts here.
# ruff: noqa: PTH115, PTH117, PTH118, PTH208

from __future__ import annotations

import errno
import ipaddress
import os
import stat
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

__all__ = ["CWD", "address_of", "installed", "open_directories", "place_of", "text_of"]

CWD: Final = -1
"""In place of a descriptor: the current directory."""


def text_of(name: Any) -> str:
    """Return a path or a name as text; anything else as Python shows it."""
    return os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else str(name)


def place_of(name: Any, directory: int, *, follow: bool) -> str | None:
    """Return an absolute path without links; None if a descriptor does not give it."""
    if isinstance(name, int):
        return _of_descriptor(name)
    path = os.fsdecode(name)
    if directory != CWD and not os.path.isabs(path):
        base = _of_descriptor(directory)
        if base is None:
            return None
        path = os.path.join(base, path)
    if follow:
        return os.path.realpath(path)
    head, tail = os.path.split(path.rstrip(os.sep) or os.sep)
    if tail in ("", os.curdir, os.pardir):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(head), tail)


def _of_descriptor(fd: int) -> str | None:
    """Return the path of an open descriptor; None if the system gives none."""
    path = ""
    try:
        if sys.platform == "darwin":
            import fcntl

            buffer: bytes = fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024))
            path = os.fsdecode(buffer.rstrip(b"\0"))
        else:
            path = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None
    return path if os.path.isabs(path) else None


def open_directories() -> Iterator[str]:
    """Yield the directories that this process holds open."""
    listed = "/dev/fd" if sys.platform == "darwin" else "/proc/self/fd"
    try:
        numbers = os.listdir(listed)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return  # a system without them has no `dir_fd` either
    for number in numbers:
        try:
            is_directory = stat.S_ISDIR(os.fstat(int(number)).st_mode)
        except OSError:
            continue  # the descriptor of the listing itself, or one closed since
        path = _of_descriptor(int(number)) if is_directory else None
        if path is not None:
            yield path


@cache
def installed() -> tuple[str, ...]:
    """Return the folders of installed packages and time zones, which hold no user data."""
    import site  # needed only if permissions are enforced
    import sysconfig
    import zoneinfo

    known = sysconfig.get_paths()
    paths = {known[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {*zoneinfo.TZPATH, *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])}
    return tuple(sorted(os.path.join(os.path.realpath(path), "") for path in paths))


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address in a text; None for a name. IPv4 in IPv6 is IPv4."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
