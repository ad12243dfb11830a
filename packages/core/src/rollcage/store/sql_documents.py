"""What a store in a SQL database has apart from its runs: documents, large values, and its key."""

from __future__ import annotations

import hmac
import os
import re
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any, Final, Protocol

from rollcage.errors import StoreError, TraceCorrupt, TraceUnwritable
from rollcage.store import disk
from rollcage.store.protocol import check_document

__all__ = ["SqlDatabase", "SqlDocuments"]

_SHA256: Final = re.compile("[0-9a-f]{64}")


class SqlDatabase(Protocol):
    """The database of a store. What it gives is a connection of the Python database API."""

    url: str

    @property
    def is_there(self) -> bool:
        """Whether the store was made; nothing is made by asking."""
        ...

    def using(self) -> AbstractContextManager[Any]:
        """A connection, each of whose statements is a transaction; the store is made if need be."""
        ...

    def changing(self, alone: str = "") -> AbstractContextManager[Any]:
        """One transaction; meanwhile nobody else writes to the table named by `alone`."""
        ...

    def reading(self) -> AbstractContextManager[Any]:
        """One transaction in which all that is read is of one moment."""
        ...

    def sync(self) -> None:
        """Wait until all that was committed is on the disk. Raises OSError."""
        ...


class SqlDocuments:
    """The documents and large values of a store."""

    def __init__(self, database: SqlDatabase) -> None:
        self.url = database.url
        self._sql = database

    def exists(self) -> bool:
        return self._sql.is_there

    def put_once(self, kind: str, key: str, data: bytes) -> bool:
        check_document(kind, key)
        with self._sql.changing() as db:
            made = "INSERT INTO documents VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
            new = bool(db.execute(made, (kind, key, data)).rowcount)
        self._on_disk()
        return new

    def get(self, kind: str, key: str) -> bytes | None:
        check_document(kind, key)
        if not self._sql.is_there:
            return None
        with self._sql.using() as db:
            found = "SELECT data FROM documents WHERE kind = ? AND key = ?"
            row = db.execute(found, (kind, key)).fetchone()
        return None if row is None else row[0]

    def keys(self, kind: str) -> list[str]:
        check_document(kind, "a")
        if not self._sql.is_there:
            return []
        with self._sql.using() as db:
            found = "SELECT key FROM documents WHERE kind = ? ORDER BY key"
            return [row[0] for row in db.execute(found, (kind,))]

    def drop(self, kind: str, key: str) -> None:
        check_document(kind, key)
        if not self._sql.is_there:
            return
        with self._sql.changing() as db:
            db.execute("DELETE FROM documents WHERE kind = ? AND key = ?", (kind, key))
        self._on_disk()

    def put_blob(self, digest: str, data: bytes) -> None:
        try:
            with self._sql.changing() as db:
                kept = "INSERT INTO blobs VALUES (?, ?) ON CONFLICT DO NOTHING"
                db.execute(kept, (digest, data))
        except StoreError as error:
            raise TraceUnwritable(f"blob {digest} can't be written: {error}") from error

    def get_blob(self, digest: str) -> bytes:
        _check_digest(digest)
        row: tuple[bytes] | None = None
        if self._sql.is_there:
            with self._sql.using() as db:
                row = db.execute("SELECT data FROM blobs WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            raise StoreError(f"blob {digest} is missing")
        if sha256(row[0]).hexdigest() != digest:
            where = f"blob {digest} of {self.url}"
            raise TraceCorrupt(where, 1, "a blob that is not what its name says")
        return row[0]

    def blobs(self) -> list[str]:
        if not self._sql.is_there:
            return []
        with self._sql.using() as db:
            return [row[0] for row in db.execute("SELECT digest FROM blobs ORDER BY digest")]

    def drop_blob(self, digest: str) -> None:
        _check_digest(digest)
        with self._sql.changing() as db:
            db.execute("DELETE FROM blobs WHERE digest = ?", (digest,))

    def secret_key(self) -> bytes:
        return self._secret(os.urandom(32))

    def take_key(self, key: bytes) -> bool:
        return hmac.compare_digest(self._secret(key), key)

    def _secret(self, new_key: bytes) -> bytes:
        """The key; the new one, where there is none yet."""
        with self._sql.changing() as db:
            new = "INSERT INTO kept VALUES ('key', ?) ON CONFLICT DO NOTHING"
            made = db.execute(new, (new_key,)).rowcount
            key: bytes = db.execute("SELECT value FROM kept WHERE name = 'key'").fetchone()[0]
        if made:
            self._on_disk()  # what it stands for in traces must not outlive it
        if len(key) != 32:
            raise StoreError(
                f"the key in {self.url} is not 32 bytes long; restore it from a backup"
            )
        return key

    def _on_disk(self) -> None:
        try:
            self._sql.sync()
        except OSError as error:
            raise StoreError(f"{self.url} can't be written: {disk.describe(error)}") from error


def _check_digest(digest: str) -> None:
    if _SHA256.fullmatch(digest) is None:
        raise StoreError(f"{digest!r} is not the name of a blob")
