"""The id of a call inside of what its tool gives back: it is another one in each run."""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar
from typing import Any, Final, cast

from langchain_core.messages import ToolMessage
from langgraph.types import Command

__all__ = ["THIS_CALL", "call_id_around", "relabel"]

THIS_CALL: Final = "(this call)"
"""What the trace holds where a tool's own message names the call that it answers."""

call_id_around: ContextVar[str] = ContextVar("rollcage_langchain_call", default="")
"""The id of the call that a hook lets through."""


def relabel(value: Any, old: str, new: str) -> Any:
    """Let the messages that a tool itself gives back answer call `new` where they answer `old`.

    Looks into a `ToolMessage`, a `Command` or a list of them; all else comes back untouched.
    """
    if not old or not new:
        return value
    if isinstance(value, (ToolMessage, Command)):
        return _relabel(value, old, new)
    if type(value) is list:
        items = cast("list[Any]", value)
        if any(isinstance(each, (ToolMessage, Command)) for each in items):
            return _relabel(items, old, new)
    return value


def _relabel(value: Any, old: str, new: str) -> Any:
    if isinstance(value, ToolMessage):
        same = value.tool_call_id != old
        return value if same else value.model_copy(update={"tool_call_id": new})
    if isinstance(value, Command):
        return dataclasses.replace(
            cast("Command[Any]", value),
            update=_relabel(cast("Command[Any]", value).update, old, new),
        )
    if type(value) is dict:
        fields = cast("dict[Any, Any]", value)
        return {name: _relabel(each, old, new) for name, each in fields.items()}
    if type(value) is list or type(value) is tuple:
        items = cast("list[Any]", value)
        return type(value)(_relabel(each, old, new) for each in items)
    return value
