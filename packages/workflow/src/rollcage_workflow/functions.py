"""The functions of expressions: all that the library knows, in the ways in which it takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["FUNCTIONS", "Function"]


class Function(NamedTuple):
    """A function of expressions.

    Attributes:
        forms: how it is called, for messages.
        takes: the JSON types of its first value, or of the one that it is a method of; none if
            that is no JSON, but a time or a duration.
        gives: the JSON type of its value; none if that is not known, or no JSON.
        takes_more: how many arguments a method takes; a function that is none takes one.
        is_method: whether it is called as a method.
        is_function: whether it is called with its value as an argument.
    """

    forms: str
    takes: tuple[str, ...]
    gives: str = ""
    takes_more: int = 0
    is_method: bool = False
    is_function: bool = True


def _method(form: str, takes: tuple[str, ...], gives: str, takes_more: int = 0) -> Function:
    return Function(form, takes, gives, takes_more, is_method=True, is_function=False)


_ANYTHING: Final = ("array", "boolean", "null", "number", "object", "string")
_TIMED: Final = ("Hours", "Minutes", "Seconds", "Milliseconds")
_DATED: Final = ("FullYear", "Month", "Date", "DayOfMonth", "DayOfWeek", "DayOfYear")
FUNCTIONS: Final[Mapping[str, Function]] = {
    "size": Function("size(x) or x.size()", ("array", "object", "string"), "integer", 0, True),
    **{
        name: _method(f"x.{name}(text)", ("string",), "boolean", 1)
        for name in ("contains", "startsWith", "endsWith", "matches")
    },
    "int": Function("int(x)", ("number", "string"), "integer"),
    "uint": Function("uint(x)", ("number", "string"), "integer"),
    "double": Function("double(x)", ("number", "string"), "number"),
    "string": Function("string(x)", ("number", "string"), "string"),
    "bytes": Function("bytes(x)", ("string",)),
    "timestamp": Function("timestamp(x)", ("string",)),
    "duration": Function("duration(x)", ("string",)),
    "type": Function("type(x)", _ANYTHING),
    "dyn": Function("dyn(x)", _ANYTHING),
    **{
        f"get{name}": _method(f"timestamp(x).get{name}()", (), "integer")
        for name in (*_DATED, *_TIMED)
    },
}
"""All functions of expressions, by name; macros are in `syntax.MACROS`, beside `has`."""
