"""What keeps runs: a store of logs, and of values that are compared and swapped.

A run is one log of chained lines. The head of a log is its fence: a line is put on record only
where the line before it is this writer's. Whoever takes a run over appends a line first, so the
next line of the writer before is refused, and with it the next body.

Everything else that a store keeps is a `swap`:

===================  ==============================================================
the newest run       ``swap("names", name, seen, run)``
a document, once     ``swap(kind, key, None, data)``
a claim              ``swap("once", key, None, run)``: of an effect that happens once
an order             ``swap("orders", run, seen, order)``, which also rings the bell
a blob               ``swap("blobs", digest, None, data)``
to drop any of them  ``swap(kind, key, seen, None)``
===================  ==============================================================

**Orders.** A session must see an order, a pause say, that was given before its next body began.
Notifications come when they come. So each log reads the bell no earlier than it puts a line on
record, and `Log.bell` is that reading: a session looks at it behind the `wait` for an intent, and
reads its orders only where the number has changed. It costs no round trip of its own, and whoever
gave an order and was told so finds every later intent refused.

**Lost acknowledgements.** A connection may break behind a commit. A log finds out by itself which
of its lines are on record, as no two writers append equal bytes (the line `attempt` has a random
id). A `swap` is taken for done where the value is found to be `new`: put something of your own into
a value that others might swap in as well.
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
from rollcage.trace.ends import Ends
from rollcage.trace.folder import Folder

__all__ = ["GROUP", "Ends", "Log", "Store", "drop", "every_key", "open_store", "store_option"]

GROUP: Final = "rollcage.logs"
"""The entry points by which packages bring stores: a URL's scheme, and what opens such a URL."""

_openers: Final[dict[str, Callable[[str], Store]]] = {}
"""What opens the URLs of a scheme, once it was found: to look for it reads many files."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class Log(Protocol):
    """A run's lines, as one writer appends them.

    A log is used by one thread at a time, except for `wait`. It never forgets a refusal: behind
    `Fenced`, or where it can't be known what is on record, each append is refused.
    """

    @property
    def is_at_once(self) -> bool:
        """Whether a line outlives its process as soon as `append` has returned."""
        ...

    where: str
    """What errors call it: a path, or a URL without a password."""

    last: bytes
    """The last line that was appended, or read. It tells a caller whose `append` was interrupted,
    by Ctrl-C say, whether the line counts."""

    @property
    def bell(self) -> int:
        """The store's bell, as it was when the last line that was waited for was put on record.

        Or as it is now: it is never older than that line. To ask for it takes no round trip.
        """
        ...

    def hear(self) -> Callable[[], int] | None:
        """Return what tells, without any I/O, a number that changes behind each order.

        None where there is no such thing, as for a database on another machine.
        """
        ...

    def read(self) -> list[bytes]:
        """Return all whole lines, each with its newline. From here on the head is this writer's.

        What follows the last newline never counted (a kill or a full disk tore it), and is removed.

        Raises:
            StoreError: they can't be read.
        """
        ...

    def lines(self) -> Iterator[bytes]:
        """Yield what `read` returns, one by one; the head is this writer's once all came."""
        ...

    def append(self, line: bytes) -> None:
        """Send a line, in order; it may not be on record yet.

        Args:
            line: JSON that ends in ``,"hash":"<64 hex digits>"}`` and a newline.

        Raises:
            Fenced: the line before is not this writer's.
            TraceUnwritable: it can't be written; it is not on record.
            Forked: in a forked child of the process that opened the log.
        """
        ...

    def wait(self) -> None:
        """Wait until all appended lines are on record; any thread may.

        Raises:
            Fenced: one of them was refused.
            TraceUnwritable: one of them can't be written, or nobody knows whether it is.
        """
        ...

    async def settled(self) -> None:
        """Wait as `wait` does, without blocking the loop."""
        ...

    def replace(self, lines: Sequence[bytes]) -> None:
        """Put these lines in the place of all that are on record, in one go.

        Where a writer may be alive that this one took the run over from, append a line first: that
        refuses the other's next one; and let them end with a line that no other writer has read. A
        reader sees all of the former lines or all of these.

        Args:
            lines: each with its newline; none: the run is not there any more.

        Raises:
            Fenced: the last line on record is not this writer's.
            TraceUnwritable: they can't be written; what was on record is on record.
            Forked: in a forked child of the process that opened the log.
        """
        ...

    def close(self) -> None:
        """Wait for what was appended, and let the run go, also where the former fails."""
        ...


