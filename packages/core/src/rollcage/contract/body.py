"""Tell a declared tool's own body from wrappers that a user put around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["attach_body", "plain_body"]

_BODY: Final = "__rollcage_body__"


def attach_body(wrapper: Callable[..., Any], body: Callable[..., Any]) -> None:
    """Register the wrapper that guards the calls of a tool's body."""
    setattr(wrapper, _BODY, body)


def plain_body(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function under `@rollcage.tool`, for a caller that guards it itself, once.

    A user's own wrapper around a declared function stays: it guards the function by calling it.
    `functools.wraps` copies all attributes of that function to the wrapper, and wraps the function
    itself.
    """
    body = getattr(function, _BODY, None)
    own: Callable[..., Any] = function if body is None else body
    return own if getattr(function, "__wrapped__", None) is own else function
