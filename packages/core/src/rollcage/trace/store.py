"""Define a store: logs of runs, and values that are compared and swapped.

A run is one log of chained lines. The head of a log is its fence: a line is put on record only if
this writer wrote the line before. A take-over appends a line first, so the old writer's next line
is refused, and with it the next body.

Everything else in a store is a `swap`:

===================  ==============================================================
the newest run       ``swap("names", name, seen, run)``
a document, once     ``swap(kind, key, None, data)``
a claim              ``swap("once", key, None, run)``: of an effect that happens once
an order             ``swap("orders", run, seen, order)``, which also rings the bell
a blob               ``swap("blobs", digest, None, data)``
the head of a log    ``swap("heads", run, seen, head)``, once an attempt has ended
dropping a value     ``swap(kind, key, seen, None)``
===================  ==============================================================

**Orders.** A session must see an order, such as a pause, that was given before its next body began.
Notifications may be late. So each log reads the bell no earlier than it puts a line on record, and
`Log.bell` returns that reading: a session looks at it behind the `wait` for an intent, and reads
its orders only if the number has changed. The look costs no round trip, and once an order has been
acknowledged, every later intent is refused.

**Lost acknowledgements.** A connection may break behind a commit. A log finds out by itself which
of its lines are on record, because no two writers append equal bytes (the line `attempt` has a
random id). A `swap` whose answer was lost counts as done if the stored value equals `new`: include
an id of your own in a value that other writers might swap in as well.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, cast, runtime_checkable
from urllib.parse import unquote

from rollcage.errors import RollcageError, StoreInvalid
from rollcage.trace.folder import Ends, Folder

__all__ = ["GROUP", "Ends", "Log", "Store", "drop", "every_key", "open_store", "store_option"]

GROUP: Final = "rollcage.logs"
"""The entry points by which packages bring stores: the scheme of a URL, and its opener."""

_openers: Final[dict[str, Callable[[str], Store]]] = {}
"""The opener of each scheme, once found: the search reads many files."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class Log(Protocol):
    """Append the lines of one run.

    A log is used by one thread at a time, except for `wait`. It never forgets a refusal: after
    `Fenced`, or an unknown state of the log, every append is refused.
    """

    @property
    def is_at_once(self) -> bool:
        """Tell whether a line outlives its process as soon as `append` has returned."""
        ...

    where: str
    """The name of the log in errors: a path, or a URL without a password."""

    last: bytes
    """The last line that was appended or read.

    After an interrupted `append`, such as by Ctrl-C, it shows whether the line counts.
    """

    @property
    def bell(self) -> int:
        """Return the store's bell, read when the last awaited line was put on record, or later.

        The reading is never older than that line, and takes no round trip.
        """
        ...

    def hear(self) -> Callable[[], int] | None:
        """Return a function that reads, without I/O, a number that changes behind each order.

        None without such a number, as for a database on another machine.
        """
        ...

    def read(self) -> list[bytes]:
        """Return all whole lines, each with its newline, and become the writer of the next line.

        Bytes behind the last newline never counted (a kill or a full disk tore them), and are
        removed.

        Raises:
            StoreError: the lines can't be read.
        """
        ...

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of `read` one by one; after the last, the head is this writer's."""
        ...

    def append(self, line: bytes) -> None:
        """Send a line, in order; it may not be on record yet.

        Args:
            line: JSON that ends in ``,"hash":"<64 hex digits>"}`` and a newline.

        Raises:
            Fenced: another writer wrote the line before.
            TraceUnwritable: the line can't be written; it is not on record.
            Forked: in a forked child of the process that opened the log.
        """
        ...

    def wait(self) -> None:
        """Wait until all appended lines are on record; any thread may.

        Raises:
            Fenced: a line was refused.
            TraceUnwritable: a line can't be written, or may not be on record.
        """
        ...

    async def settled(self) -> None:
        """Wait as `wait` does, without blocking the loop."""
        ...

    def replace(self, lines: Sequence[bytes]) -> None:
        """Replace all lines on record, in one go.

        If the run was taken over from a writer that may be alive, append a line first, so the old
        writer's next line is refused; and let the new lines end with a line that no other writer
        has read. A reader sees either all old lines or all new lines.

        Args:
            lines: the new lines, each with its newline; an empty list removes the run.

        Raises:
            Fenced: another writer wrote the last line on record.
            TraceUnwritable: the lines can't be written; the old lines stay on record.
            Forked: in a forked child of the process that opened the log.
        """
        ...

    def close(self) -> None:
        """Wait for appended lines, and release the run even if the wait fails."""
        ...


