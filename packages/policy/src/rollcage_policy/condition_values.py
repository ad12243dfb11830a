"""The arguments of a call as conditions see them: plain values of CEL's types, within bounds."""

from __future__ import annotations

from typing import Any, Final

from rollcage.trace import TAG

__all__ = ["MOST_CHARACTERS", "MOST_ELEMENTS", "SCALARS", "TOO_LARGE", "ConditionFailed", "Room",
           "plain"]  # fmt: skip

MOST_ELEMENTS: Final = 10_000
"""How many values the arguments in conditions may hold, at all depths."""

MOST_CHARACTERS: Final = 4_000_000
"""The maximal length of all their texts together."""

SCALARS: Final = frozenset({bool, int, float, type(None)})
TOO_LARGE: Final = "the arguments are too large for it"
_MOST_DEEP: Final = 64


class ConditionFailed(Exception):
    """A condition could not be evaluated; the message says why and quotes no argument's value."""


def plain(value: Any) -> Any:
    """Convert a canonical argument for conditions: without its tag, as the nearest CEL type.

    A `datetime`, a `Decimal`, a path, a URL or bytes (base64) is text, a `timedelta` its seconds, a
    tuple or a set a list, a model or a dataclass a map, an enum its value, a secret `"[secret]"`.

    Raises:
        ConditionFailed: CEL has no type for the value, or the value is too large or too deep.
    """
    return Room().plain(value, 0)


class Room:
    """How many more elements and characters are allowed."""

    __slots__ = ("characters", "elements")

    def __init__(self) -> None:
        self.elements = MOST_ELEMENTS
        self.characters = MOST_CHARACTERS

    def plain(self, value: Any, depth: int) -> Any:
        """Return a value without its tags, `depth` levels below the argument."""
        kind = type(value)
        if kind is str:
            self.characters -= len(value)
            return value
        if kind in SCALARS:
            return value
        self.elements -= len(value)
        if self.elements < 0 or self.characters < 0:
            raise ConditionFailed(TOO_LARGE)
        if depth >= _MOST_DEEP:
            raise ConditionFailed(f"the arguments are nested deeper than {_MOST_DEEP} levels")
        if kind is list:
            return [self.plain(each, depth + 1) for each in value]
        if TAG in value:
            return self._untagged(value[TAG], value.get("value"), depth)
        self.characters -= sum(map(len, value))
        return {name: self.plain(each, depth + 1) for name, each in value.items()}

    def _untagged(self, tag: str, inner: Any, depth: int) -> Any:
        if tag == "float":
            number = float(inner)
            if number != number:  # noqa: PLR0124 - the one value that is not itself
                raise ConditionFailed("an argument is not a number (NaN)")
            return number
        if tag == "int":  # larger than 2^53; CEL has 64 bits
            if len(inner) > 20 or not -(2**63) <= int(inner) < 2**63:
                raise ConditionFailed("a number is beyond 64 bits")
            return int(inner)
        if tag == "dict":
            pairs = [(self.plain(k, depth + 1), self.plain(v, depth + 1)) for k, v in inner]
            if any(type(name) not in (str, int, bool) for name, _ in pairs):
                raise ConditionFailed("a map has keys that CEL has no type for")
            plain = dict(pairs)
            if len(plain) < len(pairs):  # one of a date and its text would be hidden
                raise ConditionFailed("a map has two keys that are equal in CEL")
            return plain
        if tag == "timedelta":
            days, seconds, micros = inner
            return days * 86400 + seconds + micros / 1e6
        if tag in ("datetime", "time") and type(inner) is list:
            return inner[0]  # it has the offset, not the name of the zone
        if tag == "secret":
            return "[secret]"
        if tag in ("str", "opaque", "blob", "redacted"):
            raise ConditionFailed("a value that CEL has no type for")
        return self.plain(inner, depth + 1)
