"""Another body for an object of LangChain's: its type, name and fields stay what they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pydantic

__all__ = ["swapped"]

M = TypeVar("M", bound=pydantic.BaseModel)


def swapped(
    original: M,
    members: Mapping[str, Any],
    *,
    update: Mapping[str, Any] | None = None,
    hidden: tuple[str, ...] = (),
) -> M:
    """A copy of an object, of a subclass of its class that has these `members`.

    Args:
        original: it stays as it is.
        members: the attributes of the subclass, by name.
        update: fields of the copy that are to differ.
        hidden: attributes of the class that the subclass is to have as None, where there are any.
    """
    cls: Any = type(original)
    make: Callable[..., Any] = cls.__class__
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    twin = make(cls.__name__, (cls,), {**names, **members})
    for name in hidden:
        if hasattr(twin, name):
            setattr(twin, name, None)
    copy = original.model_copy(update=update)
    object.__setattr__(copy, "__class__", twin)  # Pydantic's own knows fields only
    return copy
