"""Seal the secrets of a session, and conceal their quotations from the first one on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcage.trace.seal import StoreSeal

if TYPE_CHECKING:
    from rollcage.session.session import Session
    from rollcage.trace.store import Store

__all__ = ["SessionSeal"]


class SessionSeal:
    """Seals the secrets of one session, which conceals each quotation of them from then on.

    Most sessions have no secret: the stage that looks for quotations is added with the first one.
    """

    __slots__ = ("_early", "_plain", "_session")

    def __init__(self, store: Store) -> None:
        self._plain = StoreSeal(store)
        self._early: list[str] | None = []  # values sealed before the session was entered
        self._session: Session | None = None

    def look(self) -> None:
        """Read the store's key, if it has one, so that no event loop waits for it later."""
        self._plain.look()

    def keyed_hash(self, text: str) -> str:
        """Return the HMAC of a text that is not concealed elsewhere."""
        return self._plain(text)

    def entered(self, session: Session) -> None:
        """Let the session conceal sealed secrets, unless it has a stage of its own for them."""
        early, self._early = self._early or (), None
        attempt = session.attempt
        if attempt.seal is self:
            self._session = session
        for secret in early:
            attempt.seal(secret)

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
                from rollcage.stages.secrets import Secrets  # most sessions need it not

                session.seal = attempt.seal = self._plain
                session.add(Secrets())
        return attempt.seal(secret)
