"""Which store is meant: by a folder's name, or by a URL."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast
from urllib.parse import unquote

from rollcage.errors import StoreError
from rollcage.store.jsonl import JsonlStore
from rollcage.store.layout import SCHEME
from rollcage.store.protocol import Store

__all__ = ["GROUP", "open_store"]

GROUP: Final = "rollcage.stores"
"""The entry points by which a package brings a store: a URL's scheme, and what opens such a URL."""

_BROUGHT_BY: Final = {"postgres": "postgres", "postgresql": "postgres"}  # extras


def open_store(where: str | os.PathLike[str] | Store) -> Store:
    """The store at a folder or URL. Nothing is made before a session needs it.

    ==========================  ==================================================================
    `./.rollcage`               a folder of JSONL files; so is any `Path`
    `file:///srv/runs`          the same
    `sqlite:///runs.db`         a SQLite file; with four slashes, the path is absolute
    `NAME://…`                  what an installed package brings: entry points `rollcage.stores`
    ==========================  ==================================================================

    A store is given back as it is.

    Raises:
        StoreError: the URL is of no store that is known here, or has no path.
    """
    if isinstance(where, Store):
        return where
    if not isinstance(where, str | os.PathLike):
        raise StoreError(f"a store is a folder, a URL or a Store, not {where!r}")
    text = os.fspath(where)
    if not text:
        raise StoreError("a store needs a folder or a URL, not an empty text")
    found = SCHEME.match(text) if isinstance(where, str) else None
    if found is None:
        return JsonlStore(text)
    scheme, rest = found[1].lower(), text[found.end() :]
    if scheme == "file":
        return JsonlStore(_path(text, rest))
    if scheme == "sqlite" and rest.startswith("//"):
        from rollcage.store.sqlite import SqliteStore  # only who uses it pays for it

        return SqliteStore(_path(text, rest).removeprefix("/") or _no_path(text))
    if rest.startswith("//"):
        return _brought(scheme, text)
    if Path(text).exists():  # a folder may be called so
        return JsonlStore(text)
    raise StoreError(f"{text!r} is no URL of a store ({scheme}://…); a folder is written ./{text}")


def _path(url: str, rest: str) -> str:
    """The path of a URL without a host; `sqlite:///a` has that of `/a`."""
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise StoreError(
                f"{url!r} names a host, {host!r}, and this store is a local file: three slashes "
                f"stand before its path"
            )
        rest = slash + path
    if "?" in rest or "#" in rest:
        raise StoreError(f"{url!r}: a `?` or `#` in a path is written %3F or %23")
    return unquote(rest) or _no_path(url)


def _no_path(url: str) -> str:
    raise StoreError(f"{url!r} names no file")


def _brought(scheme: str, url: str) -> Store:
    """The store of another package."""
    from importlib.metadata import entry_points  # only who uses it pays for it

    for entry in entry_points(group=GROUP, name=scheme):
        opens = cast("Callable[[str], Store]", entry.load())
        return opens(url)
    known = sorted({"file", "sqlite", *(entry.name for entry in entry_points(group=GROUP))})
    extra = _BROUGHT_BY.get(scheme)
    helps = f'; pip install "rollcage[{extra}]" brings it' if extra else ""
    raise StoreError(f"no store is known for {scheme}:// (there is {', '.join(known)}){helps}")
