"""Authentication: by a token in the header, or by the session of a signed-in browser."""

from __future__ import annotations

import dataclasses
import hmac
import secrets
import threading
import time
from collections.abc import Iterable
from typing import Final

from rollcage_server.errors import Forbidden, Unauthenticated
from rollcage_server.oidc import Issuer
from rollcage_server.roles import Principal, Role
from rollcage_server.sessions import Sessions, SignIn
from rollcage_server.tokens import TokenFile

__all__ = ["Authority", "OneTime"]

_LASTS: Final = 12 * 3600.0  # seconds for a session of a one-time token


class OneTime:
    """A token that signs one browser in, once; its sessions end with this process.

    Args:
        name: the name of its user.
        roles: their roles.
    """

    def __init__(self, name: str, roles: Iterable[Role] = (Role.ADMIN,)) -> None:
        self.text = secrets.token_urlsafe(32)
        self._id = secrets.token_hex(16)  # of this process: sessions of other processes don't count
        self._name = name
        self._roles = frozenset(roles)
        self._lock = threading.Lock()
        self._used = False

    def principal(self, text: str) -> Principal | None:
        """Return the token's principal, the first time; None afterwards, and for other tokens."""
        with self._lock:
            if self._used or not hmac.compare_digest(text.encode(), self.text.encode()):
                return None
            self._used = True
        until = time.time() + _LASTS
        return Principal(self._name, self._roles, until, "once", self._id)

    def holds(self, principal: Principal) -> bool:
        """Return whether a session began with this token."""
        return hmac.compare_digest(principal.key, self._id)


@dataclasses.dataclass(frozen=True)
class Authority:
    """All ways to authenticate.

    Attributes:
        tokens: the tokens of a file.
        issuer: the issuer of JSON Web Tokens.
        once: signs one browser in.
    """

    tokens: TokenFile | None = None
    issuer: Issuer | None = None
    once: OneTime | None = None

    def bearer(self, text: str) -> Principal:
        """Return the principal of a bearer token.

        Raises:
            Unauthenticated: the token is not valid.
            TokensInvalid: the file of tokens can't be used.
        """
        if text.startswith("rct_"):
            found = None if self.tokens is None else self.tokens.principal(text)
            if found is not None:
                return found
        elif self.issuer is not None:
            return self.issuer.principal(text)
        raise Unauthenticated("this token is not known here, or it is expired or revoked")

    def signing_in(self, text: str) -> Principal:
        """Return the principal who signs in with a token, including a one-time token.

        Raises:
            Unauthenticated: the token is not valid.
        """
        found = None if self.once is None else self.once.principal(text)
        return found or self.bearer(text)

    def session(self, sessions: Sessions, cookie: str) -> SignIn:
        """Return the session of a cookie, with the principal's current roles.

        Raises:
            Unauthenticated: there is none, or its token has expired or was revoked.
        """
        session = sessions.read(cookie)
        now = None if session is None else self._still(session.principal)
        if session is None or now is None:
            raise Unauthenticated("this session is over: sign in again")
        return dataclasses.replace(session, principal=now)

    def still(self, principal: Principal) -> Principal | None:
        """Return a principal with their current roles; None if their access has ended."""
        now = self._still(principal)
        return now if now is not None and now.rights else None

    def _still(self, principal: Principal) -> Principal | None:
        match principal.via:
            case "token" if self.tokens is not None:
                now = self.tokens.by_id(principal.key)
                until = principal.expires
                return now and dataclasses.replace(now, expires=min(now.expires, until))
            case "oidc" if self.issuer is not None:
                return principal
            case "once" if self.once is not None and self.once.holds(principal):
                return principal
            case _:
                return None


def check_csrf(session: SignIn, given: str) -> None:
    """Refuse a request that the session's own pages did not make.

    Raises:
        Forbidden: the request lacks the session's token.
    """
    if not hmac.compare_digest(given.encode("utf-8", "replace"), session.csrf.encode()):
        raise Forbidden("this form is not of this session, or of an older one: load the page again")
