"""The tools that only read a workspace."""

from __future__ import annotations

import base64
import fnmatch
import functools
import os
import re
import stat
from typing import Any

from rollcage_toolbox.errors import InputRefused, LimitExceeded
from rollcage_toolbox.store_files import is_database, is_store, is_store_file
from rollcage_toolbox.workspace.changes import Encoding, FilePath, as_text
from rollcage_toolbox.workspace.names import canonical, parts, usable
from rollcage_toolbox.workspace.tree import Tree

__all__ = ["Reads"]

_MOST_WILDCARDS = 8  # `**` in one pattern


class Reads:
    """Reading tools over one tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read_file(
        self,
        path: FilePath,
        encoding: Encoding = "utf-8",
        first_line: int = 1,
        max_lines: int | None = None,
    ) -> str:
        """Read a file: all of it, or the lines from `first_line` (counted from 1).

        With encoding="base64" it gives all its bytes in base64.
        """
        path, limits = canonical(path), self._tree.settings.limits
        if first_line < 1 or (max_lines is not None and max_lines < 1):
            raise InputRefused("first_line and max_lines count from 1")
        whole = first_line == 1 and max_lines is None
        with self._tree.place(path) as place:
            data, _ = place.read(limits.read_bytes if whole else limits.file_bytes, reading=True)
        if encoding == "base64":
            if not whole:
                raise InputRefused("bytes have no lines: leave first_line and max_lines out")
            return base64.b64encode(data).decode()
        text = as_text(data, path)
        if whole:
            return text
        last = None if max_lines is None else first_line - 1 + max_lines
        some = "".join(re.findall(r"[^\n]*\n|[^\n]+$", text)[first_line - 1 : last])
        if len(some.encode()) > limits.read_bytes:
            raise LimitExceeded(f"these lines have more than {limits.read_bytes} bytes")
        return some

    def list_dir(self, path: FilePath = ".") -> list[dict[str, Any]]:
        """List a directory ("." is the workspace): name, kind and size of each entry by name.

        Kinds are file, dir, and refused: links, devices and names that no tool takes.
        """
        names, limit = parts(path, root=True), self._tree.settings.limits.entries
        with self._tree.directory(names) as fd:
            listing = self._tree.listing(fd)
            if len(listing) > limit:
                raise LimitExceeded(f"{path!r} has more than {limit} entries")
            return [entry for name in listing if (entry := _entry(fd, name)) is not None]

    def find_files(self, pattern: str, path: FilePath = ".") -> list[str]:
        """Find files below `path` by a glob pattern (*, ?, [...], and ** for any depth).

        Links are not followed, and files that no tool can read are not found.
        """
        wanted = _pattern(pattern)
        names = parts(path, root=True)
        return [
            "/".join([*names, found.path])
            for found in self._tree.walk(names)
            if stat.S_ISREG(found.status.st_mode)
            and usable(found.place.name)
            and _matches(tuple(found.path.split("/")), wanted)
        ]

    def hash_file(self, path: FilePath) -> dict[str, Any]:
        """Tell the size and the SHA-256 of a file."""
        path = canonical(path)
        with self._tree.place(path) as place:
            digest, size = place.digest(self._tree.settings.limits.hash_bytes)
        return {"path": path, "size": size, "sha256": digest}

    def disk_space(self) -> dict[str, int]:
        """Tell how many bytes the workspace's disk has, and how many of them are free."""
        disk = os.fstatvfs(self._tree.fd)
        return {"total": disk.f_frsize * disk.f_blocks, "free": disk.f_frsize * disk.f_bavail}


def _entry(fd: int, name: str) -> dict[str, Any] | None:
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None  # it was removed in between
    shown = os.fsencode(name).decode("utf-8", "backslashreplace")
    own = is_store_file(name) and is_store(fd)
    if own or is_store(fd, name) or is_database(fd, name):
        return {"name": shown, "kind": "refused", "size": 0}
    if usable(name) and stat.S_ISDIR(status.st_mode):
        return {"name": shown, "kind": "dir", "size": 0}
    if usable(name) and stat.S_ISREG(status.st_mode):
        return {"name": shown, "kind": "file", "size": status.st_size}
    return {"name": shown, "kind": "refused", "size": 0}


# --- glob patterns -------------------------------------------------------------------------------

_Pattern = tuple["re.Pattern[str] | None", ...]  # None is `**`


def _pattern(pattern: str) -> _Pattern:
    """Return a glob pattern, name by name; the same rules hold for it as for paths."""
    segments = pattern.split("/")
    plain = [re.sub(r"[*?\[\]!]", "x", each) for each in segments]
    parts("/".join(plain))
    if segments.count("**") > _MOST_WILDCARDS or any(each.count("*") > 8 for each in segments):
        raise InputRefused(f"{pattern!r} has more than {_MOST_WILDCARDS} wildcards of a kind")
    return tuple(None if each == "**" else re.compile(fnmatch.translate(each)) for each in segments)


def _matches(names: tuple[str, ...], pattern: _Pattern) -> bool:
    @functools.cache  # each pair once: no blow-up by several `**`
    def rest(at: int, of: int) -> bool:
        if of == len(pattern):
            return at == len(names)
        wanted = pattern[of]
        if wanted is None:
            return rest(at, of + 1) or (at < len(names) and rest(at + 1, of))
        return at < len(names) and bool(wanted.match(names[at])) and rest(at + 1, of + 1)

    return rest(0, 0)
