"""How a file is known again: nobody but its own writers changed it since it was looked through.

Beside the file lies its mark: which file it was, how long, when it was written last, and since
which start of the machine. A mark that does not fit says nothing but "look through it again": a
lost one costs time, and a power cut, which may take the end of a file, makes each of them void.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Final

from rollcage.store import disk, system

__all__ = ["Mark"]

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_LENGTH: Final = 159  # bytes; one length, for some file systems wait for the disk after a cut


class Mark:
    """The mark of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = path.with_suffix(".mark")

    @property
    def started(self) -> str:
        """Which start of the machine this is."""
        return _started()

    def now(self) -> bytes:
        """What the mark of the file as it is now would say; nothing where there is no file."""
        try:
            found = system.files.stat(self._path)
        except OSError:
            return b""
        which = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        said = f"{_started()} {' '.join(map(str, which))}".encode()
        return said.ljust(_LENGTH) + b"\n"

    def fits(self) -> bool:
        """Whether the file is as it was when it was marked."""
        try:
            mark = disk.read(self._mark)
        except OSError:
            return False
        return bool(mark) and mark == self.now()

    def set(self, mark: bytes) -> None:
        """Mark the file, with what `now` said; nothing voids its mark. Who can't, goes without."""
        with contextlib.suppress(OSError):
            descriptor = disk.open_file(self._mark, os.O_WRONLY | os.O_CREAT)
            try:
                disk.write(descriptor, mark or b"-")
            finally:
                system.files.close(descriptor)


def _started() -> str:
    """Which start of the machine this is; where the system does not tell, none is like another."""
    return _start_of(system.files)


@functools.lru_cache(maxsize=1)
def _start_of(files: system.Files) -> str:
    try:
        return disk.read(_BOOT).decode().strip()
    except OSError:
        return files.urandom(8).hex()
