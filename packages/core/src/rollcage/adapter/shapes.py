"""What a value is made of: tests of types that type checkers understand."""

from __future__ import annotations

from typing import Any, TypeGuard

import pydantic

__all__ = ["is_list", "is_model_class", "is_object", "is_tuple"]


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether it is a dict; those of frameworks have names for keys."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether it is a list."""
    return isinstance(value, list)


def is_tuple(value: Any) -> TypeGuard[tuple[Any, ...]]:
    """Whether it is a tuple."""
    return isinstance(value, tuple)


def is_model_class(value: Any) -> TypeGuard[type[pydantic.BaseModel]]:
    """Whether it is a Pydantic model, the class; not one of Pydantic v1."""
    return isinstance(value, type) and issubclass(value, pydantic.BaseModel)
