"""Large values of a run: read from its store, or from that of its source, and kept in its own."""

from __future__ import annotations

import contextlib

from rollcage.errors import StoreError
from rollcage.step.requests import Raised
from rollcage.store.protocol import Reader, Store

__all__ = ["Blobs"]


class Blobs:
    """The large values that a run replays; all of them end up in its own store.

    Args:
        store: where the run is kept.
        source: where the run that it replays is kept.
    """

    def __init__(self, store: Store, source: Reader) -> None:
        self._store = store
        self._source = source

    def get(self, digest: str) -> bytes | Raised:
        """A large value; if the source has it in another store, it is copied from there."""
        if self._source is not self._store:  # the replay outlives its source
            with contextlib.suppress(StoreError):
                return self._store.get_blob(digest)
        try:
            data = self._source.get_blob(digest)
        except StoreError as error:
            return Raised(error)
        if self._source is not self._store:
            self._store.put_blob(digest, data)
        return data

    def keep(self, digest: str) -> bytes | Raised | None:
        """See that a large value of the source is in the run's own store, too."""
        return None if self._source is self._store else self.get(digest)
