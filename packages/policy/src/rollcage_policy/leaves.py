"""The leaves of a value: its texts and numbers, in a form that can be compared.

A model copies text into other forms: a number becomes text, blanks and case change, a
JSON text becomes an object. So values are taken apart, and each leaf is normalised. The normal form
is only for the search: different values may share one.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime as dt
import enum
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import unquote_plus
from uuid import UUID

import orjson
import pydantic
from rollcage.trace import TAG, encode_result

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["MOST_NODES", "MOST_TEXT", "Leaves", "leaves", "normal", "numbers_in"]

MOST_NODES: Final = 100_000
"""How many parts of one value are visited."""

MOST_TEXT: Final = 1_000_000
"""How many characters of one value are read."""

FEWEST_DIGITS: Final = 4
"""A number with fewer digits is not a leaf, because it occurs anywhere."""

_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
_NUMBER: Final = re.compile(r"\d(?:[\d.,]*\d)?")
_UNSEEN: Final = ("opaque", "blob")  # tags of values whose content is not in the encoding
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")  # the name of a field, not a value


class Leaves(NamedTuple):
    """The leaves of a value.

    Attributes:
        texts: each in its normal form, none empty.
        numbers: each as its digits, without sign, grouping, leading and trailing zeros.
        whole: whether the whole value could be inspected.
    """

    texts: list[str]
    numbers: list[str]
    whole: bool


# --- one form ------------------------------------------------------------------------------------


def normal(text: str) -> str:
    """Normalise a text for comparison: NFKC, case folded, blanks as one space, no invisibles.

    Different texts may share a form: a match only shows where a value may come from.
    """
    if text.isascii():
        text = text.lower()
    else:
        text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()
    return " ".join(text.replace("\0", " ").split())


def number(value: float | Decimal) -> str:
    """Return a number's digits; empty if they are too few to be distinctive."""
    if isinstance(value, int):
        # Python limits the length of decimal texts.
        return _digits(str(abs(value)) if value.bit_length() < 4096 else hex(abs(value)))
    if not math.isfinite(value):
        return ""
    return _digits(f"{abs(Decimal(repr(value) if isinstance(value, float) else value)):f}")


def numbers_in(text: str) -> set[str]:
    """Return the numbers that a text names, with commas or points between thousands."""
    found: set[str] = set()
    for match in _NUMBER.finditer(text):
        written = match[0]
        found.add(_digits(written.replace(",", "")))
        if "." in written or "," in written:
            found.add(_digits(written.replace(".", "").replace(",", ".")))
    found.discard("")
    return found


def _digits(written: str) -> str:
    if written.count(".") > 1:
        written = written.replace(".", "")
    whole, _, rest = written.partition(".")
    whole, rest = whole.lstrip("0"), rest.rstrip("0")
    if len(whole) + len(rest) < FEWEST_DIGITS:
        return ""
    return f"{whole or '0'}.{rest}" if rest else whole


# --- taking apart --------------------------------------------------------------------------------


class _Walk:
    """The traversal of one value into leaves.

    `_encoded` says whether the value is in the trace's encoding: anywhere else, a mapping that
    looks like an encoding is plain data.
    """

    def __init__(self, *, encoded: bool) -> None:
        self._encoded = encoded
        self.texts: dict[str, None] = {}
        self.numbers: dict[str, None] = {}
        self.whole = True
        self._nodes = MOST_NODES
        self._room = MOST_TEXT

    def leaves(self) -> Leaves:
        return Leaves(list(self.texts), list(self.numbers), self.whole)

    def into(self, value: Any) -> None:
        """Visit a value, however deeply nested; a value that contains itself ends at a limit."""
        left: list[tuple[Iterator[Any], bool]] = [(iter((value,)), self._encoded)]
        while left:
            within, self._encoded = left[-1]
            each = next(within, left)
            if each is left:
                left.pop()
                continue
            self._nodes -= 1
            if self._nodes < 0 or self._room < 0:
                self.whole = False
                return
            inner = self._one(each)
            if inner is not None:
                left.append((iter(inner), self._encoded))

    def _one(self, value: Any) -> Iterable[Any] | None:
        """Add a leaf, or return the parts of another value."""
        if value is None or isinstance(value, bool):
            return None
        if isinstance(value, enum.Enum):
            return (value.value,)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int | float | Decimal):
            digits = number(value)
            if digits:
                self.numbers[digits] = None
            return None
        if isinstance(value, Mapping):
            given: Mapping[Any, Any] = value
            if not self._encoded or TAG not in given:
                return _entries(given)
            if given[TAG] in _UNSEEN:
                self.whole = False
                return None
            return _tagged(given)
        if isinstance(value, list | tuple | set | frozenset):
            return cast("Iterable[Any]", value)
        return self._object(value)

    def _object(self, value: Any) -> Iterable[Any]:
        if isinstance(value, bytes | bytearray):
            return self._bytes(bytes(value))
        if isinstance(value, dt.date | dt.time):
            return (value.isoformat(),)
        if isinstance(value, UUID | PurePath):
            return (str(value),)
        if isinstance(value, pydantic.SecretStr | pydantic.SecretBytes | pydantic.Secret):
            return (cast("Any", value).get_secret_value(),)
        if isinstance(value, pydantic.BaseModel):
            return [*value.__dict__.values(), *_entries(value.__pydantic_extra__ or {})]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _entries(_held(value))
        if isinstance(value, BaseException):
            return (*value.args, str(value))
        encoded = encode_result(value, str, typed=True).value  # a framework's value, or a subclass
        self._encoded = True
        return (encoded,)

    def _bytes(self, value: bytes) -> Iterator[str]:
        yield base64.b64encode(value).decode()
        try:
            yield value.decode()
        except UnicodeDecodeError:
            return

    def text(self, value: str) -> Iterable[Any] | None:
        """Add a text, also without percent-encoding; if it is JSON, return its content."""
        self._room -= len(value)
        if self._room < 0:
            self.whole = False
            return None
        form = normal(value)
        if not form or form in self.texts:
            return None
        self.texts[form] = None
        if "%" in value or ("+" in value and "=" in value):
            plain = normal(unquote_plus(value, errors="replace"))
            if plain:
                self.texts[plain] = None
        if value.lstrip()[:1] in ("{", "["):
            try:
                return (orjson.loads(value),)
            except ValueError:
                return None
        return None


