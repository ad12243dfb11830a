"""What stands in for a secret: its HMAC under a key of the store, made when it is needed."""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollcage.heart.session import Session
    from rollcage.heart.store import Store

__all__ = ["SessionSeal", "StoreSeal"]


class StoreSeal:
    """Turns secrets into their HMACs under the store's key."""

    __slots__ = ("_key", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key: bytes | None = None

    def look(self) -> None:
        """Read the store's key, if there is one: no loop waits for it then."""
        self._key = self._store.get("keys", "seal")

    def __call__(self, secret: str) -> str:
        """Return the HMAC of a secret (64 hex digits)."""
        if self._key is None:
            self._key = self._store.get("keys", "seal")
            while self._key is None:
                self._store.swap("keys", "seal", None, os.urandom(32))
                self._key = self._store.get("keys", "seal")
        return hmac.new(self._key, secret.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


class SessionSeal:
    """Seals the secrets of one session, which conceals each quotation of them from then on.

    Most sessions have no secret: the stage that looks for quotations is added with the first one.
    """

    __slots__ = ("_early", "_plain", "_session")

    def __init__(self, store: Store) -> None:
        self._plain = StoreSeal(store)
        self._early: list[str] | None = []  # what was sealed before the session was entered
        self._session: Session | None = None

    def look(self) -> None:
        """Read the store's key, if there is one: no loop waits for it then."""
        self._plain.look()

    def entered(self, session: Session) -> None:
        """Have the session conceal what is sealed, unless a stage of its own does."""
        early, self._early = self._early or (), None
        if session.attempt.seal is self:
            self._session = session
        for secret in early:
            session.attempt.seal(secret)

    def __call__(self, secret: str) -> str:
        """Return the HMAC of a secret (64 hex digits)."""
        session = self._session
        if session is None:
            if self._early is not None:
                self._early.append(secret)
            return self._plain(secret)
        attempt = session.attempt
        with attempt.lock:
            if attempt.seal is self:
                from rollcage.heart.stages.secrets import Secrets  # most sessions need it not

                session.seal = attempt.seal = self._plain
                session.add(Secrets())
        return attempt.seal(secret)