@runtime_checkable
class Store(Protocol):
    """Keep logs, and values that are compared and swapped.

    Threads may share a store; its logs outlive it. Making a store does no I/O.
    """

    @property
    def url(self) -> str:
        """Return the URL by which `open_store` finds the same store, without a password."""
        ...

    def open(self, run: str, *, take: bool = False) -> Log:
        """Open a run's log to append to it; a new run has an empty log.

        A lock that dies with its process says whether a run is in use. The lock is a courtesy: the
        fence keeps two writers apart.

        Args:
            run: the run's id.
            take: open the log although its writer may be alive: the first line appended here fences
                the other writer off.

        Raises:
            RunInUse: the writer of the run is alive.
            StoreInvalid: the text can't be the id of a run.
            StoreError: the log can't be opened.
        """
        ...

    def read(self, run: str, after: int = 0) -> list[bytes]:
        """Return the whole lines of a run, without opening it for writing.

        Args:
            run: the run's id.
            after: how many lines to skip; negative: return only so many of the last lines.

        Raises:
            RunNotFound: there is no such run.
            StoreError: the lines can't be read.
        """
        ...

    def runs(self, before: str = "", limit: int = 1000) -> list[Ends]:
        """Return the ends of runs, from the greatest id downwards.

        The ids given by sessions grow with time, and the ids of one job always do: so the newest
        runs come first, in the order of code points. A limited list costs the same beside ten runs
        and a million, except in a folder, which reads all names.

        Args:
            before: only smaller ids; empty: from the greatest.
            limit: the greatest number of runs.

        Raises:
            StoreError: the runs can't be read.
        """
        ...

    def ends(self, run: str) -> Ends:
        """Return the ends of one run.

        Raises:
            RunNotFound: there is no such run.
            StoreError: the run can't be read.
        """
        ...

    def is_live(self, run: str) -> bool:
        """Tell whether a run's writer is alive, without getting in its way."""
        ...

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value, or None without one."""
        ...

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        """Replace the value `was` by `new`, and tell whether the stored value was `was`.

        Another value stays, and the answer is False, even if it equals `new`. Only where the answer
        was lost behind a commit may a store take a stored `new` for its own.

        Args:
            kind: a word: `names`, `once`, `orders`. Any swap of an order rings the bell.
            key: any text of 1 to 1,024 bytes.
            was: the value that the caller has seen; None: no value.
            new: the new value; None: no value.
        """
        ...

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> list[str]:
        """Return the keys behind `after` that have a value, in the order of code points."""
        ...

    def bell(self) -> int:
        """Return a number that changes with every swap of kind `orders`, by any process."""
        ...


def drop(store: Store, kind: str, key: str) -> bool:
    """Remove a value, and tell whether there was one.

    Raises:
        StoreError: the value can't be removed.
    """
    while True:
        seen = store.get(kind, key)
        if seen is None:
            return False
        if store.swap(kind, key, seen, None):
            return True


def every_key(store: Store, kind: str) -> Iterator[str]:
    """Yield all keys of a kind that have a value, in the order of code points."""
    after = ""
    while keys := store.keys(kind, after):
        yield from keys
        after = keys[-1]


def open_store(where: str | os.PathLike[str] | Store) -> Store:
    """Return the store at a folder or URL; no file or connection is made before first use.

    ==========================  ==================================================================
    `./.rollcage`               a folder of JSONL files; so is any `Path`
    `file:///srv/runs`          the same
    `sqlite:///runs.db`         a SQLite file, with `rollcage-stores`
    `postgresql://host/runs`    a schema of a PostgreSQL database, with `rollcage-stores[postgres]`
    `NAME://…`                  a store of an installed package: entry points `rollcage.logs`
    ==========================  ==================================================================

    A folder or file has the durability `os`: recorded lines survive the death of the process, not a
    power cut. With `?durability=disk` in the URL, an intent is on the disk before its body runs.

    Raises:
        StoreInvalid: the scheme of the URL is unknown here, or the URL has no path.
    """
    if not isinstance(where, str | os.PathLike):
        if isinstance(where, Store):
            return where
        raise StoreInvalid(f"a store is a folder, a URL or a Store, not {where!r}")
    text = os.fspath(where)
    if not text or "\0" in text:
        raise StoreInvalid(f"a store needs a folder or a URL, not {text!r}")
    found = _SCHEME.match(text) if isinstance(where, str) else None
    if found is None:
        return Folder(text)
    scheme, rest = found[1].lower(), text[found.end() :]
    if scheme == "file":
        return _local(text, rest)
    if rest.startswith("//"):
        return _brought(scheme, text)
    if Path(text).exists():  # a folder may be called so
        return Folder(text)
    raise StoreInvalid(
        f"{text!r} is not the URL of a store ({scheme}://…); a folder is written ./{text}"
    )


def store_option(store: Store) -> str:
    """Return the command-line option for a store, ` --store URL`; empty for the default store."""
    try:
        looked = open_store(os.environ.get("ROLLCAGE_STORE") or ".rollcage").url
    except RollcageError:
        looked = ""  # the default store can't be opened
    return "" if store.url == looked else f" --store {shlex.quote(store.url)}"


def _local(url: str, rest: str) -> Folder:
    """Open the store at the path of a `file:` URL."""
    rest, _, query = rest.partition("?")
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise StoreInvalid(
                f"{url!r} names a host, {host!r}, and this store is a local folder: write three "
                f"slashes before its path"
            )
        rest = slash + path
    path = unquote(rest)
    if not path or "\0" in path or "#" in rest:
        raise StoreInvalid(f"{url!r} names no folder; a `?` or `#` in a path is written %3F or %23")
    if query not in ("", "durability=os", "durability=disk"):
        raise StoreInvalid(f"{url!r}: a folder knows ?durability=os and ?durability=disk only")
    return Folder(path, durability="disk" if query.endswith("disk") else "os")


def _brought(scheme: str, url: str) -> Store:
    """Open the store of an installed package for this scheme."""
    known_opener = _openers.get(scheme)
    if known_opener is not None:
        return known_opener(url)
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
        _openers[scheme] = cast("Callable[[str], Store]", opens)
        return store
    if scheme in ("sqlite", "postgres", "postgresql"):
        raise StoreInvalid(f'{scheme}:// needs a package: pip install "rollcage[stores]"')
    known = sorted({"file"} | {entry.name for entry in entry_points(group=GROUP)})
    raise StoreInvalid(f"no store is known for {scheme}:// (there is {', '.join(known)})")
