"""Another body for an object of a framework: its type, name and fields stay what they are."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pydantic

__all__ = ["subclass", "swapped"]

T = TypeVar("T")


def subclass(cls: Any, members: Mapping[str, Any]) -> Any:
    """A subclass that has these `members`, and is called as the class itself.

    Of a Pydantic model, it has the fields, the schema and the validator of that: none is built
    anew, for a service makes one of these for each request.
    """
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    if issubclass(cls, pydantic.BaseModel):
        return _like_model(cls, {**names, **members})
    make: Callable[..., Any] = cls.__class__
    return make(cls.__name__, (cls,), {**names, **members})


def _like_model(cls: Any, namespace: dict[str, Any]) -> Any:
    """A subclass that Pydantic's metaclass has not gone through: it adds no field."""
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
    """A shallow copy of an object, of a subclass of its class that has these `members`.

    Args:
        original: it stays as it is; a Pydantic model or any other object that can be copied.
        members: the attributes of the subclass, by name.
        update: fields of the copy that are to differ.
        hidden: attributes of the class that the subclass is to have as None, where there are any.
    """
    twin = subclass(type(original), members)
    for name in hidden:
        if hasattr(twin, name):
            setattr(twin, name, None)
    changes = dict(update or {})
    if isinstance(original, pydantic.BaseModel):
        # Pydantic's own attribute setting knows fields only.
        swap: Any = original.model_copy(update=changes)
    else:
        swap = copy.copy(original)
        for name, value in changes.items():
            object.__setattr__(swap, name, value)
    object.__setattr__(swap, "__class__", twin)
    found: T = swap
    return found
