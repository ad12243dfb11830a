"""How a store is distinguished from any other directory or file, by what is in it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from pathlib import Path
from typing import Final

__all__ = [
    "APPLICATION",
    "DEFAULT_NAME",
    "SCHEME",
    "SIDE_FILES",
    "files",
    "is_database",
    "is_linked",
    "is_store",
    "is_store_file",
    "known",
    "plain",
]

APPLICATION: Final = 0x526C6367
"""What says in the header of a SQLite file that it is a store ("Rlcg")."""

SIDE_FILES: Final = ("-wal", "-shm", "-runs", "-live")
"""The endings of the files that belong to it: its name, and one of these."""

SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
"""How a URL begins."""

DEFAULT_NAME: Final = ".rollcage"
"""What the store of a session is called that was given none."""

_FILES: Final = frozenset(
    {"index.jsonl", "index.mark", "lock", "key", "orders.bell", "registry.jsonl", "registry.head"}
)
_FOLDERS: Final = frozenset({"runs", "blobs", "approvals", "pruned"})
_OF_LOGS: Final = frozenset({"logs", "docs", "bell"})  # of `rollcage.heart.folder`
_IDS: Final = (APPLICATION, 0x526C6332)  # the second is that of logs in SQLite
_OF_RUN: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.")
_BEGINS: Final = b'{"event":"run","format":"rollcage/'
_CARE: Final = os.O_NONBLOCK | os.O_CLOEXEC  # a pipe keeps nobody waiting
_HEADER: Final = 100  # bytes of a SQLite file
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def plain(folder: str) -> str:
    """A folder's name, so written that it can't be taken for a URL."""
    return f"./{folder}" if SCHEME.match(folder) else folder


def is_store_file(name: str) -> bool:
    """Whether a file or folder that is called so in a store is the store's own."""
    shape = name.casefold()
    owned = _FILES | _FOLDERS | _OF_LOGS
    return any(shape == own or shape.startswith(f"{own}.") for own in owned)


known: Final[set[str]] = set()
"""The folders of the stores that this process has opened."""

files: Final[set[str]] = set()
"""The files of those that are single ones."""


def is_linked(status: os.stat_result) -> bool:
    """Whether a file is one of a known store's own, by whichever of its names (hard links)."""
    own = [Path(folder, name) for folder in list(known) for name in _FILES]
    for folder in _of_the_heart("own_folders"):
        own += [Path(folder, "bell"), *Path(folder, "docs", "keys").glob("*")]
    for path in own:
        try:
            found = path.lstat()
        except OSError:
            continue
        if os.path.samestat(found, status):
            return True
    return False


def _of_the_heart(kind: str) -> list[str]:
    """The folders or files of logs that this process uses."""
    heart = sys.modules.get("rollcage.heart.keys")  # until the old core goes
    return list(getattr(heart, kind, ()))


def is_database(fd: int | None, name: str) -> bool:
    """Whether a file is a store in SQLite, or one of the files that belong to one.

    One that this process uses is not opened: to close it would end the locks that SQLite has on it.

    Args:
        fd: an open directory; None: `name` is a whole path.
        name: of the file, in that one.
    """
    ends = (end for end in SIDE_FILES if name.endswith(end))
    return _is_database(fd, name) or any(_is_database(fd, name.removesuffix(end)) for end in ends)


def _is_database(fd: int | None, name: str) -> bool:
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except (OSError, ValueError):
        return False
    if not stat.S_ISREG(status.st_mode):
        return False
    for file in (*files, *_of_the_heart("own_files")):
        with contextlib.suppress(OSError):
            if os.path.samestat(Path(file).lstat(), status):
                return True
    if status.st_size < _HEADER:
        return False
    if fd is not None:  # which directory the name is in, for a session that watches
        sys.audit("rollcage.dir_fd", fd)
    try:
        file_fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return False  # whoever is to use it can't either
    try:
        header = os.pread(file_fd, _HEADER, 0)
    finally:
        os.close(file_fd)
    ours = int.from_bytes(header[68:72], "big") in _IDS
    return ours and header.startswith(b"SQLite format 3\x00")


def is_store(fd: int | None, name: str = ".", *, with_name: str = "") -> bool:
    """Whether a directory is a store, or was made to look like one.

    Args:
        fd: an open directory; None: `name` is a whole path.
        name: of the directory, in that one.
        with_name: a file that is about to be made in it, and counts as if it was there.
    """

    def there(own: str, kind: int) -> bool:
        if with_name.casefold() == own:
            return True
        try:
            found = os.stat(f"{name}/{own}", dir_fd=fd, follow_symlinks=False)
        except OSError:
            return False
        return stat.S_IFMT(found.st_mode) == kind

    if there("registry.jsonl", stat.S_IFREG) and there("registry.head", stat.S_IFREG):
        return True
    # a run was begun there, or a tool was proposed
    if any(there(f"docs/{kind}/.lock", stat.S_IFREG) for kind in ("names", "registry")):
        return True
    if there("logs", stat.S_IFDIR) and _holds_logs(fd, f"{name}/logs"):
        return True
    if not there("runs", stat.S_IFDIR) or not any(there(own, stat.S_IFREG) for own in _FILES):
        return False
    return _holds_runs(fd, f"{name}/runs")


def _holds_runs(fd: int | None, name: str) -> bool:
    """Whether a folder called `runs` is a store's: new and empty, or with the files of a run."""
    names = _names_in(fd, name)
    return not names or any(_OF_RUN.match(each) for each in names)


def _holds_logs(fd: int | None, name: str) -> bool:
    """Whether a folder called `logs` has the log of a run in it."""
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
    """The names in a folder; none where that is unknown."""
    if fd is not None:  # which directory the name is in, for a session that watches
        sys.audit("rollcage.dir_fd", fd)
    try:
        folder = os.open(name, _DIRECTORY, dir_fd=fd)
    except OSError:
        return []
    try:
        return os.listdir(folder)  # noqa: PTH208 - of a descriptor
    finally:
        os.close(folder)
