"""Where a lab keeps its runs: a folder, or a database; by the name of the kind."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

__all__ = ["KIND", "KINDS", "clear", "place_of", "runs_on"]

KINDS: Final = ("folder", "sqlite", "postgres")
KIND: Final = "ROLLCAGE_LAWS_STORE"
"""The variable that says on which kind of store laws run; processes find it, too."""


def place_of(root: Path) -> str:
    """Return the URL of the store of a lab at this folder."""
    kind = os.environ.get(KIND, "folder")
    if kind == "postgres":
        url = _server()
        return f"{url}{'&' if '?' in url else '?'}schema={_schema(root)}"
    return f"sqlite:///{root}/runs.db" if kind == "sqlite" else str(root)


def clear(root: Path) -> None:
    """Remove what a lab has left at this folder."""
    shutil.rmtree(root, ignore_errors=True)
    if os.environ.get(KIND) == "postgres":
        import psycopg

        with psycopg.connect(_server(), autocommit=True) as db:
            db.execute("SET client_min_messages = warning")
            db.execute(f"DROP SCHEMA IF EXISTS {_schema(root)} CASCADE".encode())


@contextlib.contextmanager
def runs_on(kind: str) -> Iterator[None]:
    """Have all labs of the block be on this kind of store."""
    before = os.environ.get(KIND)
    os.environ[KIND] = kind
    try:
        yield
    finally:
        gc.collect()  # what labs have left closes its connections: a server has no more than 100
        if before is None:
            del os.environ[KIND]
        else:
            os.environ[KIND] = before


def _server() -> str:
    """Return the URL of a server, which a process of a test is told."""
    given = os.environ.get("ROLLCAGE_TEST_POSTGRES")
    if given:
        return given
    from postgres import server  # starts one, and tells processes

    return server()


def _schema(root: Path) -> str:
    return f"law_{sha256(str(root).encode()).hexdigest()[:20]}"
