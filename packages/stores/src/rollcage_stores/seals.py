"""The store's key, under which secrets, and what may hold one, are hashed."""

from __future__ import annotations

from rollcage.errors import StoreError
from rollcage.trace.store import Store

__all__ = ["export_key", "import_key"]

_SIZE = 32  # bytes


def export_key(store: Store) -> bytes | None:
    """Return the key of a store (32 bytes); None if nothing was hashed with one yet.

    Whoever has it can try secrets until one has the HMAC that is on record: keep it as one.
    """
    return store.get("keys", "seal")


def import_key(store: Store, key: bytes) -> bool:
    """Have a store hash with this key, if it has none yet; return whether it is the store's.

    Raises:
        StoreError: it is no such key.
    """
    if len(key) != _SIZE:
        raise StoreError(f"the key of a store has {_SIZE} bytes, not {len(key)}")
    return store.swap("keys", "seal", None, key) or store.get("keys", "seal") == key
