"""A browser's session: a cookie that says who signed in, and a token against forged requests.

Nothing is kept of a session that goes on: the cookie is signed, and what it refers to is looked at
anew with each request. So a server can be started again, or be one of several. That somebody has
signed out is kept in the store, until the cookie would have ended by itself: a copy of it that was
stolen is worth nothing from then on.
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
_KIND: Final = "sessions"  # of the values that say which are over


@dataclasses.dataclass(frozen=True, slots=True)
class SignIn:
    """What a cookie says.

    Attributes:
        principal: who signed in, as they were then.
        csrf: what each form of this session has to send along.
    """

    principal: Principal
    csrf: str


class Sessions:
    """Makes cookies, and reads them.

    Args:
        key: gives the key by which they are signed.
        store: gives the store in which it is kept that one was ended.
    """

    def __init__(self, key: Callable[[], bytes], store: Callable[[], Store]) -> None:
        self._key = key
        self._store = store

    def cookie(self, principal: Principal) -> tuple[str, int]:
        """A cookie for somebody, and for how many seconds it is.

        Raises:
            StoreError: the key can't be had.
        """
        expires = min(principal.expires, time.time() + _LASTS)
        fields = {
            "name": principal.name, "roles": sorted(principal.roles), "expires": expires,
            "via": principal.via, "key": principal.key, "id": secrets.token_hex(8),
        }  # fmt: skip
        body = base64.urlsafe_b64encode(orjson.dumps(fields)).decode()
        return f"{body}.{self._sign('session', body)}", max(int(expires - time.time()), 0)

    def read(self, cookie: str) -> SignIn | None:
        """What a cookie says; None where it was not made here, is over, or was ended.

        Raises:
            StoreError: the key can't be had, or nobody can tell whether it was ended.
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
        """End a session, on each server of the store; what is kept of others that are over goes.

        Raises:
            StoreError: it is not ended.
        """
        store, now = self._store(), time.time()
        store.swap(_KIND, _name(session.csrf), None, orjson.dumps(session.principal.expires))
        for key in every_key(store, _KIND):
            if float(orjson.loads(store.get(_KIND, key) or b"0")) < now - _LASTS:
                drop(store, _KIND, key)

    def is_ended(self, csrf: str) -> bool:
        """Whether somebody has ended the session of this token.

        Raises:
            StoreError: nobody can tell.
        """
        return self._store().get(_KIND, _name(csrf)) is not None

    def _sign(self, what: str, text: str) -> str:
        data = f"rollcage server {what}\0{text}".encode("utf-8", "replace")
        return hmac.new(self._key(), data, "sha256").hexdigest()


def _name(csrf: str) -> str:
    return sha256(csrf.encode()).hexdigest()
