"""An append-only file that any number of processes write, one line after the other.

Each line holds the hash of the one before, as those of a trace do. Next to it, `<name>.head` holds
the count and the hash of the last line, so that what is cut off from the end shows, too.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from rollcage.errors import RegistryCorrupt, StoreError, TraceCorrupt
from rollcage.store import disk, system
from rollcage.store.protocol import Line
from rollcage.trace.events import seal_line
from rollcage.trace.reader import read_events, split_tail, tail_of

__all__ = ["ChainedFile", "Head", "check_lines"]

_log: Final = logging.getLogger("rollcage")


class Head(NamedTuple):
    """Where a log ends, as is attested next to it."""

    lines: int  # how many there are
    head: str  # the hash of the last (hex); empty where there is none


def check_lines(data: bytes, where: str, begins: str, head: Head) -> list[Line]:
    """The lines of a log, held against what is attested of its end; a torn last one is none.

    Args:
        data: all of it.
        where: a name for it in messages.
        begins: the `event` of its first line.
        head: what is attested; read before `data`, so that it is not newer.

    Raises:
        RegistryCorrupt: the first line that breaks the chain, or that lines are gone.
    """
    whole, lines = split_tail(data)[0], list[Line]()
    if whole:
        try:
            lines = list(read_events(whole, where, begins=begins))
        except TraceCorrupt as error:
            raise RegistryCorrupt(where, error.line, error.reason) from None
    if len(lines) < head.lines:
        message = f"there were {head.lines} lines, {len(lines)} are left"
        raise RegistryCorrupt(where, len(lines) + 1, message)
    if head.lines and lines[head.lines - 1][1].get("hash") != head.head:
        raise RegistryCorrupt(where, head.lines, f"its hash is not the attested {head.head[:12]}…")
    return lines


class ChainedFile:
    """An append-only file of JSON lines, chained by their hashes.

    Args:
        path: where it lies; made with the first line.
        begins: the `event` of its first line.
    """

    def __init__(self, path: Path, begins: str) -> None:
        self.path = path
        self.where = str(path)
        self._begins = begins
        self._head_path = path.with_suffix(".head")

    def read(self) -> list[Line]:
        """Its lines; none where it was never written.

        A last line that its writer did not bring to an end is no line.

        Raises:
            RegistryCorrupt: the first line that breaks the chain, or that lines are gone.
            StoreError: it can't be read.
        """
        data, head = self._bytes()
        return check_lines(data, self.where, self._begins, head)

    def append(
        self, make: Callable[[list[Line]], Sequence[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Add lines, once nobody else does: `make` is called with what is there, and gives them.

        When this returns, they are on the disk. What `make` raises ends it; nothing is written.

        Returns:
            The lines that were added.

        Raises:
            RegistryCorrupt: as in `read`; nothing is written.
            StoreError: they are not in the file, and it is as it was.
        """
        with self._locked() as descriptor:
            data, head = self._bytes()
            events = list(make(check_lines(data, self.where, self._begins, head)))
            whole, torn = split_tail(data)
            if torn:
                self._set_aside(descriptor, len(whole), torn)
            count, last = whole.count(b"\n"), tail_of(whole).head
            lines: list[bytes] = []
            for event in events:
                line, last = seal_line(event, last)
                lines.append(line)
            self._write(descriptor, len(whole), b"".join(lines))
            self._note(Head(count + len(lines), last.hex()))
        return events

    # --- reading ---------------------------------------------------------------------------------

    def _bytes(self) -> tuple[bytes, Head]:
        """What the file holds, and what the head attests: read first, so that it is not newer."""
        try:
            head = self._read_head()
            return disk.read(self.path), head
        except FileNotFoundError:
            return b"", self._read_head()
        except OSError as error:
            raise StoreError(f"{self.path} can't be read: {disk.describe(error)}") from error

    def _read_head(self) -> Head:
        try:
            data: Any = orjson.loads(disk.read(self._head_path))
            return Head(int(data["count"]), str(data["head"]))
        except FileNotFoundError:
            return Head(0, "")
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            message = f"it does not say where {self.path.name} ends: {error}"
            raise RegistryCorrupt(str(self._head_path), 1, message) from None

    # --- writing ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Generator[int]:
        try:
            disk.make_folder(self.path.parent)
            descriptor = disk.open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise StoreError(f"{self.path} can't be written: {disk.describe(error)}") from error
        try:
            try:
                disk.lock(descriptor)
            except OSError as error:
                raise StoreError(f"{self.path} can't be locked: {disk.describe(error)}") from error
            yield descriptor
        finally:
            system.files.close(descriptor)

    def _set_aside(self, descriptor: int, size: int, torn: bytes) -> None:
        """Move the torn last line of a killed writer to a file of its own."""
        _log.warning("%s: its last line is torn and is set aside", self.path)
        try:
            disk.add(self.path.with_suffix(".torn"), torn + b"\n")
            system.files.ftruncate(descriptor, size)
        except OSError as error:
            raise StoreError(f"{self.path} can't be repaired: {disk.describe(error)}") from error

    def _write(self, descriptor: int, size: int, data: bytes) -> None:
        try:
            disk.write(descriptor, data)
            system.files.fsync(descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):  # what is left of it is not a whole line
                system.files.ftruncate(descriptor, size)
            raise StoreError(f"{self.path} can't be written: {disk.describe(error)}") from error

    def _note(self, head: Head) -> None:
        """Attest the end; whoever is killed before this leaves one that attests less."""
        data = orjson.dumps({"count": head.lines, "head": head.head}) + b"\n"
        part = self._head_path.with_suffix(".head.part")  # under the lock: nobody else has it
        try:
            disk.replace(self._head_path, data, part=part)
        except OSError as error:
            _log.warning("the end of %s is not attested: %s", self.path, disk.describe(error))
