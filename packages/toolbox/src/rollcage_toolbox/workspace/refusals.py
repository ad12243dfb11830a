"""The refusals of a workspace's tools: stores, links, devices, and inexact names."""

from __future__ import annotations

import os
import stat
import unicodedata

from rollcage_toolbox.errors import PathRefused
from rollcage_toolbox.store_files import is_database, is_store, is_store_file
from rollcage_toolbox.workspace.names import folded

__all__ = [
    "in_store", "refusal", "refuse_inexact", "refuse_special", "refuse_store", "refuse_twin",
]  # fmt: skip


def refusal(what: str, path: str, code: str) -> PathRefused:
    """Return the error for a refused path."""
    return PathRefused(f"{path!r} is {what}: a workspace's tools do not touch it", code)


def refuse_store(fd: int, name: str, path: str) -> None:
    """Refuse a directory that is a store, and files that are a store's own or would make one.

    A store holds the key that seals secrets and approvals: an agent that reads it can forge the
    decisions of people.
    """
    own = is_store_file(name) and is_store(fd, with_name=name)
    if own or is_store(fd, name) or is_database(fd, name):
        raise refusal("Rollcage's own store, or in it", path, "path_store")


def in_store(fd: int) -> bool:
    """Return whether an open directory is one of a store's own folders, or in one."""
    below, above = os.fstat(fd), ""
    for _ in range(3):
        above += "../"
        for own in ("runs", "blobs", "approvals", "logs", "docs"):
            try:
                found = os.stat(f"{above}{own}", dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            if os.path.samestat(found, below) and is_store(fd, above.removesuffix("/")):
                return True
        below = os.stat(above, dir_fd=fd)
    return False


def refuse_special(status: os.stat_result, path: str) -> None:
    """Refuse anything but a file or a directory."""
    if stat.S_ISLNK(status.st_mode):
        raise refusal("a symbolic link", path, "path_symlink")
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise refusal("a device, pipe or socket", path, "path_special")


def refuse_twin(fd: int, name: str, path: str) -> None:
    """Refuse a name that some file systems confuse with an existing one."""
    shape = folded(name)
    for each in os.listdir(fd):
        if each != name and folded(each) == shape:
            raise PathRefused(
                f"{path!r}: {each!r} is there, which differs in case or Unicode form only",
                "path_case",
            )


def refuse_inexact(fd: int, name: str, found: os.stat_result, path: str) -> None:
    """Refuse a file that was found under a name that it does not have.

    A file system that ignores case finds `notes` as `NOTES`, and a rule about one spelling would
    not hold for the other. Such a file system finds it by a third spelling as well.
    """
    other = unicodedata.normalize("NFD", name).swapcase()
    if other == name:
        return
    try:
        twin = os.stat(other, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return
    if os.path.samestat(twin, found) and name not in os.listdir(fd):
        raise PathRefused(f"{path!r} is there in other letters; use its own", "path_case")
