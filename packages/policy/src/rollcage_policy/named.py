"""The user input, and whether it holds a value.

A value that the user named may be allowed more, so different values must not be treated as equal:
unlike in `leaves`, only case, width of blanks and the composition of letters are normalised.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final, cast

__all__ = ["Named", "user_input_here"]

user_input_here: Final[ContextVar[tuple[str, ...] | None]] = ContextVar(
    "rollcage.user_input", default=None
)
"""The user input while a policy decides; None if it is not known."""

_MOST_TEXT: Final = 1_000_000
_BEFORE: Final = re.compile(r"(?<![\w@.+/=#$%&^{|}~?!-])(?<!\w['`*])")
_BEHIND: Final = re.compile(r"(?![\w@/+=#$%&^{|}~-]|[.:'`*?!]+\w)")
_HOST: Final = re.compile(r"\b(?:https?|ftp|wss?)://([\w.-]*\w)(?::\d+)?(?=[/?#\s>)\"']|$)")


class Named:
    """The user input; called with a value, it returns whether it holds the value.

    ::

        named = Named("Mail the report to ann@example.com")
        assert named("Ann@example.com")
        assert not named("nn@example.com")
        assert not named("ann@example.co")

    Args:
        texts: the user input, one text or several.
    """

    def __init__(self, texts: str | Iterable[str]) -> None:
        given = [texts] if isinstance(texts, str) else list(texts)
        self._texts = tuple(_form(text) for text in given)
        self._hosts = frozenset(host for text in self._texts for host in _HOST.findall(text))

    def __call__(self, value: object) -> bool:
        """Return whether the user named a value, or each value of a list.

        The value must be there as a whole: `ann@example.com` is not named by `joann@example.com`,
        nor by
        `ann@example.com.evil.example`. The host of a web address that the user gave is named. An
        empty list is not named.

        Raises:
            ValueError: a value that users don't write: null, a boolean, a map.
        """
        if isinstance(value, list | tuple):
            each = cast("list[object]", value)
            return bool(each) and all(self(one) for one in each)
        written = _written(value)
        wanted = _form(written)
        if not any(char.isalnum() for char in wanted) or not written.isprintable():
            return False
        return wanted in self._hosts or any(_stands_in(text, wanted) for text in self._texts)


def _written(value: object) -> str:
    """Return a value as a user would write it."""
    if isinstance(value, str) and len(value) <= _MOST_TEXT:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"named takes a text or a number, not a {type(value).__name__}")
    return str(int(value)) if value == int(value) else repr(value)


def _form(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).lower().split())


def _stands_in(text: str, wanted: str) -> bool:
    at = text.find(wanted)
    while at >= 0:
        if _BEFORE.match(text, at) and _BEHIND.match(text, at + len(wanted)):
            return True
        at = text.find(wanted, at + 1)
    return False
