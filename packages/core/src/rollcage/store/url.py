"""Which store is meant: by a folder's name, or by a URL."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast
from urllib.parse import unquote

from rollcage.errors import RunNotFound, StoreInvalid
from rollcage.store import system
from rollcage.store.jsonl import JsonlStore, open_trace
from rollcage.store.layout import SCHEME, is_database
from rollcage.store.protocol import Reader, Store, is_run_id

__all__ = ["GROUP", "RunSource", "open_run", "open_store"]

GROUP: Final = "rollcage.stores"
"""The entry points by which a package brings a store: a URL's scheme, and what opens such a URL."""

_stores: Final[weakref.WeakSet[type]] = weakref.WeakSet()
"""Types that were found to be stores: to look at all their methods takes as long as a call."""

_open: Final[weakref.WeakValueDictionary[tuple[system.Files, str, str], JsonlStore]] = (
    weakref.WeakValueDictionary()
)
"""Those in folders that somebody uses by now: the sessions of a service name the same one again."""

RunSource = str | os.PathLike[str] | tuple[str | os.PathLike[str] | Store, str]
"""A recorded run: its id, the path of its trace, or a store (a folder, a URL, or one that is open)
and its id there."""


def open_store(where: str | os.PathLike[str] | Store, *, patience: float | None = None) -> Store:
    """The store at a folder or URL. Nothing is made before a session needs it.

    ==========================  ==================================================================
    `./.rollcage`               a folder of JSONL files; so is any `Path`
    `file:///srv/runs`          the same
    `sqlite:///runs.db`         a SQLite file; with four slashes, the path is absolute
    `postgresql://host/runs`    a schema of a PostgreSQL database: `rollcage[postgres]`
    `NAME://…`                  what an installed package brings: entry points `rollcage.stores`
    ==========================  ==================================================================

    A store is given back as it is.

    Args:
        where: the folder or URL.
        patience: seconds for which a database may be down, or silent, before what is asked of it
            fails; where its URL does not say so. None: as long as is good for a run.

    Raises:
        StoreInvalid: the URL is of no store that is known here, or has no path; or it is a file.
    """
    if not isinstance(where, str | os.PathLike):
        if type(where) in _stores or isinstance(where, Store):
            _stores.add(type(where))
            return where
        raise StoreInvalid(f"a store is a folder, a URL or a Store, not {where!r}")
    text = os.fspath(where)
    if not text:
        raise StoreInvalid("a store needs a folder or a URL, not an empty text")
    found = SCHEME.match(text) if isinstance(where, str) else None
    if found is None:
        return _folder(text)
    scheme, rest = found[1].lower(), text[found.end() :]
    if scheme == "file":
        return _folder(_path(text, rest))
    if scheme == "sqlite" and rest.startswith("//"):
        from rollcage.store.sqlite import SqliteStore  # only who uses it pays for it

        return SqliteStore(_path(text, rest).removeprefix("/") or _no_path(text))
    if scheme in ("postgres", "postgresql") and rest.startswith("//"):
        return _postgres(text, patience)
    if rest.startswith("//"):
        return _brought(scheme, text)
    if Path(text).exists():  # a folder may be called so
        return _folder(text)
    raise StoreInvalid(
        f"{text!r} is not the URL of a store ({scheme}://…); a folder is written ./{text}"
    )


def open_run(source: RunSource, own: Store | None = None) -> tuple[Reader, str]:
    """A recorded run, by how it is named: where it is read from, and its id.

    Args:
        source: its id in the store of one's own, the path of its trace, or a store and its id.
        own: that store, if there is one; what is in it is read from it, however it is named.

    Raises:
        RunNotFound: there is no such file, or an id alone, and no store of one's own.
        StoreError: the file is not named `<run id>.jsonl`, or the store is none.
    """
    if isinstance(source, tuple):
        where, run = source
        other = open_store(where)
        return (other if own is None or own.url != other.url else own), run
    if isinstance(source, str) and is_run_id(source):
        if own is None:
            raise RunNotFound(
                f"{source} is the id of a run, and no store is named: pass (store, {source!r})"
            )
        return own, source
    folder, run = open_trace(Path(source))
    if isinstance(own, JsonlStore) and isinstance(folder, JsonlStore):
        folder = own if own.root.resolve() == folder.root.resolve() else folder
    return folder, run


def _folder(path: str) -> JsonlStore:
    if os.path.isfile(path):  # noqa: PTH113 - of a text, for each session
        database = is_database(None, path)
        helps = f"; a store in SQLite is written sqlite:///{path}" if database else ""
        raise StoreInvalid(f"{path!r} is a file, and a store is a folder{helps}")
    here = "" if os.path.isabs(path) else os.getcwd()  # noqa: PTH109, PTH117 - a Path is slow
    key = system.files, path, here
    store = _open.get(key)
    if store is None:
        store = _open[key] = JsonlStore(path)
    return store


def _path(url: str, rest: str) -> str:
    """The path of a URL without a host; `sqlite:///a` has that of `/a`."""
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise StoreInvalid(
                f"{url!r} names a host, {host!r}, and this store is a local file: write three "
                f"slashes before its path"
            )
        rest = slash + path
    if "?" in rest or "#" in rest:
        raise StoreInvalid(f"{url!r}: a `?` or `#` in a path is written %3F or %23")
    return unquote(rest) or _no_path(url)


def _no_path(url: str) -> str:
    raise StoreInvalid(f"{url!r} names no file")


def _postgres(url: str, patience: float | None) -> Store:
    try:
        from rollcage.store.postgres import PostgresStore
    except ImportError as error:
        if error.name != "psycopg":
            raise
        raise StoreInvalid(
            'a store in PostgreSQL needs a library: pip install "rollcage[postgres]"'
        ) from error
    return PostgresStore(url, patience)


def _brought(scheme: str, url: str) -> Store:
    """The store of another package."""
    from importlib.metadata import entry_points  # only who uses it pays for it

    for entry in entry_points(group=GROUP, name=scheme):
        brought = f"{entry.dist.name if entry.dist else 'a package'} ({entry.value})"
        try:
            opens = cast("Callable[[str], object]", entry.load())
        except (ImportError, AttributeError) as error:
            raise StoreInvalid(
                f"{scheme}:// is brought by {brought}, which can't be loaded: {error}"
            ) from error
        store = opens(url)
        if not isinstance(store, Store):
            raise StoreInvalid(
                f"{scheme}:// is brought by {brought}, whose {store!r} is not a Store"
            )
        return store
    known = sorted({"file", "postgresql", "sqlite"} | {e.name for e in entry_points(group=GROUP)})
    raise StoreInvalid(f"no store is known for {scheme}:// (there is {', '.join(known)})")
