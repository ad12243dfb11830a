"""The PostgreSQL database of a URL: its parts, and errors that hide its password."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from hashlib import sha256
from typing import Final
from urllib.parse import unquote

import psycopg
from rollcage.errors import StoreError, StoreInvalid, StoreReadOnly

__all__ = ["Database", "parse"]

_MAY_NOT: Final = ("25006", "42501")
"""PostgreSQL's codes for a read-only transaction, and for a missing right."""

_OWN: Final = {"store_timeout": 30.0, "silence_timeout": 10.0}  # seconds; parameters of a URL
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_SECRET: Final = ("password", "sslpassword")


@dataclasses.dataclass(frozen=True, slots=True)
class Database:
    """A PostgreSQL database.

    Attributes:
        conninfo: the parameters for libpq; only this attribute contains the password.
        url: the store's URL, without a password.
        schema: the schema of its tables.
        timeout: how long the database may be down before runs halt (seconds).
        silence: after how long either side gives up a silent connection (seconds).
        secrets: texts to remove from libpq's messages.
    """

    conninfo: str = dataclasses.field(repr=False)
    url: str
    schema: str
    timeout: float
    silence: float
    secrets: tuple[str, ...] = dataclasses.field(repr=False)

    def lock_key(self, what: str) -> int:
        """Return the number of the advisory lock for something in this store."""
        digest = sha256(f"rollcage/2\0{self.schema}\0{what}".encode()).digest()
        return int.from_bytes(digest[:8], signed=True)

    def failed(self, error: psycopg.Error | OSError) -> StoreError:
        """Return the error for a refusal of the database."""
        state = error.sqlstate if isinstance(error, psycopg.Error) else None
        kind = StoreReadOnly if state in _MAY_NOT else StoreError
        return kind(f"the store {self.url} can't be used: {self.describe(error)}")

    def describe(self, error: BaseException) -> str:
        """Return PostgreSQL's message, without a password."""
        text = " ".join(str(error).split())
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text or type(error).__name__


def parse(url: str) -> Database:
    """Parse a URL, in libpq's form, with parameters of our own.

    Raises:
        StoreInvalid: the URL has another form.
    """
    where, _, query = url.partition("://")[2].partition("?")
    host, slash, path = where.partition("/")
    who, at, host = host.rpartition("@")
    user, _, password = who.partition(":")
    secrets = [password]
    own: dict[str, str] = {}
    given: list[str] = []
    shown: list[str] = []
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name == "schema" or name in _OWN:
            own[name] = unquote(value)
        else:
            given.append(part)
        if name in _SECRET:
            secrets.append(value)
        else:
            shown.append(part)
    called = f"postgresql://{user}{at}{host}{slash}{path}{'?' * bool(shown)}{'&'.join(shown)}"
    schema = own.get("schema", "rollcage")
    if _SCHEMA.fullmatch(schema) is None or schema.startswith("pg_"):
        raise StoreInvalid(
            f"{called}: {schema!r} can't be the schema of a store: use up to 40 lower-case letters,"
            f" digits and underscores"
        )
    timeout, silence = (_seconds(called, name, own.get(name)) for name in _OWN)
    conninfo = f"postgresql://{who}{at}{host}{slash}{path}{'?' * bool(given)}{'&'.join(given)}"
    hidden = {text for each in secrets for text in (each, unquote(each)) if text}
    longest_first = tuple(sorted(hidden, key=len, reverse=True))
    return Database(conninfo, called, schema, timeout, silence, longest_first)


def _seconds(url: str, name: str, given: str | None) -> float:
    if given is None:
        return _OWN[name]
    with contextlib.suppress(ValueError):
        seconds = float(given)
        if 0 < seconds < math.inf:
            return seconds
    raise StoreInvalid(f"{url}: {name}={given!r} is not a number of seconds")
