"""A browser's session: a cookie that says who signed in, and a token against forged requests.

Nothing is kept of a session: the cookie is signed, and what it refers to is looked at anew with
each request. So a server can be started again, or be one of several.
"""

from __future__ import annotations

import base64
import dataclasses
import hmac
import time
from collections.abc import Callable
from typing import Any, Final

import orjson

from rollcage_server.roles import Principal, roles_of

__all__ = ["COOKIE", "Session", "Sessions"]

COOKIE: Final = "__Host-rollcage"
_LASTS: Final = 12 * 3600.0  # seconds
_LONGEST: Final = 4000  # characters of a cookie


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
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
    """

    def __init__(self, key: Callable[[], bytes]) -> None:
        self._key = key

    def cookie(self, principal: Principal) -> tuple[str, int]:
        """A cookie for somebody, and for how many seconds it is.

        Raises:
            StoreError: the key can't be had.
        """
        expires = min(principal.expires, time.time() + _LASTS)
        said = {
            "name": principal.name, "roles": sorted(principal.roles), "expires": expires,
            "via": principal.via, "key": principal.key,
        }  # fmt: skip
        body = base64.urlsafe_b64encode(orjson.dumps(said)).decode()
        return f"{body}.{self._sign('session', body)}", max(int(expires - time.time()), 0)

    def read(self, cookie: str) -> Session | None:
        """What a cookie says; None where it was not made here, or is over.

        Raises:
            StoreError: the key can't be had.
        """
        body, _, sign = cookie.partition(".")
        if len(cookie) > _LONGEST or not hmac.compare_digest(
            sign.encode("utf-8", "replace"), self._sign("session", body).encode()
        ):
            return None
        said: dict[str, Any] = orjson.loads(base64.urlsafe_b64decode(body))
        who = Principal(
            said["name"], roles_of(said["roles"]), said["expires"], said["via"], said["key"]
        )
        if time.time() >= who.expires:
            return None
        return Session(who, self._sign("csrf", cookie))

    def _sign(self, what: str, text: str) -> str:
        data = f"rollcage server {what}\0{text}".encode("utf-8", "replace")
        return hmac.new(self._key(), data, "sha256").hexdigest()
