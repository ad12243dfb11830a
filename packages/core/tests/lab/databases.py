"""Labs whose runs are in a database, which buffers lines and commits some of them together."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from programs import Lab, World
from rollcage.store import RunTrace, Store, open_store

__all__ = ["InPostgres", "InSqlite"]


class InSqlite(Lab):
    """A lab with a file of SQLite."""

    def __init__(self, root: Path, world: World | None = None, shuffle: int | None = None) -> None:
        super().__init__(root, world, shuffle)
        root.mkdir(parents=True)
        self._store = open_store(self.url())

    def url(self) -> str:
        """Of a store that is not there yet."""
        return f"sqlite:///{self.root}/store.db"

    @property
    def store(self) -> Store:
        return self._store

    def trace(self, run: str) -> bytes:
        """What is committed of it: all that a process that dies now leaves behind."""
        return self.store.read(run).data

    def copy(self, lab: Lab, before: Iterable[str], run: str, line: int) -> None:
        if self.store.exists():
            lab.store.take_key(self.store.secret_key())
            for digest in self.store.blobs():
                lab.store.put_blob(digest, self.store.get_blob(digest))
        for each in dict.fromkeys(before):
            lab.store.restore(self.store.read(each))
        whole = self.store.read(run)
        assert whole.info is not None
        info = dataclasses.replace(whole.info, status=None, count=None, head=None)
        data = b"".join(whole.data.splitlines(keepends=True)[:line])
        lab.store.restore(RunTrace(run, whole.where, data, b"", info, 0))


class InPostgres(InSqlite):
    """A lab with a schema of a PostgreSQL server, made while `schemas` says so."""

    made: ClassVar[contextlib.ExitStack]

    @classmethod
    @contextlib.contextmanager
    def schemas(cls) -> Iterator[None]:
        """Around all labs: at the end, their schemas are dropped."""
        with contextlib.ExitStack() as cls.made:
            yield
            gc.collect()  # what labs have left closes its connections

    def url(self) -> str:
        from postgres import new_store

        return self.made.enter_context(new_store())
