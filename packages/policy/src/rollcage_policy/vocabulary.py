"""The names in conditions: their values, and CEL's own types, functions and operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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

ROOTS: Final[Mapping[str, Any]] = {
    "args": None,
    "labels": [""],
    "tool": {
        "name": "", "version": "", "effect": "", "risk": "", "reversible": True,
        "idempotent": True, "permissions": [""], "kind": "",
    },
    "agent": {"name": ""},
    "run": {"id": "", "name": "", "calls": 0, "tokens": 0, "cost": 0.0, "elapsed": 0.0},
}  # fmt: skip
"""An example of each value in a condition, with all its fields; None if it varies."""

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
