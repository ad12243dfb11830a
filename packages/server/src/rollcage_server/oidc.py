"""JSON Web Tokens of an issuer: which are believed, and with which of its keys."""

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
"""Which signatures are believed: those of a private key. None that the public key could make."""

_FRESH: Final = 300.0  # seconds for which keys are kept
_AGAIN: Final = 10.0  # seconds between two looks for a key that is not known
_LEEWAY: Final = 60  # seconds by which the issuer's clock may differ
_MOST_BYTES: Final = 1_000_000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Lets a redirect be the error that it is: else any host is asked, and by http."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""


_opener: Final = urllib.request.build_opener(_NoRedirects)

Fetch = Callable[[str], Any]


class Issuer:
    """Who signs tokens, and what they have to say.

    Args:
        url: the issuer, as `iss` has it; its keys are found by its discovery document.
        audience: what `aud` has to be.
        roles_claim: the claim that lists roles by their names here.
        name_claim: the claim that names who asks.
        fetch: gets a JSON document.
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
        """Who has this token.

        Raises:
            Unauthenticated: it is not believed; the message does not say more than why.
        """
        try:
            claims = self._claims(text)
            name = person(claims[self._name_claim])
            subject, expires = str(claims["sub"]), float(claims["exp"])
        except (JoseError, ValueError, TypeError, LookupError, AttributeError) as error:
            message = f"this token is not believed: {type(error).__name__}"
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
            # A key that was rotated in since; whoever guesses does not make us ask each time.
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
                        message = f"the keys of {self._url} can't be had: {type(error).__name__}"
                        raise Unauthenticated(message) from None
            return self._keys


def jwt_kid(text: str) -> str:
    """The key that a token names; empty where it names none. Nothing of it is believed yet."""
    head = text.partition(".")[0]
    header: Any = orjson.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    return str(header.get("kid") or "")


def fetch_json(url: str) -> Any:
    """A JSON document, within ten seconds and a megabyte, from this address: no redirect counts.

    Raises:
        OSError: it can't be had.
        ValueError: it is none.
    """
    _check_secure(url)
    with _opener.open(url, timeout=10) as answer:
        return orjson.loads(answer.read(_MOST_BYTES))


def _check_secure(url: str) -> None:
    parts = urlsplit(url)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise BadRequest(f"{url!r} is no https:// address")
