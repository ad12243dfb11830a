"""Seal the secrets of a session, in their own places and wherever else they are quoted."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, Final

from rollcage.gate.quotes import DECLARED, Quotes, texts_of
from rollcage.values.codec import TAG, tagged
from rollcage.values.decoding import decode
from rollcage.values.hiding import Hidden, Hiding, Seal, keyed_hash, stand_in

__all__ = ["Sealing"]

_IN_BASE64: Final = frozenset({"bytes", "bytearray", "str"})
_SEALED: Final = frozenset({"secret", "redacted", "blob", "opaque"})


class Sealing(Hiding):
    """Replace every secret that was sealed before, wherever it is quoted.

    A declared secret in an error, an answer, another call's argument or a rule's reason is replaced
    by `<secret HMAC>`: the same secret by the same placeholder. Placeholders are left unchanged.
    `Quotes` says which quotations are found.

    Args:
        seal: computes the HMAC that replaces a secret.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._quotes = Quotes()

    def __call__(self, secret: str) -> str:
        """Return the HMAC of a secret."""
        for text in texts_of(secret):
            self._quotes.add(text)
        return self._seal(secret)

    def share(self, other: Sealing) -> None:
        """Replace what another seal knows as well; from now on, each learns what the other does."""
        self._quotes = other._quotes

    def keyed_hash(self, text: str) -> str:
        """Return the HMAC of a text that is not remembered."""
        return keyed_hash(self._seal, text)

    @property
    def idle(self) -> bool:
        """Tell whether there is no secret to look for; see `Hiding`."""
        return not self._quotes.any

    def hide(self, encoded: Any, names: Collection[str] = ()) -> Hidden:
        """Return an encoded value without the secrets in it, and their places."""
        found: list[str] = []
        if self.idle:
            return Hidden(encoded, found)
        if names and not any(each not in names and self._is_quoted(each) for each in encoded):
            kept = {k: self.hide_named(k, v, f"$.{k}", found) for k, v in encoded.items()}
            return Hidden(kept, found)
        return Hidden(self._value(encoded, "$", found), found)

    def _value(self, encoded: Any, path: str, found: list[str]) -> Any:
        kind: type[Any] = type(encoded)
        if kind is str:
            return self.hide_text(encoded, path, found)
        if kind is list:
            return [self._value(each, f"{path}[{i}]", found) for i, each in enumerate(encoded)]
        if kind is int and (secret := self._quotes.of(encoded)) is not None:
            return self.seal_found(path, found, secret.kind, secret.secret)
        if kind is not dict:
            return encoded
        if TAG in encoded:
            return self._tagged(encoded, path, found)
        if any(map(self._is_quoted, encoded)):
            return self._pairs(encoded.items(), path, found)
        return {k: self.hide_named(k, v, f"{path}.{k}", found) for k, v in encoded.items()}

    def hide_text(self, text: str, path: str, found: list[str]) -> str:
        """Replace the secrets in a text.

        Args:
            text: the text.
            path: the place of the text in its value; empty outside of a value.
            found: receives a note for each replaced secret.
        """
        return self._quotes.replace(text, functools.partial(self.seal_found, path, found))

    def _is_quoted(self, name: str) -> bool:
        """Tell whether the name of a member holds a secret."""
        return self.hide_text(name, "", []) != name

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
            self.hide_text(text, path, inside)
            if not inside:
                return encoded
            found += inside
            return tagged("secret", self._seal(f"{tag}:{value}"))
        fields = ("value", "private", "state")  # the other fields name types
        return {k: self._value(v, path, found) if k in fields else v for k, v in encoded.items()}

    def _pairs(self, pairs: Any, path: str, found: list[str]) -> dict[str, Any]:
        """Return a mapping whose keys may hold a credential."""
        return tagged(
            "dict",
            [
                [self._value(k, f"{path}.<key>", found), self.hide_named(k, v, f"{path}[…]", found)]
                for k, v in pairs
            ],
        )

    def hide_named(self, name: Any, value: Any, path: str, found: list[str]) -> Any:
        """Replace the secrets in an encoded value that stands under a name; see `hide_text`."""
        del name  # for seals that look at it
        return self._value(value, path, found)

    def remember(self, secret: str, kind: str) -> None:
        """Replace a secret wherever it is quoted from now on; `kind` describes it."""
        self._quotes.add(secret, kind)

    def seal_found(self, path: str, found: list[str], kind: str, secret: str) -> str:
        """Return the replacement of a found secret, and add its place to `found`."""
        what = kind if kind == DECLARED else f"a credential ({kind})"
        flaw = f"{path}: {what} is never recorded"
        if found[-1:] != [flaw]:
            found.append(flaw)
        return stand_in(self._seal(f"detected:{secret}"))
