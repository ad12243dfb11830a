"""The signs by which a store differs from any other directory or file."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from pathlib import Path
from typing import Final

from rollcage.trace.keys import own_files, own_folders

__all__ = ["DEFAULT_NAME", "is_database", "is_linked", "is_store", "is_store_file"]

DEFAULT_NAME: Final = ".rollcage"
"""The name of a session's store by default."""

_OWN: Final = frozenset({"bell", "docs", "logs"})
_SIDE_FILES: Final = ("-wal", "-shm", "-live")  # a SQLite file's name, and one of these
_APPLICATION: Final = 0x526C6367  # in the header of a SQLite file that is a store
_OF_RUN: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.")
_BEGINS: Final = b'{"event":"run","format":"rollcage/'
_CARE: Final = os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe does not wait
_HEADER: Final = 100  # bytes of a SQLite file
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_store_file(name: str) -> bool:
    """Return whether a file or folder with this name in a store is the store's own."""
    shape = name.casefold()
    return any(shape == own or shape.startswith(f"{own}.") for own in _OWN)


def is_linked(status: os.stat_result) -> bool:
    """Return whether a file is a used store's own, by any of its names (hard links)."""
    for folder in list(own_folders):
        for path in (Path(folder, "bell"), *Path(folder, "docs", "keys").glob("*")):
            with contextlib.suppress(OSError):
                if os.path.samestat(path.lstat(), status):
                    return True
    return False


def is_database(fd: int | None, name: str) -> bool:
    """Return whether a file is a store in SQLite, or one of the files that belong to one.

    A file that this process uses is not opened, because closing it would end SQLite's locks on it.

    Args:
        fd: an open directory; None: `name` is a whole path.
        name: the name of the file in the directory.
    """
    ends = (end for end in _SIDE_FILES if name.endswith(end))
    return _is_database(fd, name) or any(_is_database(fd, name.removesuffix(end)) for end in ends)


def _is_database(fd: int | None, name: str) -> bool:
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except (OSError, ValueError):
        return False
    if not stat.S_ISREG(status.st_mode):
        return False
    for file in list(own_files):
        with contextlib.suppress(OSError):
            if os.path.samestat(Path(file).lstat(), status):
                return True
    if status.st_size < _HEADER:
        return False
    if fd is not None:  # the directory of the name, for a session that watches
        sys.audit("rollcage.dir_fd", fd)
    try:
        file_fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return False  # it can't be used either
    try:
        header = os.pread(file_fd, _HEADER, 0)
    finally:
        os.close(file_fd)
    ours = int.from_bytes(header[68:72], "big") == _APPLICATION
    return ours and header.startswith(b"SQLite format 3\x00")


def is_store(fd: int | None, name: str = ".", *, with_name: str = "") -> bool:
    """Return whether a directory is a store, or was made to look like one.

    Args:
        fd: an open directory; None: `name` is a whole path.
        name: the name of the directory in it.
        with_name: a file that is about to be made in it, and counts as existing.
    """

    def there(own: str, kind: int) -> bool:
        if with_name.casefold() == own:
            return True
        try:
            found = os.stat(f"{name}/{own}", dir_fd=fd, follow_symlinks=False)
        except OSError:
            return False
        return stat.S_IFMT(found.st_mode) == kind

    # a run was begun there, or a tool was proposed
    if any(there(f"docs/{kind}/.lock", stat.S_IFREG) for kind in ("names", "registry")):
        return True
    return there("logs", stat.S_IFDIR) and _holds_logs(fd, f"{name}/logs")


def _holds_logs(fd: int | None, name: str) -> bool:
    """Return whether a folder named `logs` has the log of a run in it."""
    for each in _names_in(fd, name):
        if _OF_RUN.match(each):
            with contextlib.suppress(OSError):
                log = os.open(f"{name}/{each}", os.O_RDONLY | os.O_NOFOLLOW | _CARE, dir_fd=fd)
                try:
                    if os.pread(log, len(_BEGINS), 0) == _BEGINS:
                        return True
                finally:
                    os.close(log)
    return False


def _names_in(fd: int | None, name: str) -> list[str]:
    """Return the names in a folder; none if they are unknown."""
    if fd is not None:  # the directory of the name, for a session that watches
        sys.audit("rollcage.dir_fd", fd)
    try:
        folder = os.open(name, _DIRECTORY, dir_fd=fd)
    except OSError:
        return []
    try:
        return os.listdir(folder)  # noqa: PTH208 - of a descriptor
    finally:
        os.close(folder)
