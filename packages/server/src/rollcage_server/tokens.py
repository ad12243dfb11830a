"""Tokens in a file: each with a name, roles and an end; only a hash of its secret is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, Final

import orjson
from rollcage.gate import person

from rollcage_server.errors import TokensInvalid
from rollcage_server.roles import Principal, Role, roles_of

__all__ = ["Token", "TokenFile"]

_FORMAT: Final = "rollcage/tokens/1"
_TEXT: Final = re.compile(r"rct_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NO_HASH: Final = "0" * 64


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """A stored token.

    Attributes:
        id: its id, the readable part of its text.
        name: the name of its user.
        roles: their roles.
        hash: the hash of its secret (SHA-256, hex): the secret has 256 random bits.
        created: when (Unix, seconds).
        expires: until when it can be used (Unix, seconds).
        revoked: when it was revoked (Unix, seconds); 0: it was not.
    """

    id: str
    name: str
    roles: tuple[str, ...]
    hash: str
    created: int
    expires: int
    revoked: int = 0

    def state(self, now: float) -> str:
        """Return `active`, `expired` or `revoked`."""
        if self.revoked:
            return "revoked"
        return "expired" if now >= self.expires else "active"


class TokenFile:
    """The tokens in a file, which is read again when it has changed.

    Args:
        path: the file; made with the first token, and readable by its owner only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Both at once: a slower thread must not replace newer tokens by older ones.
        self._known: tuple[tuple[int, int, int] | None, dict[str, Token]] = (None, {})

    # --- recognising ------------------------------------------------------------------------------

    def principal(self, text: str) -> Principal | None:
        """Return the principal of a token's text; None without one.

        Raises:
            TokensInvalid: the file can't be used.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        token = self._read().get(match[1])
        kept = _NO_HASH if token is None else token.hash
        given = hashlib.sha256(match[2].encode()).hexdigest()
        if not hmac.compare_digest(given, kept) or token is None:
            return None
        return self._of(token)

    def by_id(self, id: str) -> Principal | None:  # noqa: A002 - what it is called everywhere
        """Return the principal of a token by its id, while it is valid: for sessions.

        Raises:
            TokensInvalid: the file can't be used.
        """
        token = self._read().get(id)
        return None if token is None else self._of(token)

    @staticmethod
    def _of(token: Token) -> Principal | None:
        if token.state(time.time()) != "active":
            return None
        return Principal(token.name, roles_of(token.roles), token.expires, "token", token.id)

    # --- keeping ----------------------------------------------------------------------------------

    def list(self) -> list[Token]:
        """Return all tokens, oldest first.

        Raises:
            TokensInvalid: the file can't be used.
        """
        return sorted(self._read().values(), key=lambda each: (each.created, each.id))

    def create(self, name: str, roles: Iterable[Role], seconds: float) -> tuple[Token, str]:
        """Return a new token, and its text, which is not stored.

        Raises:
            TokensInvalid: the name is not valid, or the file can't be used.
        """
        try:
            known = person(name)
        except ValueError as error:
            raise TokensInvalid(str(error)) from None
        secret = secrets.token_urlsafe(32)
        now = int(time.time())
        token = Token(
            id=secrets.token_hex(6),
            name=known,
            roles=tuple(sorted(roles)),
            hash=hashlib.sha256(secret.encode()).hexdigest(),
            created=now,
            expires=now + int(seconds),
        )
        with self._changing() as tokens:
            tokens[token.id] = token
        return token, f"rct_{token.id}_{secret}"

    def revoke(self, id: str) -> Token:  # noqa: A002
        """Revoke a token; this ends all sessions that began with it.

        Raises:
            TokensInvalid: there is no such token, or the file can't be used.
        """
        with self._changing() as tokens:
            if id not in tokens:
                known = ", ".join(tokens) or "none"
                raise TokensInvalid(f"there is no token {id!r} in {self.path}; there is {known}")
            tokens[id] = dataclasses.replace(tokens[id], revoked=int(time.time()))
            return tokens[id]

    @contextlib.contextmanager
    def _changing(self) -> Generator[dict[str, Token]]:
        """Give all tokens for a change, under a lock; the new file appears as a whole."""
        beside = self.path.with_name(f"{self.path.name}.lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                tokens = dict(self._read()) if self.path.exists() else {}
                yield tokens
                data = {"format": _FORMAT, "tokens": list(map(dataclasses.asdict, tokens.values()))}
                new = self.path.with_name(f"{self.path.name}.new")
                descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(orjson.dumps(data, option=orjson.OPT_INDENT_2) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(self.path)
        except OSError as error:
            raise TokensInvalid(f"{self.path} can't be written: {error}") from error

    def _read(self) -> dict[str, Token]:
        try:
            found = self.path.stat()
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            known, tokens = self._known
            if seen == known:
                return tokens
            if found.st_mode & 0o077:
                raise TokensInvalid(f"{self.path} can be read by others: chmod 600 {self.path}")
            data: Any = orjson.loads(self.path.read_bytes())
            if data["format"] != _FORMAT:
                raise ValueError(f"its format is {data['format']!r}")
            listed = (Token(**each | {"roles": tuple(each["roles"])}) for each in data["tokens"])
            tokens = {token.id: token for token in listed}
        except OSError as error:
            raise TokensInvalid(f"{self.path} can't be read: {error}") from error
        except (ValueError, TypeError, LookupError) as error:
            raise TokensInvalid(f"{self.path} holds no tokens: {error}") from None
        self._known = (seen, tokens)
        return tokens
