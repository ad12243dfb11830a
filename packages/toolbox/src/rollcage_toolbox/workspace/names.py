"""Valid paths: decided by their text only, before any file is accessed.

A path is relative to the workspace's root and separated by `/`. A path that another program could
read differently is refused, not repaired: `..`, absolute and Windows forms, percent-encoded
separators, control and invisible characters, Unicode that is not in NFC (Unicode Annex 15).
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from rollcage_toolbox.errors import PathRefused
from rollcage_toolbox.store_files import DEFAULT_NAME

__all__ = ["TEMPORARY", "canonical", "folded", "parts", "usable"]

TEMPORARY: Final = ".rollcage-tmp-"
"""The prefix of unfinished files; no tool accepts or shows them."""

_LONGEST_NAME: Final = 255  # bytes, of most file systems
_LONGEST_PATH: Final = 4096  # bytes, Linux' PATH_MAX
_DEEPEST: Final = 64  # directories: each is held open on the way down
_ENCODED: Final = re.compile(r"%(?:u00)?(?:2e|2f|5c|25|c0|c1|7f|[01][0-9a-f])", re.IGNORECASE)
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_SLASHES: Final = frozenset("\u2044\u2215\u2216\u29f5\u29f8\u29f9\ufe68\uff0f\uff3c")
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, format, surrogate, separators


def parts(path: str, *, root: bool = False) -> tuple[str, ...]:
    """Return the names along a path; none for the root itself, if `root` allows it.

    One leading `./` and one trailing `/` are accepted: they mean the same everywhere.

    Raises:
        PathRefused: the path can't be used; says why.
    """
    if path in (".", "./"):
        if root:
            return ()
        raise PathRefused(f"{path!r} is the workspace itself: name something in it", "path_empty")
    if not path:
        raise PathRefused("an empty path names nothing", "path_empty")
    if path.startswith(("/", "\\")) or _DRIVE.match(path):
        raise PathRefused(
            f"{path!r} is absolute: give a path relative to the workspace", "path_absolute"
        )
    if len(path.encode("utf-8", "surrogatepass")) > _LONGEST_PATH:
        raise PathRefused(f"a path has at most {_LONGEST_PATH} bytes", "path_too_long")
    names = tuple(path.removeprefix("./").removesuffix("/").split("/"))
    if len(names) > _DEEPEST:
        raise PathRefused(f"a path has at most {_DEEPEST} parts", "path_too_long")
    first = names[0]
    if len(names) > 1 and first.endswith(":"):
        raise PathRefused(f"{path!r} is an address, not a path in the workspace", "path_absolute")
    if first.startswith("~") and not first.startswith("~$"):
        raise PathRefused(f"{path!r} means a home directory elsewhere", "path_absolute")
    for name in names:
        _check(name, path)
    return names


def canonical(path: str, *, root: bool = False) -> str:
    """Return the one spelling of a path for keys and results; empty for the root."""
    return "/".join(parts(path, root=root))


def usable(name: str) -> bool:
    """Return whether a name found in a directory can be used in a path."""
    try:
        _check(name, name)
    except PathRefused:
        return False
    return True


def folded(name: str) -> str:
    """Return a form that is equal for names that a file system may confuse."""
    if name.isascii():
        return name.lower()  # the same, faster: a whole directory's names are folded
    decomposed = unicodedata.normalize("NFD", name).casefold()
    return unicodedata.normalize("NFC", decomposed)


def _check(name: str, path: str) -> None:
    if not name:
        raise PathRefused(f"{path!r} has an empty name in it", "path_empty")
    if name in {".", ".."}:
        raise PathRefused(f"{path!r}: {name!r} is no name; give the path itself", "path_parent")
    _check_unicode(name, path)
    if "\\" in name or name[-1] in ". " or name[0] == " ":
        raise PathRefused(
            f"{path!r}: {name!r} has a backslash, begins with a space, or ends with one or a dot: "
            f"elsewhere that is another file",
            "path_name",
        )
    if _ENCODED.search(name):
        raise PathRefused(f"{path!r}: {name!r} is percent-encoded", "path_encoded")
    if len(name.encode()) > _LONGEST_NAME:
        raise PathRefused(f"a name has at most {_LONGEST_NAME} bytes", "path_too_long")
    if name.casefold() == DEFAULT_NAME:
        raise PathRefused(f"{path!r}: {DEFAULT_NAME} is Rollcage's own store", "path_store")
    if name.casefold().startswith(TEMPORARY):
        raise PathRefused(
            f"{path!r}: names like {TEMPORARY}* are for unfinished files", "path_reserved"
        )


def _check_unicode(name: str, path: str) -> None:
    if name.isascii() and name.isprintable():
        return
    odd = next((c for c in name if unicodedata.category(c) in _UNSEEN or c in _SLASHES), None)
    if odd is not None:
        raise PathRefused(
            f"{path!r} has the character U+{ord(odd):04X}, which looks like another character",
            "path_unicode",
        )
    if not unicodedata.is_normalized("NFC", name):
        raise PathRefused(f"{path!r} is not in Unicode's normal form NFC", "path_unicode")
    compatible = unicodedata.normalize("NFKC", name)
    if {"/", "\\"} & set(compatible) or not compatible.strip(". "):
        raise PathRefused(
            f"{path!r} has characters that look like `/`, `\\` or `.`", "path_unicode"
        )
