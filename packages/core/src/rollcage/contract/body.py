"""Which function a declared tool's own body is, and which is a wrapper that somebody put around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["attach_body", "plain_body"]

_BODY: Final = "__rollcage_body__"


def attach_body(wrapper: Callable[..., Any], body: Callable[..., Any]) -> None:
    """Make a function known as the one that guards a tool's calls, in place of its body."""
    setattr(wrapper, _BODY, body)


def plain_body(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under `@rollcage.tool`, for whoever guards it itself, once.

    A user's own wrapper around a declared function stays: what it calls is guarded by itself.
    `functools.wraps` gives it all the attributes of that function, but wraps the function itself.
    """
    body = getattr(function, _BODY, None)
    own: Callable[..., Any] = function if body is None else body
    return own if getattr(function, "__wrapped__", None) is own else function
