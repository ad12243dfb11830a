"""The lock of a file, which its writer has alone; and looking whether one has it."""

from __future__ import annotations

import fcntl
import time
from typing import Final

__all__ = ["has_writer", "take_lock"]

_PAUSE: Final = 0.0005  # seconds; whoever looks has the lock for less
_PATIENCE: Final = 5.0  # seconds


def take_lock(file: int) -> bool:
    """Take the lock of an open file; False if a writer has it.

    Whoever only looks has it for a moment, together with others who do: that is waited for.

    Raises:
        OSError: it can't be locked.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if has_writer(file) or time.monotonic() > until:
                return False
        else:
            return True
        time.sleep(_PAUSE)


def has_writer(file: int) -> bool:
    """Return whether somebody has the lock of a file alone; the caller has it not.

    Raises:
        OSError: it can't be known.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