def _held(value: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass, undeclared extras included."""
    fields = {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)}
    return {**getattr(value, "__dict__", {}), **fields}


def _entries(value: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield the values of a mapping, and the keys that are more than names of fields."""
    for key, each in value.items():
        if not (isinstance(key, str) and _FIELD.fullmatch(key)):
            yield key
        yield each


def _tagged(encoded: Mapping[str, Any]) -> Iterable[Any]:
    """Return the parts of a value in the trace's encoding."""
    tag, value = encoded[TAG], encoded.get("value")
    if tag in ("secret", "redacted", "timedelta", "complex"):
        return ()
    if tag in ("bytes", "bytearray", "str") and isinstance(value, str):
        try:
            data = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return (value,)
        return (data.decode("utf-8", "replace") if tag == "str" else data,)
    if tag in ("int", "float", "decimal") and isinstance(value, str):
        try:
            return (int(value, 0) if tag == "int" else Decimal(value),)
        except (ValueError, ArithmeticError):
            return (value,)
    return (value, encoded.get("private"), encoded.get("state"))


def leaves(value: Any, *, streamed: bool = False, encoded: bool = False) -> Leaves:
    """Return the leaves of a value.

    Args:
        value: data, a model, a dataclass, an exception, or a framework's own value.
        streamed: whether it is the list of a stream's chunks: the texts at the same path of each
            chunk are joined.
        encoded: whether it is in the trace's encoding.
    """
    walk = _Walk(encoded=encoded)
    try:
        walk.into(_joined(value) if streamed else value)
    except Exception:  # noqa: BLE001 - a value's own code: its content is unknown
        walk.whole = False
    return walk.leaves()


def _joined(chunks: Any) -> Any:
    """Return the texts of a stream, joined from the pieces at the same path of each chunk."""
    if not isinstance(chunks, list):
        return chunks
    texts: dict[tuple[Any, ...], list[str]] = {}
    rest: list[Any] = []
    left: list[tuple[tuple[Any, ...], Any]] = [((), each) for each in reversed(chunks)]
    nodes = 0
    while left:
        place, value = left.pop()
        nodes += 1
        if nodes > MOST_NODES:
            raise ValueError("too many parts")
        parts = _parts(value)
        if parts is not None:
            left += [((*place, name), each) for name, each in reversed(parts)]
        elif isinstance(value, str):
            texts.setdefault(place, []).append(value)
        else:
            rest.append(value)
    once = [pieces[0] for pieces in texts.values() if len(set(pieces)) == 1]  # an id, in each chunk
    return ["".join(pieces) for pieces in texts.values()] + once + rest


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts of a chunk by name; None if it has none."""
    if isinstance(value, pydantic.BaseModel):
        return [*value.__dict__.items(), *(value.__pydantic_extra__ or {}).items()]
    if isinstance(value, Mapping):
        named: Mapping[Any, Any] = value
        return list(named.items())
    if isinstance(value, list | tuple):
        return list(enumerate(cast("list[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [*_held(value).items()]
    return None
