"""Find a session's known secrets in texts, verbatim or in another encoding."""

from __future__ import annotations

import base64
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote, quote_plus

import orjson

__all__ = ["DECLARED", "Quotes", "texts_of"]

DECLARED: Final = "a declared secret"
"""The kind of a secret that was declared, not detected."""

_START: Final = 4  # characters by which a quote is looked up, and the fewest of a secret
_ANYWHERE: Final = 8  # characters from which a declared one is found inside of a word
_ANCHOR: Final = 64  # characters at the most by which a quote is looked up then
_ALIKE: Final = 16  # quotes that begin with the same anchor, the newest
_MOST: Final = 100_000  # secrets that are remembered, the newest
_FEW: Final = 64  # beginnings that are looked for one by one before a text is walked through
_LONGEST_NUMBER: Final = 200  # bits: 60 digits
_WORDS: Final = frozenset({
    "default", "false", "none", "null", "optional", "required", "string", "true", "undefined",
    # the trace format's own words
    "allow", "answer", "args", "arguments", "code", "decision", "deny", "denied", "error",
    "finish_reason", "message", "name", "notes", "not_started", "path", "reason", "reasoning",
    "remedy", "response_id", "rule", "shadow", "state", "status", "text", "tool_calls", "type",
    "unknown", "usage", "value",
})  # fmt: skip


class _Quote(NamedTuple):
    """Hold one way to write a secret."""

    text: str
    kind: str
    secret: str
    whole: bool  # whether it counts only as a whole word, with no letter or digit next to it


class Quotes:
    """Hold the secrets that were sealed so far. Thread-safe.

    A declared secret of eight or more characters is found anywhere, one of four to seven only as a
    whole word. A shorter one, or a word like `none` or `status`, is not looked for: it would be
    found in every text. A detected secret is not looked for if it has fewer than six characters, or
    fewer than eight and only letters: it could be any word.
    """

    def __init__(self) -> None:
        self.any = False  # whether there are any secrets
        self._known: OrderedDict[str, tuple[_Quote, ...]] = OrderedDict()
        self._lengths: dict[str, tuple[int, ...]] = {}  # of the anchors that begin like this
        self._anchors: dict[str, tuple[_Quote, ...]] = {}
        self._lock = threading.Lock()

    def add(self, secret: str, kind: str = DECLARED) -> None:
        """Remember a secret."""
        if secret in self._known or _is_any_word(secret, kind):
            return
        whole = len(secret) < _ANYWHERE and kind == DECLARED
        quotes = tuple(_Quote(text, kind, secret, whole) for text in _written(secret))
        with self._lock:
            self._known[secret] = quotes
            self.any = True
            for each in quotes:
                anchor = each.text[:_ANCHOR]
                alike = (each, *self._anchors.get(anchor, ()))[:_ALIKE]
                self._anchors[anchor] = tuple(sorted(alike, key=_longest_first))
                start = anchor[:_START]
                lengths = {len(anchor), *self._lengths.get(start, ())}
                self._lengths[start] = tuple(sorted(lengths, reverse=True))
            while len(self._known) > _MOST:
                self._forget(self._known.popitem(last=False)[1])

    def _forget(self, quotes: tuple[_Quote, ...]) -> None:
        for each in quotes:
            anchor = each.text[:_ANCHOR]
            left = tuple(other for other in self._anchors.get(anchor, ()) if other is not each)
            if left:
                self._anchors[anchor] = left
            else:
                self._anchors.pop(anchor, None)

    def of(self, number: int) -> _Quote | None:
        """Return the secret that a number equals; None without one."""
        text = str(number) if number.bit_length() < _LONGEST_NUMBER else ""
        return next((each for each in self._anchors.get(text, ()) if each.text == text), None)

    def replace(self, text: str, stand_in: Callable[[str, str], str]) -> str:
        """Return the text with each quoted secret replaced by `stand_in(kind, secret)`."""
        lengths = self._lengths
        if len(lengths) <= _FEW and not any(start in text for start in [*lengths]):
            return text
        kept: list[str] = []
        begun = at = 0
        while at <= len(text) - _START:
            found = lengths.get(text[at : at + _START])
            quoted = None if found is None else self._standing(found, text, at)
            if quoted is None:
                at += 1
                continue
            kept += text[begun:at], stand_in(quoted.kind, quoted.secret)
            begun = at = at + len(quoted.text)
        return "".join([*kept, text[begun:]]) if kept else text

    def _standing(self, lengths: tuple[int, ...], text: str, at: int) -> _Quote | None:
        """Return the longest quote at a position of a text."""
        for length in lengths:
            for each in self._anchors.get(text[at : at + length], ()):
                if len(each.text) > length and not text.startswith(each.text, at):
                    continue
                around = (
                    text[max(at - 1, 0) : at],
                    text[at + len(each.text) : at + len(each.text) + 1],
                )
                if not each.whole or not any(char.isalnum() for char in around):
                    return each
        return None


def _longest_first(quoted: _Quote) -> int:
    return -len(quoted.text)


def _is_any_word(secret: str, kind: str) -> bool:
    """Tell whether a secret is too short, or too common, to be looked for in every text."""
    if secret.lower() in _WORDS:
        return True
    if kind == DECLARED:
        return len(secret) < _START
    return len(secret) < 6 or (secret.isalpha() and len(secret) < 8)


def _written(secret: str) -> list[str]:
    """Return the encodings in which a text may quote a secret."""
    data = secret.encode("utf-8", "surrogatepass")
    ways = [
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        quote(data, safe=""),
        quote(data),
        quote_plus(data),
    ]
    if len(secret) >= _ANYWHERE:
        ways.append(base64.b64encode(data).decode().rstrip("="))
    return [each for each in dict.fromkeys(ways) if len(each) >= _START]


def texts_of(sealed: str) -> list[str]:
    """Return the texts in which a declared secret may be quoted, from its sealed form."""
    form, _, inner = sealed.partition(":")
    if form == "value":  # a declared parameter, as JSON
        return [*_leaves(orjson.loads(inner))]
    try:
        return [inner, bytes.fromhex(inner).decode()]  # secret bytes
    except ValueError:
        return [inner]


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts and integers in a JSON value, without the names of members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
