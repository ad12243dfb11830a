"""Replace secrets by HMACs, under a key of the store that is made when first needed."""

from __future__ import annotations

import hmac
import os
from typing import Final

from rollcage.errors import StoreError
from rollcage.trace.store import Store

__all__ = ["StoreSeal"]

_SIZE: Final = 32


class StoreSeal:
    """Replace secrets by their HMACs under the store's key."""

    __slots__ = ("_key", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key: bytes | None = None

    def look(self) -> None:
        """Read the store's key, if it has one, so that no event loop waits for it later."""
        self._key = self._store.get("keys", "seal")

    def __call__(self, secret: str) -> str:
        """Return the HMAC of a secret (64 hex digits).

        Raises:
            StoreError: the store's key is damaged: under a shorter one, secrets could be guessed.
        """
        if self._key is None:
            self._key = self._store.get("keys", "seal")
            while self._key is None:
                self._store.swap("keys", "seal", None, os.urandom(_SIZE))
                self._key = self._store.get("keys", "seal")
        if len(self._key) != _SIZE:
            raise StoreError(
                f"the key of the store has {len(self._key)} bytes, not {_SIZE} bytes: "
                f"it is damaged; put it back from a backup"
            )
        return hmac.new(self._key, secret.encode("utf-8", "surrogatepass"), "sha256").hexdigest()
