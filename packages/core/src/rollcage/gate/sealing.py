"""The seal of a session that finds credentials itself, in values where nobody declared any."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import orjson

from rollcage.gate.secrets import detect, hide_secrets, names_secret
from rollcage.gate.verdict import Verdict
from rollcage.values.codec import STAND_IN, TAG, Hidden, Hiding, Seal, stand_in, tagged
from rollcage.values.decoding import decode

__all__ = ["Detecting"]

_IN_BASE64: Final = frozenset({"bytes", "bytearray", "str"})
_SEALED: Final = frozenset({"secret", "redacted", "blob", "opaque"})
_MOST_KNOWN: Final = 4096  # secrets that are remembered to be found again, the newest
# Of an event, besides what is encoded.
_TEXTS: Final = ("verdict", "reason", "drift", "error", "undeclared", "differs")


class Detecting(Hiding):
    """A seal that can also look for what is to be sealed.

    What it finds in a text is replaced, in its place, by `<secret HMAC>`: the same credential by
    the same words, so that the same call keeps its key. Words that stand for a credential already
    are left as they are. What was sealed once, declared or found, is found again wherever it is
    quoted, in an error's text or in an answer: as it is, in JSON or in a URL. So is no secret of
    less than six characters, or of less than eight letters: it could be any word.

    Args:
        seal: makes the HMAC that stands for a secret.

    Raises:
        DetectorMissing: what finds credentials is not installed.
    """

    def __init__(self, seal: Seal) -> None:
        detect("")  # now, and not in the middle of a run
        self._seal = seal
        self._known: dict[str, tuple[str, str]] = {}  # how it may be quoted: its kind, the secret
        self._lock = threading.Lock()

    def __call__(self, secret: str) -> str:
        """The HMAC of a secret."""
        for text in _texts_of(secret):
            self._remember("a declared secret", text)
        return self._seal(secret)

    def _remember(self, kind: str, credential: str) -> None:
        if _is_any_word(credential) or credential in self._known:
            return
        quoted = (credential, json.dumps(credential)[1:-1], quote(credential, safe=""))
        with self._lock:
            known = {**self._known, **dict.fromkeys(quoted, (kind, credential))}
            while len(known) > _MOST_KNOWN:
                del known[next(iter(known))]
            self._known = known

    def hide(self, encoded: Any) -> Hidden:
        """An encoded value without the credentials in it, and where which were."""
        found: list[str] = []
        return Hidden(self._value(encoded, "$", found), found)

    def event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """An event without the credentials in its own words: reasons, verdicts, errors."""
        found: list[str] = []
        return {
            name: self._value(value, name, found) if name in _TEXTS else value
            for name, value in event.items()
        }

    def verdict(self, verdict: Verdict) -> Verdict:
        """A verdict that quotes no credential."""
        said = {"reason": verdict.reason, "remedy": verdict.remedy}
        hidden = self.hide(said)
        if not hidden.found:
            return verdict
        return Verdict(verdict.decision, code=verdict.code, rule=verdict.rule, **hidden.value)

    def _value(self, encoded: Any, path: str, found: list[str]) -> Any:
        kind: type[Any] = type(encoded)
        if kind is str:
            return self._text(encoded, path, found)
        if kind is list:
            return [self._value(each, f"{path}[{i}]", found) for i, each in enumerate(encoded)]
        if kind is not dict:
            return encoded
        if TAG in encoded:
            return self._tagged(encoded, path, found)
        if any(map(detect, encoded)):
            return self._pairs(encoded.items(), path, found)
        return {k: self._named(k, v, f"{path}.{k}", found) for k, v in encoded.items()}

    def _text(self, text: str, path: str, found: list[str]) -> str:
        for quoted, (kind, credential) in self._known.items():
            if quoted in text:
                said = self._stand_in(path, found, kind, credential)
                text = text.replace(quoted, said)
        return hide_secrets(text, functools.partial(self._stand_in, path, found))

    def _tagged(self, encoded: dict[str, Any], path: str, found: list[str]) -> dict[str, Any]:
        tag, value = encoded[TAG], encoded.get("value")
        if tag in _SEALED:
            return encoded
        if tag == "dict":
            return self._pairs(value, path, found)
        if tag in _IN_BASE64:
            held = decode(encoded)
            text = held if tag == "str" else bytes(held).decode("utf-8", "replace")
            inside: list[str] = []
            self._text(text, path, inside)
            if not inside:
                return encoded
            found += inside
            return tagged("secret", self._seal(f"{tag}:{value}"))
        fields = ("value", "private")  # of a model; what else there is names types
        return {k: self._value(v, path, found) if k in fields else v for k, v in encoded.items()}

    def _pairs(self, pairs: Any, path: str, found: list[str]) -> dict[str, Any]:
        """A mapping whose keys may hold a credential."""
        return tagged(
            "dict",
            [
                [self._value(k, f"{path}.<key>", found), self._named(k, v, f"{path}[…]", found)]
                for k, v in pairs
            ],
        )

    def _named(self, name: Any, value: Any, path: str, found: list[str]) -> Any:
        """A value under a name which may say that it is a credential."""
        if type(value) is str and value and type(name) is str and names_secret(name):
            if STAND_IN.fullmatch(value):
                return value
            return self._stand_in(path, found, "Secret Keyword", value)
        return self._value(value, path, found)

    def _stand_in(self, path: str, found: list[str], kind: str, credential: str) -> str:
        found.append(f"{path}: {_said(kind)}")
        self._remember(kind, credential)
        return stand_in(self._seal(f"detected:{credential}"))


def _texts_of(secret: str) -> list[str]:
    """The texts in which a declared secret may be quoted, out of what is sealed of it."""
    form, _, inner = secret.partition(":")
    if form == "value":  # a declared parameter, as JSON
        value = orjson.loads(inner)
        return [value] if isinstance(value, str) else []
    try:
        return [inner, bytes.fromhex(inner).decode()]  # secret bytes
    except ValueError:
        return [inner]


def _is_any_word(credential: str) -> bool:
    """Whether it is too short, or too common, to be looked for in every text."""
    return len(credential) < 6 or (credential.isalpha() and len(credential) < 8)


def _said(kind: str) -> str:
    return f"a credential ({kind}) is never recorded"
