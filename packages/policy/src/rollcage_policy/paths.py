"""Whether a path lies in a folder, in any spelling, and through any links.

A path is resolved as the kernel would, link by link, and directories are compared by identity
(device and inode), not by spelling. If two programs could read it differently, all readings are
resolved; if these disagree, it is refused. Spellings that some programs expand or decode first
(`~`, `$NAME`, `%2e`, `file:`) are refused, never interpreted.

This is a check at one moment. Anyone who can replace a directory by a link between this check and
the tool's access can still redirect it: only tools that hold directories open prevent that, as
the tools of `rollcage_toolbox.Workspace` do. Nor does a path show that a file has a second name (a
hard link).
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = ["PathInvalid", "within"]

_LONGEST: Final = 4096  # bytes, Linux' PATH_MAX
_MOST_LINKS: Final = 40  # along one path, as on Linux
_MOST_PATHS: Final = 1000
_ENCODED: Final = re.compile(r"%(?:u00)?(?:2e|2f|5c|25|c0|c1|7f|[01][0-9a-f])", re.IGNORECASE)
_ELSEWHERE: Final = re.compile(r"[A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]+:/|file:", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$[A-Za-z_{(]|%[A-Za-z_][A-Za-z0-9_]*%")
_DOTS_AND_SLASHES: Final = frozenset(
    "\u2044\u2215\u2216\u29f5\u29f8\u29f9\ufe68\uff0f\uff3c\u2571\u2572\u27cb\u27cd\u3033"
)
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


class PathInvalid(ValueError):
    """A path that programs may read differently, or whose target is unknown."""


class _Node(NamedTuple):
    """The identity of a directory or file, independent of its name."""

    device: int
    inode: int


def within(path: str | Iterable[str], root: str, base: str | None = None) -> bool:
    """Return whether a path is a folder or lies below it; for several paths, whether all do.

    An empty list raises: a tool may take it for its own folder, or for everything.

    Args:
        path: the path to check. It need not exist; the directories along it must be readable.
        root: the folder; an absolute path of a directory that exists.
        base: the directory that the tool resolves relative paths from. Without it, a relative path
            has to give the same answer from the root and from the working directory.

    Raises:
        PathInvalid: the answer is unknown: no path, an ambiguous spelling, readings that differ, a
            loop
            of links, a directory that can't be inspected.
    """
    if not isinstance(path, str):
        paths = _texts(path)
        found = {within(each, root, base) for each in paths}
        if len(found) > 1:
            raise PathInvalid("some of the paths are inside and some are not")
        return found != {False}
    _check_written(path)
    inside = _directory(root)
    bases = [root, os.getcwd()] if base is None else [base]  # noqa: PTH109 - a text is wanted
    if os.path.isabs(path):  # noqa: PTH117 - the same
        bases = ["/"]
    elif base is not None:
        _directory(base)
    readings = {reading for each in bases for reading in _readings(each, path)}
    sides = {inside in _trail(reading) for reading in readings}
    if len(sides) > 1:
        raise PathInvalid(
            "programs differ on where this path leads; give an absolute one, without `..`"
        )
    return sides == {True}


def _texts(paths: Iterable[str]) -> list[str]:
    if not isinstance(paths, list | tuple) or not all(isinstance(each, str) for each in paths):
        raise PathInvalid("a path is a text, or a list of texts")
    if not paths:
        raise PathInvalid("an empty list holds no path, and a tool may take it for anything")
    if len(paths) > _MOST_PATHS:
        raise PathInvalid(f"{len(paths)} paths; at most {_MOST_PATHS}")
    return list(paths)


def _readings(base: str, path: str) -> set[str]:
    """Return a path's readings: the kernel's, and one that first drops `name/..`."""
    whole = base.rstrip("/") + "/" + path
    if ".." not in path.split("/"):
        return {whole}
    return {whole, os.path.normpath(whole)}


def _directory(folder: str) -> _Node:
    """Return the identity of the policy's folder."""
    if not folder.startswith("/") or "\0" in folder:
        raise PathInvalid("the folder of a rule is an absolute path")
    try:
        found = os.stat(folder)  # noqa: PTH116 - one call, and a text at hand
    except OSError as error:
        raise PathInvalid(f"the folder of a rule can't be read: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise PathInvalid("the folder of a rule is not a directory")
    return _Node(found.st_dev, found.st_ino)


def _trail(path: str) -> set[_Node]:
    """Return all directories that contain a resolved absolute path, and the path itself."""
    todo = _names(path)
    at: list[str] = []
    nodes: list[_Node] = []
    links = 0
    missing = False
    while todo:
        name = todo.pop()
        if name == "..":
            if missing:
                raise PathInvalid("`..` after a folder that does not exist")
            del at[-1:], nodes[-1:]
            continue
        found = None if missing else _look(at, name)
        if isinstance(found, str):  # a link: follow it
            links += 1
            if links > _MOST_LINKS:
                raise PathInvalid("more links on the way than are followed")
            if found.startswith("/"):
                at, nodes = [], []
            todo += _names(found)
            continue
        at.append(name)
        if found is None:
            missing = True
        else:
            nodes.append(found)
    return {_directory("/"), *nodes}


def _names(path: str) -> list[str]:
    """Return the names along a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _look(at: list[str], name: str) -> _Node | str | None:
    """Return what exists at a name: a directory or file, the target of a link, or None."""
    path = "/" + "/".join([*at, name])
    try:
        found = os.lstat(path)
        link = os.readlink(path) if stat.S_ISLNK(found.st_mode) else None  # noqa: PTH115 - a text
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PathInvalid(f"the path can't be followed: {error.strerror}") from None
    if link is None:
        return _Node(found.st_dev, found.st_ino)
    if at[:1] == ["proc"]:  # the kernel's magic links lead elsewhere than their text says
        raise PathInvalid("a link of /proc leads where its text does not say")
    return link


# --- spellings -----------------------------------------------------------------------------------


def _check_written(path: str) -> None:
    """Refuse spellings that programs may read as different paths."""
    if not path or not path.strip():
        raise PathInvalid("an empty path")
    if len(path) > _LONGEST or len(path.encode("utf-8", "surrogatepass")) > _LONGEST:
        raise PathInvalid(f"a path has at most {_LONGEST} bytes")
    if "\\" in path:
        raise PathInvalid("a backslash in a path separates names for some programs only")
    if path.startswith("~"):
        raise PathInvalid("`~` means a home directory for some programs; write it out, or `./~`")
    if path.startswith("//"):
        raise PathInvalid("two slashes at the start name another machine for some programs")
    if _ELSEWHERE.match(path):
        raise PathInvalid("a URL, or a path with a drive")
    if _ENCODED.search(path):
        raise PathInvalid("percent-encoded dots, slashes or control characters in a path")
    if _VARIABLE.search(path):
        raise PathInvalid("a variable in a path; write out its value")
    for name in path.split("/"):
        _check_name(name)


def _check_name(name: str) -> None:
    if name in {"", ".", ".."}:
        return
    if name[0] == " " or name[-1] in ". ":
        raise PathInvalid("a name that begins with a space, or ends with one or a dot")
    if name.isascii() and name.isprintable():
        return
    if odd := next((c for c in name if _is_odd(c)), None):
        raise PathInvalid(f"the character U+{ord(odd):04X} looks like another character")
    if not unicodedata.is_normalized("NFC", name):
        raise PathInvalid("a path that is not in Unicode's normal form NFC")
    compatible = unicodedata.normalize("NFKC", name)
    if {"/", "\\", "~"} & (set(compatible) - set(name)) or not compatible.strip(". "):
        raise PathInvalid("characters that look like `/`, `\\`, `~` or `.`")


def _is_odd(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN or character in _DOTS_AND_SLASHES
