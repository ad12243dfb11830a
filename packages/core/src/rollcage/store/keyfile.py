"""The key of a directory store's HMACs: a file of 32 bytes that is written once."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from rollcage.errors import StoreError
from rollcage.store import disk, system
from rollcage.store.at_once import will_wait

__all__ = ["KeyFile", "key_gone"]


def key_gone(where: str) -> str:
    """The message about a store whose key is missing."""
    return f"the key of {where} is gone: no session finds the inputs and secrets of its runs again"


class KeyFile:
    """The file with the key; it is made when the key is first asked for.

    Args:
        path: where it lies, in a folder that is there by then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def key(self, new: bytes | None = None) -> bytes:
        """The key; where there is none yet, the `new` one, or one that nobody knows.

        Raises:
            StoreError: it can't be read or made, everybody may read it, or it is damaged.
        """
        path = self._path
        try:
            mode = disk.mode_of(path)
            if not mode:
                self._make(system.files.urandom(32) if new is None else new)
                mode = disk.mode_of(path)
            key = disk.read(path)
        except OSError as error:
            raise disk.refused(f"{path} can't be used", error) from error
        disk.check_secret(path, stat.S_IMODE(mode))
        if len(key) != 32:
            raise StoreError(f"{path} is not a key of 32 bytes; restore it from a backup")
        return key

    def wrong(self, *, keyed: bool) -> tuple[str, ...]:
        """What is wrong with the key, if anything; none is made.

        Args:
            keyed: whether anything was hashed with it, so that it has to be there.
        """
        if not disk.exists(self._path):
            return (key_gone(str(self._path.parent)),) if keyed else ()
        try:
            self.key()
        except StoreError as error:
            return (str(error),)
        return ()

    def _make(self, key: bytes) -> None:
        will_wait()
        path = self._path
        part = disk.new_name(path)
        descriptor = disk.open_file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            disk.write(descriptor, key)
            system.files.fsync(descriptor)  # what it stands for in traces must not outlive it
        finally:
            system.files.close(descriptor)
        with contextlib.suppress(FileExistsError):  # another process was first
            system.files.link(part, path)
        system.files.unlink(part)
        disk.sync(path.parent)
