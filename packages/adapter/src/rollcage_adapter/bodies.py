"""Bodies in the form that a session calls: with the validated arguments, by name."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

__all__ = ["fixed", "gathered", "stepped"]

R = TypeVar("R")


def fixed(body: Callable[..., R], /, *args: Any, **kwargs: Any) -> Callable[..., R]:
    """Return a body that runs with the framework's own arguments, ignoring the given ones."""
    if inspect.iscoroutinefunction(body):

        async def awaited(**_: Any) -> Any:
            return await body(*args, **kwargs)

        return awaited  # type: ignore[return-value] # the same R, a coroutine  # pyright: ignore[reportReturnType] - known to mypy

    def called(**_: Any) -> R:
        return body(*args, **kwargs)

    return called


def gathered(body: Callable[[dict[str, Any]], R], /) -> Callable[..., R]:
    """Return a body that passes its arguments on as one mapping."""
    if inspect.iscoroutinefunction(body):

        async def awaited(**values: Any) -> Any:
            return await body(values)

        return awaited  # type: ignore[return-value] # the same R, a coroutine  # pyright: ignore[reportReturnType] - known to mypy

    def called(**values: Any) -> R:
        return body(values)

    return called


def stepped(coroutine: Awaitable[R]) -> R:
    """Return the result of a coroutine that never suspends.

    An async loop whose steps never wait is a sync loop, too: one function serves both.
    """
    try:
        next(coroutine.__await__())
    except StopIteration as stop:
        value: R = stop.value
    else:
        raise AssertionError("what performs at once never suspends")
    return value
