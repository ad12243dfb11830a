"""Map the number in a file into memory, so that a change is seen without I/O.

A session on an event loop looks at the number before each body that needs no intent. The number
changes behind each order, from any process of the machine. A mapping keeps its file: if the file is
removed or replaced, a ring in the new file is heard with the next intent, by the store's bell.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import weakref
from typing import Final

__all__ = ["Heard", "heard_at", "ring_at"]

_COUNT: Final = struct.Struct("<Q")
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Heard:
    """Read the current number in a file.

    Raises:
        OSError: the file can't be made.
    """

    __slots__ = ("__weakref__", "_map")

    def __init__(self, path: str) -> None:
        file = os.open(path, _FLAGS, 0o600)
        try:
            if os.fstat(file).st_size < _COUNT.size:
                os.ftruncate(file, _COUNT.size)
            self._map = mmap.mmap(file, _COUNT.size, access=mmap.ACCESS_READ)
        finally:
            os.close(file)

    def __call__(self) -> int:
        """Return the number."""
        count: int = _COUNT.unpack_from(self._map)[0]
        return count


_heard: Final[weakref.WeakValueDictionary[tuple[str, int], Heard]] = weakref.WeakValueDictionary()
_lock: Final = threading.Lock()


def heard_at(path: str) -> Heard | None:
    """Return the number of a file, made if needed; None if it can't be made.

    All sessions of a process share the mapping of a file.
    """
    try:
        with _lock:
            try:
                file = os.stat(path).st_ino  # noqa: PTH116 - a text
            except FileNotFoundError:
                file = -1
            found = _heard.get((path, file))
            if found is None:
                found = Heard(path)
                _heard[path, os.stat(path).st_ino] = found  # noqa: PTH116 - a text
            return found
    except OSError:
        return None


def ring_at(path: str) -> None:
    """Change the number in a file.

    Raises:
        OSError: the file can't be changed.
    """
    file = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # two at once would change it once
        data = os.pread(file, _COUNT.size, 0).ljust(_COUNT.size, b"\0")
        os.pwrite(file, _COUNT.pack(_COUNT.unpack(data)[0] + 1), 0)
    finally:
        os.close(file)
