"""How a file is known again: nobody but its own writers changed it since it was looked through.

Next to the file is its mark: which file it was, how long, when it was written last, since which
start of the machine, and a check of all its bytes. A mark that does not fit says nothing but "look
through it again": a lost one costs time, and a power cut, which may take the end of a file, makes
each of them void.

Whoever is about to add what the file does not hold yet *suspends* the mark until it does, so
that nobody takes the file for all that there is; what others add meanwhile keeps it suspended.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Final, NamedTuple

from rollcage.store import disk, system

__all__ = ["Mark", "Marked"]

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_LENGTH: Final = 159  # bytes; one length, for some file systems wait for the disk after a cut


class Marked(NamedTuple):
    """What a mark says of a file that it fits.

    Attributes:
        suspended: whether somebody is about to add what the file does not hold yet.
        check: the CRC-32 of all its bytes.
        now: what the file is, as `Mark.now` says.
    """

    suspended: bool
    check: int
    now: bytes


class Mark:
    """The mark of one file."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._mark = str(path.with_suffix(".mark"))

    @property
    def started(self) -> str:
        """Which start of the machine this is."""
        return _start_of(system.files).decode()

    def now(self, size: int | None = None) -> bytes:
        """What distinguishes the file as it is now from any other; empty if there is none.

        `size`: how long it is, where that is known: else somebody has cut it meanwhile.
        """
        try:
            found = system.files.stat(self._path)
        except OSError:
            return b""
        if size is not None and found.st_size != size:
            return b""
        which = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        return b"%b %d %d %d %d" % (_start_of(system.files), *which)

    def read(self) -> Marked | None:
        """What the mark says; None where it is of another file than the one that is there now."""
        try:
            state, check, which = disk.read_short(self._mark, _LENGTH + 1).split(b" ", 2)
            now = self.now()
            if now and which.rstrip() == now and state in (b"+", b"-"):
                return Marked(state == b"-", int(check, 16), now)
        except (OSError, ValueError):
            pass
        return None

    def fits(self, check: int | None = None) -> bool:
        """Whether the file is as it was when it was marked, and all that there is.

        Args:
            check: the CRC-32 of all that was read of it.
        """
        marked = self.read()
        return marked is not None and not marked.suspended and check in (None, marked.check)

    def set(self, marked: Marked) -> None:
        """Mark the file as it was at that `now`. Without the right to, it stays unmarked."""
        mark = b"%b %08x %b" % (b"-" if marked.suspended else b"+", marked.check, marked.now)
        with contextlib.suppress(OSError):
            descriptor = disk.open_file(self._mark, os.O_WRONLY | os.O_CREAT)
            try:
                disk.write(descriptor, mark.ljust(_LENGTH) + b"\n")
            finally:
                system.files.close(descriptor)


@functools.lru_cache(maxsize=1)
def _start_of(files: system.Files) -> bytes:
    """Which start of the machine this is; if the system does not say, none equals another."""
    try:
        return disk.read(_BOOT).strip()
    except OSError:
        return files.urandom(8).hex().encode()
