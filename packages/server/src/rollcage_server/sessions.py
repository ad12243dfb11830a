"""A browser's session: a cookie with the principal, and a token against forged requests.

A running session is not stored: the cookie is signed, and its references are checked with each
request. So a server can be restarted, or be one of several. A sign-out is stored until the cookie
would have expired: from then on, a stolen copy of the cookie is worthless.
"""

from __future__ import annotations

import base64
import dataclasses
import hmac
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import orjson
from rollcage import Store
from rollcage.trace.store import drop, every_key

from rollcage_server.roles import Principal, roles_of

__all__ = ["COOKIE", "Sessions", "SignIn"]

COOKIE: Final = "__Host-rollcage"
_LASTS: Final = 12 * 3600.0  # seconds
_LONGEST: Final = 4000  # characters of a cookie
_KIND: Final = "sessions"  # of the values for ended sessions


@dataclasses.dataclass(frozen=True, slots=True)
class SignIn:
    """The content of a cookie.

    Attributes:
        principal: the principal at the time of signing in.
        csrf: the token that each form of this session has to send.
    """

    principal: Principal
    csrf: str


class Sessions:
    """Makes cookies, and reads them.

    Args:
        key: returns the key that signs them.
        store: returns the store of ended sessions.
    """

    def __init__(self, key: Callable[[], bytes], store: Callable[[], Store]) -> None:
        self._key = key
        self._store = store

    def cookie(self, principal: Principal) -> tuple[str, int]:
        """Return a cookie for a principal, and its lifetime in seconds.

        Raises:
            StoreError: the key can't be read.
        """
        expires = min(principal.expires, time.time() + _LASTS)
        fields = {
            "name": principal.name, "roles": sorted(principal.roles), "expires": expires,
            "via": principal.via, "key": principal.key, "id": secrets.token_hex(8),
        }  # fmt: skip
        body = base64.urlsafe_b64encode(orjson.dumps(fields)).decode()
        return f"{body}.{self._sign('session', body)}", max(int(expires - time.time()), 0)

    def read(self, cookie: str) -> SignIn | None:
        """Return the content of a cookie; None if it was forged, has expired, or was ended.

        Raises:
            StoreError: the key can't be read, or it is unknown whether the session was ended.
        """
        body, _, sign = cookie.partition(".")
        if len(cookie) > _LONGEST or not hmac.compare_digest(
            sign.encode("utf-8", "replace"), self._sign("session", body).encode()
        ):
            return None
        fields: dict[str, Any] = orjson.loads(base64.urlsafe_b64decode(body))
        who = Principal(
            fields["name"],
            roles_of(fields["roles"]),
            fields["expires"],
            fields["via"],
            fields["key"],
        )
        csrf = self._sign("csrf", cookie)
        if time.time() >= who.expires or self.is_ended(csrf):
            return None
        return SignIn(who, csrf)

    def end(self, session: SignIn) -> None:
        """End a session, on each server of the store; drop the records of expired ones.

        Raises:
            StoreError: the session was not ended.
        """
        store, now = self._store(), time.time()
        store.swap(_KIND, _name(session.csrf), None, orjson.dumps(session.principal.expires))
        for key in every_key(store, _KIND):
            if float(orjson.loads(store.get(_KIND, key) or b"0")) < now - _LASTS:
                drop(store, _KIND, key)

    def is_ended(self, csrf: str) -> bool:
        """Return whether the session of this token was ended.

        Raises:
            StoreError: it is unknown.
        """
        return self._store().get(_KIND, _name(csrf)) is not None

    def _sign(self, what: str, text: str) -> str:
        data = f"rollcage server {what}\0{text}".encode("utf-8", "replace")
        return hmac.new(self._key(), data, "sha256").hexdigest()


def _name(csrf: str) -> str:
    return sha256(csrf.encode()).hexdigest()
