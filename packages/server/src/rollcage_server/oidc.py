"""JSON Web Tokens of an issuer: the accepted ones, and the keys that verify them."""

from __future__ import annotations

import base64
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from rollcage.gate import person

from rollcage_server.errors import BadRequest, Unauthenticated
from rollcage_server.roles import Principal, roles_of

__all__ = ["ALGORITHMS", "Issuer", "fetch_json"]

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
"""The accepted signatures: by a private key. None that the public key could make."""

_FRESH: Final = 300.0  # seconds for which keys are cached
_AGAIN: Final = 10.0  # seconds between two requests for an unknown key
_LEEWAY: Final = 60  # seconds by which the issuer's clock may differ
_MOST_BYTES: Final = 1_000_000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error: otherwise any host could be asked, even by http."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""


_opener: Final = urllib.request.build_opener(_NoRedirects)

Fetch = Callable[[str], Any]


class Issuer:
    """An issuer of tokens, and the requirements on them.

    Args:
        url: the issuer, as in `iss`; its keys are found by its discovery document.
        audience: the required `aud`.
        roles_claim: the claim with the names of roles.
        name_claim: the claim with the principal's name.
        fetch: returns a JSON document.
    """

    def __init__(
        self,
        url: str,
        audience: str,
        *,
        roles_claim: str = "rollcage_roles",
        name_claim: str = "sub",
        fetch: Fetch | None = None,
    ) -> None:
        _check_secure(url)
        self._url = url
        self._audience = audience
        self._roles_claim = roles_claim
        self._name_claim = name_claim
        self._fetch = fetch or fetch_json
        self._lock = threading.Lock()
        self._keys: KeySet | None = None
        self._fetched = float("-inf")

    def principal(self, text: str) -> Principal:
        """Return the principal of a token.

        Raises:
            Unauthenticated: the token is not accepted; the message says only why.
        """
        try:
            claims = self._claims(text)
            name = person(claims[self._name_claim])
            subject, expires = str(claims["sub"]), float(claims["exp"])
        except (JoseError, ValueError, TypeError, LookupError, AttributeError) as error:
            message = f"this token is not accepted: {type(error).__name__}"
            raise Unauthenticated(message) from None
        given: Any = claims.get(self._roles_claim, [])
        named: Sequence[Any] = given.split() if isinstance(given, str) else given
        roles = roles_of(named if isinstance(named, list | tuple) else ())
        return Principal(name, roles, expires, "oidc", subject)

    def _claims(self, text: str) -> dict[str, Any]:
        if not jwt_kid(text):
            raise ValueError("it names no key")
        now = time.monotonic()
        stale = now - self._fetched > _FRESH
        try:
            token = jwt.decode(text, self._known(again=stale), algorithms=list(ALGORITHMS))
        except (JoseError, ValueError):
            # The key may have been rotated in since; guessed key ids don't cause a request each.
            if stale or now - self._fetched < _AGAIN:
                raise
            token = jwt.decode(text, self._known(again=True), algorithms=list(ALGORITHMS))
        jwt.JWTClaimsRegistry(
            leeway=_LEEWAY,
            iss={"essential": True, "value": self._url},
            aud={"essential": True, "value": self._audience},
            exp={"essential": True},
            sub={"essential": True},
        ).validate(token.claims)
        return dict(token.claims)

    def _known(self, *, again: bool) -> KeySet:
        with self._lock:
            if self._keys is None or again:
                self._fetched = time.monotonic()
                try:
                    found = self._fetch(f"{self._url.rstrip('/')}/.well-known/openid-configuration")
                    if found["issuer"] != self._url:
                        raise ValueError("another issuer")
                    _check_secure(found["jwks_uri"])
                    self._keys = KeySet.import_key_set(self._fetch(found["jwks_uri"]))
                except (OSError, ValueError, TypeError, LookupError, JoseError) as error:
                    if self._keys is None:
                        message = (
                            f"the keys of {self._url} can't be fetched: {type(error).__name__}"
                        )
                        raise Unauthenticated(message) from None
            return self._keys


def jwt_kid(text: str) -> str:
    """Return the key that a token names; empty without one. The token is not verified yet."""
    head = text.partition(".")[0]
    header: Any = orjson.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    return str(header.get("kid") or "")


def fetch_json(url: str) -> Any:
    """Fetch a JSON document, within ten seconds and a megabyte, without redirects.

    Raises:
        OSError: the document can't be fetched.
        ValueError: it is not JSON.
    """
    _check_secure(url)
    with _opener.open(url, timeout=10) as answer:
        return orjson.loads(answer.read(_MOST_BYTES))


def _check_secure(url: str) -> None:
    parts = urlsplit(url)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise BadRequest(f"{url!r} is not an https:// address")
