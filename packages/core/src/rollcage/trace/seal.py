"""Replace secrets by HMACs, under a key of the store that is made when first needed."""

from __future__ import annotations

import hmac
import os

from rollcage.trace.store import Store

__all__ = ["StoreSeal"]


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
        """Return the HMAC of a secret (64 hex digits)."""
        if self._key is None:
            self._key = self._store.get("keys", "seal")
            while self._key is None:
                self._store.swap("keys", "seal", None, os.urandom(32))
                self._key = self._store.get("keys", "seal")
        return hmac.new(self._key, secret.encode("utf-8", "surrogatepass"), "sha256").hexdigest()
