"""The lock on a file that shows that a run's writer lives. It is a hint, and ends with the process.

The fence keeps two writers apart; a writer that takes over a run replaces the file, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets

from rollcage.trace.folder import has_writer, take_lock
from rollcage.trace.keys import file_name
from rollcage.trace.processes import keep_from_children

__all__ = ["Liveness"]

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Liveness:
    """The locks of a folder's files: one for each run that has a writer."""

    __slots__ = ("__weakref__", "_file", "_path")

    def __init__(self, folder: str, run: str) -> None:
        self._path = f"{folder}/{file_name(run)}"
        self._file = -1

    def take(self, *, by_force: bool) -> bool:
        """Take the lock; return False if another writer has it, and it is not taken by force.

        Raises:
            OSError: the file can't be made.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(self._path), 0o700)  # noqa: PTH102, PTH120 - texts
        while True:
            file = os.open(self._path, _FLAGS, 0o600)
            if not take_lock(file):
                os.close(file)
                if not by_force:
                    return False
                file = self._replace()
            if self._is_at(file):
                break
            os.close(file)  # the file was removed, or replaced, meanwhile
        self._file = file
        keep_from_children(self)
        return True

    def is_taken(self) -> bool:
        """Return whether a writer has the lock; asking does not block a writer.

        Raises:
            OSError: the state can't be read.
        """
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            return has_writer(file)
        finally:
            os.close(file)

    def release(self) -> None:
        """Release the lock; remove the file, unless another writer replaced it."""
        file, self._file = self._file, -1
        if file >= 0:
            if self._is_at(file):
                with contextlib.suppress(OSError):
                    os.unlink(self._path)  # noqa: PTH108 - a text
            os.close(file)

    def forked(self) -> None:
        """Leave the lock to the parent process."""
        self._let_go()

    def __del__(self) -> None:
        # A collected session may still be left, and release the lock then: by that time
        # the descriptor may belong to another file.
        self._let_go()

    def _let_go(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _replace(self) -> int:
        """Replace a file that another writer has locked by a new one."""
        own = f"{self._path}.{secrets.token_hex(4)}"
        file = os.open(own, _FLAGS | os.O_EXCL, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(own, self._path)  # noqa: PTH105 - texts
        return file

    def _is_at(self, file: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(file))  # noqa: PTH116
        except FileNotFoundError:
            return False
