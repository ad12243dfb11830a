"""Seal secrets in encoded values, and find them there."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

__all__ = ["STAND_IN", "Hidden", "Hiding", "Seal", "hidden", "keyed_hash", "stand_in"]

Seal = Callable[[str], str]
"""Turns a secret into its HMAC under the store's key (hex).

A `Hiding` one also looks for secrets in what is encoded; see `hidden`.
"""

STAND_IN: Final = re.compile(r"<secret [0-9a-f]{32}>")
"""The placeholder, in a text, of a secret found there."""


def stand_in(digest: str) -> str:
    """Return the placeholder, in a text, of the secret with this HMAC."""
    return f"<secret {digest[:32]}>"


def keyed_hash(seal: Seal, text: str) -> str:
    """Return the HMAC of a text that holds a secret, without looking for the text elsewhere."""
    own: Seal = getattr(seal, "keyed_hash", seal)  # a seal that remembers its secrets has one
    return own(text)


class Hidden(NamedTuple):
    """Hold an encoded value without the secrets found in it, and their places."""

    value: Any
    found: list[str]


class Hiding:
    """Seal secrets, and look for them in encoded values."""

    def __call__(self, secret: str) -> str:
        """Return the HMAC of a secret; see `Seal`."""
        raise NotImplementedError

    @property
    def idle(self) -> bool:
        """Tell whether there is no secret to look for, so the search can be skipped."""
        raise NotImplementedError

    def hide(self, encoded: Any, names: Collection[str] = ()) -> Hidden:
        """Return an encoded value without the secrets in it. `names`: of declared parameters."""
        raise NotImplementedError


def hidden(encoded: Any, seal: Seal, names: Collection[str] = ()) -> Hidden:
    """Return the part of an encoded value that may reach the disk: all of it, without secrets.

    `names` are the names of declared members, which are not secrets.
    """
    if isinstance(seal, Hiding) and not seal.idle:
        return seal.hide(encoded, names)
    return Hidden(encoded, [])
