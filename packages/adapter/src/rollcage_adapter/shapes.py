"""The types of values: tests that type checkers understand, and arguments by name."""

from __future__ import annotations

import contextlib
import json
from typing import Any, TypeGuard

import pydantic

__all__ = ["as_object", "as_written", "is_list", "is_model_class", "is_object", "is_tuple"]


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether it is a dict; dicts of frameworks have names for keys."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether it is a list."""
    return isinstance(value, list)


def is_tuple(value: Any) -> TypeGuard[tuple[Any, ...]]:
    """Whether it is a tuple."""
    return isinstance(value, tuple)


def is_model_class(value: Any) -> TypeGuard[type[pydantic.BaseModel]]:
    """Return whether it is a class of Pydantic models; not one of Pydantic v1."""
    return isinstance(value, type) and issubclass(value, pydantic.BaseModel)


def as_object(arguments: Any) -> dict[str, Any] | None:
    """Return a model's arguments by name: from an object, or the JSON of one. None: no names."""
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    return arguments if is_object(arguments) else None


def as_written(arguments: Any) -> dict[str, Any]:
    """Return the arguments for `Session.refused`; unnamed ones are recorded as `arguments`."""
    found = as_object(arguments)
    return {"arguments": arguments} if found is None else dict(found)
