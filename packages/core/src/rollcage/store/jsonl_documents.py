"""The directory store without its traces: documents, large values, logs and its key.

And what was made of a trace, so that it opens faster.
"""

from __future__ import annotations

import contextlib
import hmac
import os
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from typing import Final

from rollcage.errors import RunNotFound, StoreError
from rollcage.store import disk, layout
from rollcage.store.blobs import BlobFiles
from rollcage.store.chained import ChainedFile
from rollcage.store.control import Bell
from rollcage.store.documents import DocumentFiles
from rollcage.store.index import Index
from rollcage.store.keyfile import KeyFile
from rollcage.store.protocol import Measured
from rollcage.store.tracefile import TraceFile

__all__ = ["JsonlDocuments"]

_END: Final = 70  # bytes: a line's hash, and the JSON around it


class JsonlDocuments(TraceFile):
    """The folder of a store, and what is in it apart from its runs."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.url = layout.plain(str(self.root))
        self._at = self.root.absolute()  # whatever the process's folder comes to be
        layout.known.add(str(self._at))
        super().__init__(self._at / "runs")
        self._shown = str(self.root / "runs")  # as messages name them
        self._documents = DocumentFiles(self._at)
        self._blobs = BlobFiles(self._at)
        self._key = KeyFile(self._at / "key")
        self._bell = Bell(self._at / "orders.bell")
        self._index = Index(self._at / "index.jsonl", self._folder, self._documents)

    def exists(self) -> bool:
        return disk.is_folder(self._at)

    def _make(self) -> None:
        try:
            if not disk.is_folder(self._folder):
                disk.make_folder(self._at)
                disk.make_folder(self._folder)
        except OSError as error:
            raise disk.refused(f"the store {self.root} can't be made", error) from error

    # --- what is made of traces ------------------------------------------------------------------

    def measure(self, run: str) -> Measured | None:
        hashed, end = sha256(), b""
        with self._read_here(run) as path:
            for part in disk.chunks(path):
                hashed.update(part)
                end = (end + part[-_END:])[-_END:]
        return Measured(hashed.hexdigest(), _head(end)) if _head(end) else None

    def head(self, run: str) -> str:
        with self._read_here(run) as path:
            return _head(disk.end_of(path, _END))

    @contextlib.contextmanager
    def _read_here(self, run: str) -> Generator[Path]:
        path = self._path(run)
        try:
            yield path
        except FileNotFoundError:
            raise RunNotFound(f"there is no run {run} in {self._folder}") from None
        except OSError as error:
            raise StoreError(f"{path} can't be read: {disk.describe(error)}") from error

    def get_steps(self, run: str) -> bytes | None:
        try:
            return disk.read(self._path(run).with_suffix(".steps"))
        except OSError:
            return None

    def put_steps(self, run: str, data: bytes | None) -> None:
        path = self._path(run).with_suffix(".steps")
        with contextlib.suppress(OSError):
            if data is None:
                disk.remove(path)
            else:
                disk.put(path, data, part=disk.new_name(path))

    # --- what goes with traces -------------------------------------------------------------------

    def put_once(self, kind: str, key: str, data: bytes) -> bool:
        self._make()
        return self._documents.put_once(kind, key, data)

    def get(self, kind: str, key: str) -> bytes | None:
        return self._documents.get(kind, key)

    def keys(self, kind: str) -> list[str]:
        return self._documents.keys(kind)

    def drop(self, kind: str, key: str) -> None:
        self._documents.drop(kind, key)

    def put_blob(self, digest: str, data: bytes) -> None:
        self._blobs.put(digest, data)

    def blobs(self) -> list[str]:
        return self._blobs.all()

    def drop_blob(self, digest: str) -> None:
        self._blobs.drop(digest)

    def log(self, name: str, begins: str) -> ChainedFile:
        return ChainedFile(self._at / f"{name}.jsonl", begins)

    def secret_key(self) -> bytes:
        self._make()
        return self._key.key()

    def take_key(self, key: bytes) -> bool:
        self._make()
        return hmac.compare_digest(self._key.key(key), key)


def _head(end: bytes) -> str:
    """The hash of a line that ends so (hex); empty where none ends there."""
    return end[-67:-3].decode("ascii", "replace") if end.endswith(b'"}\n') else ""
