"""Bodies in the form that a session calls: with the validated arguments, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["fixed", "gathered"]

R = TypeVar("R")


def fixed(body: Callable[..., R], /, *args: Any, **kwargs: Any) -> Callable[..., R]:
    """A body that runs with the framework's own arguments, whatever the session calls it with."""

    def called(**_: Any) -> R:
        return body(*args, **kwargs)

    return called


def gathered(body: Callable[[dict[str, Any]], R], /) -> Callable[..., R]:
    """A body that takes the arguments that the session calls it with as one mapping."""

    def called(**values: Any) -> R:
        return body(values)

    return called
