"""Lock a file for its writer alone, and check for such a lock."""

from __future__ import annotations

import fcntl
import time
from typing import Final

__all__ = ["has_writer", "take_lock"]

_PAUSE: Final = 0.0005  # seconds; a check holds the lock for less
_PATIENCE: Final = 5.0  # seconds


def take_lock(file: int) -> bool:
    """Take the lock of an open file; False if a writer has it.

    A check holds the lock for a moment, shared with other checks: that moment is waited for.

    Raises:
        OSError: the file can't be locked.
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
    """Tell whether a writer has the lock of a file; the caller must not have it.

    Raises:
        OSError: the lock can't be checked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
