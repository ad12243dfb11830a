"""The store that is served: opened when it is needed, and again when it was away."""

from __future__ import annotations

import threading
from typing import Final

from rollcage.errors import StoreError
from rollcage.store import Store, without_password
from rollcage_views.both import open_store

__all__ = ["Stores"]


_PATIENCE: Final = 4.0  # seconds that a database may be away: whoever looks at a page waits


class Stores:
    """The store at a URL.

    Args:
        url: see `rollcage.store.open_store`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._key: bytes | None = None

    def get(self) -> Store:
        """The store.

        Raises:
            StoreError: it is not there.
        """
        store = self.open()
        if not store.exists():
            shown = without_password(self.url)
            raise StoreError(f"there is no store at {shown}, or it can't be reached; try again")
        return store

    def check(self) -> None:
        """See that the store can be read now.

        Raises:
            StoreError: it can't.
        """
        self.get().get("sessions", "0")

    def open(self) -> Store:
        """The store, whether it is there or not."""
        with self._lock:
            if self._store is None:
                self._store = open_store(self.url, patience=_PATIENCE)
            return self._store

    def key(self) -> bytes:
        """The store's key, by which sessions are signed.

        Raises:
            StoreError: it can't be had.
        """
        if self._key is None:
            self._key = self.get().secret_key()
        return self._key
