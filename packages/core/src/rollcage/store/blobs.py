"""Large values as files: `blobs/<first two digits>/<SHA-256>`."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

from rollcage.errors import StoreError, TraceUnwritable
from rollcage.store import disk, system

__all__ = ["BlobFiles"]

_SHA256: Final = re.compile("[0-9a-f]{64}")


class BlobFiles:
    """The large values of a directory store; they are read by whoever reads the traces.

    Args:
        root: the store's folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def _folder(self) -> Path:
        return self._root / "blobs"

    def put(self, digest: str, data: bytes) -> None:
        """Keep a value.

        Raises:
            TraceUnwritable: it can't be written.
        """
        path = self._path(digest)
        with contextlib.suppress(OSError):  # a file that was cut short is written anew
            if system.files.stat(path).st_size == len(data):
                return
        try:
            for folder in (self._root, self._folder, path.parent):
                disk.make_folder(folder)
            disk.replace(path, data, part=disk.new_name(path))
        except OSError as error:
            raise TraceUnwritable(
                f"blob {path} can't be written: {disk.describe(error)}"
            ) from error

    def all(self) -> list[str]:
        """The digests of what is kept.

        Raises:
            StoreError: it can't be listed.
        """
        try:
            names = [
                name for part in _listed(self._folder) for name in _listed(self._folder / part)
            ]
        except OSError as error:
            raise StoreError(f"{self._folder} can't be read: {disk.describe(error)}") from error
        return sorted(name for name in names if _SHA256.fullmatch(name))

    def drop(self, digest: str) -> None:
        """Remove a value, if it is there.

        Raises:
            StoreError: it can't be removed.
        """
        if _SHA256.fullmatch(digest) is None:
            raise StoreError(f"{digest!r} is not the name of a blob")
        path = self._path(digest)
        try:
            disk.remove(path)
        except OSError as error:
            raise StoreError(f"{path} can't be removed: {disk.describe(error)}") from error

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest


def _listed(folder: Path) -> list[str]:
    try:
        return system.files.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
