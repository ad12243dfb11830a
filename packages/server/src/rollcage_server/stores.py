"""The served store: opened on demand, and again after it was away."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from rollcage import Store, open_store
from rollcage.errors import StoreError
from rollcage.trace.folder import Folder

__all__ = ["Stores", "is_there", "key_of"]


_PATIENCE: Final = 4.0  # seconds that a database may be away while a viewer waits
_WAITS: Final = ("store_timeout", "silence_timeout")  # parameters of a database's URL
_SQLITE: Final = "sqlite:///"


class Stores:
    """The store at a URL.

    Args:
        url: see `rollcage.open_store`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._key: bytes | None = None

    def get(self) -> Store:
        """Return the store.

        Raises:
            StoreError: the store is not there.
        """
        store = self.open()
        if not is_there(store):
            raise StoreError(f"there is no store at {store.url}, or it can't be reached; try again")
        return store

    def check(self) -> None:
        """Check that the store can be read now.

        Raises:
            StoreError: the store can't be read.
        """
        self.get().get("sessions", "0")

    def open(self) -> Store:
        """Return the store, whether it exists or not."""
        with self._lock:
            if self._store is None:
                self._store = open_store(_patient(self.url))
            return self._store

    def key(self) -> bytes:
        """Return the server's key, which signs sessions.

        Raises:
            StoreError: the key can't be read.
        """
        if self._key is None:
            self._key = key_of(self.get())
        return self._key


def key_of(store: Store) -> bytes:
    """Return the key of the servers of a store (32 bytes), made on demand.

    It differs from the key that seals secrets, because logs show that key's HMACs of texts.

    Raises:
        StoreError: the key can't be read.
    """
    key = store.get("keys", "server")
    while key is None:
        store.swap("keys", "server", None, os.urandom(32))
        key = store.get("keys", "server")
    return key


def is_there(store: Store) -> bool:
    """Return whether the folder or file of a store exists; a database is asked later."""
    if isinstance(store, Folder):
        return Path(store.root).is_dir()
    if store.url.startswith(_SQLITE):
        return Path(store.url.removeprefix(_SQLITE)).exists()
    return True


def _patient(url: str) -> str:
    """Return the URL of a database with a time limit, if it has none."""
    if not url.startswith(("postgres://", "postgresql://")):
        return url
    where, _, query = url.partition("?")
    parts = [*filter(None, query.split("&"))]
    known = {part.partition("=")[0] for part in parts}
    added = [f"{name}={_PATIENCE:g}" for name in _WAITS if name not in known]
    return f"{where}?{'&'.join([*parts, *added])}"
