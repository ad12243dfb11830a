"""Find the values that JSON holds exactly, and that are their own encoding, in one pass."""

from __future__ import annotations

import math
from typing import Any, Final

import orjson

__all__ = ["CANONICAL", "FOREIGN", "MAX_INT", "PLAIN", "TAG", "survey", "survey_safely"]

TAG: Final = "$rollcage"
MAX_INT: Final = 2**53 - 1
_SMALLEST: Final = 1e-5  # orjson writes smaller numbers with an exponent before ECMAScript does
_INFINITY: Final = math.inf

FOREIGN: Final = 0  # holds something that plain JSON, as the trace uses it, does not
PLAIN: Final = 1  # is its own encoding, but orjson's bytes may differ from JCS
CANONICAL: Final = 2  # is its own encoding, and orjson's sorted bytes are its JCS


def survey(value: Any, reserved: str | None = TAG) -> int:  # noqa: C901, PLR0912 - each value of each call goes through here: fewer calls, more branches
    """Classify how a value has to be encoded: `CANONICAL`, `PLAIN` or `FOREIGN`.

    Integral floats are foreign: JCS writes 1.0 as 1, and the two must not share a key. So is a dict
    with the key `reserved`; an encoded value may have it, and passes None. Strings are not
    examined: a lone surrogate shows when the value is written.
    """
    kind: type[Any] = type(value)
    if kind is str or value is None or kind is bool:
        return CANONICAL
    if kind is int:
        return CANONICAL if -MAX_INT <= value <= MAX_INT else FOREIGN
    if kind is float:
        if value.is_integer() or not -_INFINITY < value < _INFINITY:
            return FOREIGN
        return CANONICAL if value >= _SMALLEST or value <= -_SMALLEST else PLAIN
    level = CANONICAL
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str or name == reserved:
                return FOREIGN
            if level == CANONICAL and not name.isascii():
                level = PLAIN
            inner: type[Any] = type(item)
            if inner is str or inner is bool or item is None:
                continue  # most arguments are: no call for each
            found = survey(item, reserved)
            if found < level:
                if not found:
                    return FOREIGN
                level = found
        return level
    if kind is list:
        for item in value:
            found = survey(item, reserved)
            if found < level:
                if not found:
                    return FOREIGN
                level = found
        return level
    return FOREIGN


def survey_safely(value: Any) -> int:
    """Classify as `survey` does, with checked strings and bounded nesting.

    FOREIGN if JSON can't hold the value.
    """
    try:
        level = survey(value)
        if level:
            orjson.dumps(value)
    except (RecursionError, TypeError):  # orjson's JSONEncodeError is a TypeError
        return FOREIGN
    return level
