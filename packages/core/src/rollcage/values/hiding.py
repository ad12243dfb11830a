"""How secrets are sealed in encoded values, and how they are found there."""

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
"""The placeholder, in a text, of a secret that was found in it."""


def stand_in(digest: str) -> str:
    """The placeholder, in a text, of the secret with this HMAC."""
    return f"<secret {digest[:32]}>"


def keyed_hash(seal: Seal, text: str) -> str:
    """Return the HMAC of a text that holds a secret, and is none to be looked for elsewhere."""
    own: Seal = getattr(seal, "keyed_hash", seal)  # of a seal that remembers what it is called with
    return own(text)


class Hidden(NamedTuple):
    """An encoded value without the secrets that were found in it, and where they were."""

    value: Any
    found: list[str]


class Hiding:
    """A seal that looks for secrets in what is encoded."""

    def __call__(self, secret: str) -> str:
        """See `Seal`."""
        raise NotImplementedError

    @property
    def idle(self) -> bool:
        """Whether there is nothing to look for, so that the search can be skipped."""
        raise NotImplementedError

    def hide(self, encoded: Any, names: Collection[str] = ()) -> Hidden:
        """An encoded value without the secrets in it. `names` are those of declared parameters."""
        raise NotImplementedError


def hidden(encoded: Any, seal: Seal, names: Collection[str] = ()) -> Hidden:
    """The part of an encoded value that may reach the disk: all of it, unless secrets are found.

    `names` are those of declared members, which are not secrets.
    """
    if isinstance(seal, Hiding) and not seal.idle:
        return seal.hide(encoded, names)
    return Hidden(encoded, [])
