"""Another body for an object of a framework: its type, name and fields stay what they are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pydantic

__all__ = ["subclass", "swapped"]

T = TypeVar("T")


def subclass(cls: Any, members: Mapping[str, Any]) -> Any:
    """A subclass that has these `members`, and is called as the class itself.

    Of a Pydantic model, it builds no schema before one is asked for: a service makes one of these
    for each request, and its objects are copies of valid ones.
    """
    make: Callable[..., Any] = cls.__class__
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    if issubclass(cls, pydantic.BaseModel):
        members = {"model_config": pydantic.ConfigDict(defer_build=True), **members}
    return make(cls.__name__, (cls,), {**names, **members})


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
