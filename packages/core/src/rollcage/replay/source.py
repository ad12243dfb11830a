"""Find the run from which a session starts: in its own store, in another store, or in a file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import orjson

from rollcage.errors import RunNotFound, SourceMissing, StoreError, TraceCorrupt
from rollcage.trace.chain import attested_head, held_to
from rollcage.trace.folder import Folder
from rollcage.trace.store import Store, open_store, store_option

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RunSource", "Source", "copy_blobs", "find_source", "where_given"]

RunSource = str | os.PathLike[str] | tuple[str | os.PathLike[str] | Store, str]
"""A recorded run: its id, the path of its log, or a pair of its store and its id."""

_BLOB: Final = re.compile(rb'"\$rollcage":"blob"[^{}]*?"sha256":"([0-9a-f]{64})"')


class Source(NamedTuple):
    """Say where the lines of a run are, and the blobs that they name."""

    store: Store
    run: str


class _LogFile:
    """Read a log outside of its store, as a store of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = str(path)

    def is_live(self, run: str) -> bool:  # noqa: ARG002 - a file has one run
        """Return False: a log outside of its store has no writer."""
        return False

    def read(self, run: str, after: int = 0) -> list[bytes]:  # noqa: ARG002 - a file has one run
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            raise RunNotFound(f"there is no log at {self.path}") from None
        except OSError as error:
            raise StoreError(f"{self.path} can't be read: {error}") from error
        return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)[after:]

    def get(self, kind: str, key: str) -> bytes | None:
        """Return a value of the store around the file, if the file is still in one."""
        return Folder(self.path.parent.parent).get(kind, key)


def where_given(source: RunSource, store: Store) -> Source:
    """Return the place of a run that was given as a source.

    Raises:
        RunNotFound: there is no log at that path.
        TraceCorrupt: that file is no log.
    """
    if isinstance(source, tuple):
        return Source(open_store(source[0]), source[1])
    path = Path(source)
    if isinstance(source, str) and not (path.suffix == ".jsonl" or os.sep in source):
        return Source(store, source)
    file = cast("Store", _LogFile(path))
    lines = file.read("")
    try:
        return Source(file, str(orjson.loads(lines[0])["run"]))
    except (IndexError, KeyError, TypeError, ValueError):
        raise TraceCorrupt(str(path), 1, "it does not begin as the log of a run") from None


def find_source(source: RunSource, store: Store) -> tuple[Source, list[bytes]]:
    """Return the place of a source, and its lines.

    Raises:
        SourceMissing: the run is gone.
        TraceCorrupt: its attested end is missing.
        StoreError: the run can't be read.
    """
    found = where_given(source, store)
    try:
        head = attested_head(found.store, found.run)
        lines = found.store.read(found.run)
        return found, list(held_to(lines, head, f"run {found.run}"))
    except RunNotFound as error:
        raise SourceMissing(
            f"run {found.run}, which this session starts from, is not there any more: {error}. To "
            f"see what the store has: rollcage runs{store_option(found.store)}"
        ) from None


def copy_blobs(lines: Iterable[bytes], source: Store, store: Store) -> None:
    """Copy the large values named in lines to another store.

    Raises:
        StoreError: a value is missing.
    """
    if source is store:
        return
    for line in lines:
        for found in _BLOB.findall(line):
            digest = found.decode()
            data = source.get("blobs", digest)
            if data is None:
                raise StoreError(f"the large value {digest} of the run to start from is gone")
            store.swap("blobs", digest, None, data)
