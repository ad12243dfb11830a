"""A new body for an object of a framework: its type, name and fields stay the same."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pydantic

__all__ = ["subclass", "swapped"]

T = TypeVar("T")


def subclass(cls: Any, members: Mapping[str, Any]) -> Any:
    """Return a subclass with these `members`, and the name of the class itself.

    For a Pydantic model, it shares the fields, the schema and the validator: none is built again,
    because a service makes such a class for each request.
    """
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    if issubclass(cls, pydantic.BaseModel):
        return _like_model(cls, {**names, **members})
    make: Callable[..., Any] = cls.__class__
    return make(cls.__name__, (cls,), {**names, **members})


def _like_model(cls: Any, namespace: dict[str, Any]) -> Any:
    """Return a subclass that bypasses Pydantic's metaclass: it adds no field."""
    if not cls.__pydantic_complete__:
        cls.model_rebuild(raise_errors=False)
    meta: Any = cls.__class__
    return abc.ABCMeta.__new__(meta, cls.__name__, (cls,), {"__slots__": (), **namespace})


def swapped(
    original: T,
    members: Mapping[str, Any],
    *,
    update: Mapping[str, Any] | None = None,
    hidden: tuple[str, ...] = (),
) -> T:
    """Return a shallow copy of an object, of a subclass of its class with these `members`.

    Args:
        original: the object, which is not changed; a Pydantic model or any other copyable object.
        members: the attributes of the subclass, by name.
        update: changed fields of the copy.
        hidden: attributes of the class that are None in the subclass, if they exist.
    """
    twin = subclass(type(original), members)
    for name in hidden:
        if hasattr(twin, name):
            setattr(twin, name, None)
    changes = dict(update or {})
    if isinstance(original, pydantic.BaseModel):
        # Pydantic's own attribute setting knows only fields.
        swap: Any = original.model_copy(update=changes)
    else:
        swap = copy.copy(original)
        for name, value in changes.items():
            object.__setattr__(swap, name, value)
    object.__setattr__(swap, "__class__", twin)
    found: T = swap
    return found