@runtime_checkable
class Store(Protocol):
    """Logs, and values that are compared and swapped.

    Threads may share a store; its logs outlive it. To make one does no I/O.
    """

    @property
    def url(self) -> str:
        """By what `open_store` finds the same store, without a password."""
        ...

    def open(self, run: str, *, take: bool = False) -> Log:
        """Open a run's log to append to it; a new run has an empty one.

        A lock that dies with its process says whether a run is in use. That is a courtesy: what
        keeps two writers apart is the fence.

        Args:
            run: the run's id.
            take: open it although its writer may be alive: from the first line that is appended
                here, the other one is refused.

        Raises:
            RunInUse: its writer lives.
            StoreInvalid: it can't be the id of a run.
            StoreError: it can't be opened.
        """
        ...

    def read(self, run: str, after: int = 0) -> list[bytes]:
        """Return the whole lines of a run, to look at them.

        Args:
            run: the run's id.
            after: how many lines to skip; negative: return so many of the last lines.

        Raises:
            RunNotFound: there is no such run.
            StoreError: they can't be read.
        """
        ...

    def runs(self, before: str = "", limit: int = 1000) -> list[Ends]:
        """Return the ends of runs, from the greatest id downwards.

        The ids that sessions give grow as time goes on, and those of a job always do: so the newest
        runs come first, in the order of code points. A limited list costs the same beside ten runs
        and a million, but for the folder's, which reads all names.

        Args:
            before: only ids that are smaller; empty: from the greatest.
            limit: only so many.

        Raises:
            StoreError: they can't be read.
        """
        ...

    def ends(self, run: str) -> Ends:
        """Return the ends of one run.

        Raises:
            RunNotFound: there is no such run.
            StoreError: they can't be read.
        """
        ...

    def is_live(self, run: str) -> bool:
        """Return whether a run's writer lives; to ask is in nobody's way."""
        ...

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value, or None where there is none."""
        ...

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        """Put `new` in place of `was`, unless the value is another; say whether it is `new` now.

        Args:
            kind: a word: `names`, `once`, `orders`. Any swap of an order rings the bell.
            key: any text of 1 to 1,024 bytes.
            was: what the caller has seen; None: nothing.
            new: what is to be there; None: nothing.
        """
        ...

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> list[str]:
        """Return the keys behind `after` that have a value, in order of their code points."""
        ...

    def bell(self) -> int:
        """Return another number than before any swap of kind `orders`, by whichever process."""
        ...


def drop(store: Store, kind: str, key: str) -> bool:
    """Remove a value, whatever it is; return whether there was one.

    Raises:
        StoreError: it can't be removed.
    """
    while True:
        seen = store.get(kind, key)
        if seen is None:
            return False
        if store.swap(kind, key, seen, None):
            return True


def every_key(store: Store, kind: str) -> Iterator[str]:
    """Give all keys of a kind that have a value, in order of their code points."""
    after = ""
    while keys := store.keys(kind, after):
        yield from keys
        after = keys[-1]


def open_store(where: str | os.PathLike[str] | Store) -> Store:
    """Return the store at a folder or URL; nothing is made, and no connection, before it is used.

    ==========================  ==================================================================
    `./.rollcage`               a folder of JSONL files; so is any `Path`
    `file:///srv/runs`          the same
    `sqlite:///runs.db`         a SQLite file, with `rollcage-stores`
    `postgresql://host/runs`    a schema of a PostgreSQL database, with `rollcage-stores[postgres]`
    `NAME://…`                  what an installed package brings: entry points `rollcage.logs`
    ==========================  ==================================================================

    A folder or file has the durability `os`: what was recorded survives its process, not a power
    cut. With `?durability=disk` in its URL an intent is on the disk before its body runs.

    Raises:
        StoreInvalid: the URL is of no store that is known here, or it has no path.
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
    """Return what a command line needs to find a store: ` --store URL`; empty where it looks."""
    try:
        looked = open_store(os.environ.get("ROLLCAGE_STORE") or ".rollcage").url
    except RollcageError:
        looked = ""  # it looks where there is none
    return "" if store.url == looked else f" --store {shlex.quote(store.url)}"


def _local(url: str, rest: str) -> Folder:
    """The store at the path of a `file:` URL."""
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
    """The store that an installed package brings for this scheme."""
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
