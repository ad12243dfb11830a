"""Small documents in a folder each kind: each is a file that is written once.

Whoever makes a file has won it: of any number of processes that write the same one, one does. It
is whole from the moment it has its name.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from rollcage.errors import StoreError
from rollcage.store import disk, system
from rollcage.store.protocol import check_document

__all__ = ["DocumentFiles"]


class DocumentFiles:
    """The documents of a store: `<root>/<kind>/<key>.json`.

    Args:
        root: the store's folder; that of a kind is made with its first document.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def put_once(self, kind: str, key: str, data: bytes) -> bool:
        """Keep a document, on the disk; False where there is one of this key already.

        Raises:
            StoreError: it can't be written.
        """
        path = Path(self._path(kind, key))
        try:
            disk.make_folder(path.parent)
            new = disk.new_name(path, hidden=True)
            disk.add(new, data)
            try:
                system.files.link(new, path)
            except FileExistsError:
                return False
            finally:
                with contextlib.suppress(OSError):
                    system.files.unlink(new)
            disk.sync(path.parent)  # the new name is on the disk
        except OSError as error:
            raise StoreError(f"{path} can't be written: {disk.describe(error)}") from error
        return True

    def replace(self, kind: str, key: str, data: bytes) -> None:
        """Keep a document in place of one that is damaged.

        Raises:
            StoreError: it can't be written; the former one stays.
        """
        path = Path(self._path(kind, key))
        try:
            disk.replace(path, data, part=disk.new_name(path, hidden=True))
        except OSError as error:
            raise StoreError(f"{path} can't be written: {disk.describe(error)}") from error

    def get(self, kind: str, key: str) -> bytes | None:
        """A document; None where there is none.

        Raises:
            StoreError: it can't be read.
        """
        path = self._path(kind, key)
        try:
            return disk.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path} can't be read: {disk.describe(error)}") from error

    def keys(self, kind: str) -> list[str]:
        """The keys of all documents of a kind, sorted.

        Raises:
            StoreError: they can't be listed.
        """
        check_document(kind, "a")
        folder = self._root / kind
        try:
            names = system.files.listdir(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{folder} can't be read: {disk.describe(error)}") from error
        own = (name[:-5] for name in names if name.endswith(".json"))
        return sorted(key for key in own if key and not key.startswith("."))

    def drop(self, kind: str, key: str) -> None:
        """Remove a document, if it is there.

        Raises:
            StoreError: it can't be removed.
        """
        path = self._path(kind, key)
        try:
            disk.remove(path)
        except OSError as error:
            raise StoreError(f"{path} can't be removed: {disk.describe(error)}") from error

    def _path(self, kind: str, key: str) -> str:
        check_document(kind, key)
        return f"{self._root}/{kind}/{key}.json"
