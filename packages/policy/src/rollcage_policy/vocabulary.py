"""The names in conditions: their values, and CEL's own types, functions and operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = [
    "ARITHMETIC",
    "CEL_FUNCTIONS",
    "CEL_METHODS",
    "CLOSED",
    "CONTINUING",
    "GATHERING",
    "LOOPS",
    "RELATIONS",
    "ROOTS",
    "TYPES",
    "WORDS",
]

ROOTS: Final[Mapping[str, frozenset[str] | None]] = {
    "args": None,
    "const": None,
    "labels": None,
    "tool": frozenset(
        {"name", "version", "effect", "risk", "reversible", "idempotent", "permissions", "kind"}
    ),
    "agent": frozenset({"name"}),
    "run": frozenset({"id", "name", "calls", "tokens", "cost", "elapsed"}),
}
"""The values in a condition, with the fields of each; None if the fields vary."""

TYPES: Final = frozenset(
    {"int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"}
)
WORDS: Final = frozenset({"true", "false", "null"})
GATHERING: Final = frozenset({"map", "filter"})  # they copy their result for each element
LOOPS: Final = frozenset({"all", "exists", "exists_one", "existsOne"}) | GATHERING
CEL_FUNCTIONS: Final = frozenset(
    {"size", "has", "type", "dyn", "int", "uint", "double", "string", "bytes", "timestamp"}
) | {"duration"}
CEL_METHODS: Final = frozenset(
    {"size", "contains", "startsWith", "endsWith", "matches", "getFullYear", "getMonth", "getDate"}
) | {"getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes", "getSeconds",
     "getMilliseconds"}  # fmt: skip

CLOSED: Final = frozenset({")", "]", "}"})
ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%"})
RELATIONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">=", "in"})
CONTINUING: Final = ARITHMETIC | {"."}  # the operand before is more than a name
