"""The store's key, which hashes secrets and values that may hold one."""

from __future__ import annotations

from rollcage.errors import StoreError
from rollcage.trace.store import Store

__all__ = ["export_key", "import_key"]

_SIZE = 32  # bytes


def export_key(store: Store) -> bytes | None:
    """Return the key of a store (32 bytes); None if nothing was hashed yet.

    Anyone with the key can try secrets until one has the recorded HMAC: protect it like a secret.
    """
    return store.get("keys", "seal")


def import_key(store: Store, key: bytes) -> bool:
    """Set a store's key, if it has none yet; return whether it is the store's key now.

    Raises:
        StoreError: the key is not valid.
    """
    if len(key) != _SIZE:
        raise StoreError(f"the key of a store has {_SIZE} bytes, not {len(key)}")
    return store.swap("keys", "seal", None, key) or store.get("keys", "seal") == key
