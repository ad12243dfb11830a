"""The id of a call inside of what its tool gives back: it is another one in each run."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, TypeGuard

from langchain_core.messages import ToolMessage
from langgraph.types import Command
from rollcage.adapter import is_list, is_object, is_tuple

__all__ = ["THIS_CALL", "relabel"]

THIS_CALL: Final = "(this call)"
"""What the trace holds where a tool's own message names the call that it answers."""


def relabel(value: Any, old: str, new: str) -> Any:
    """Let the messages that a tool itself gives back answer call `new` where they answer `old`.

    Looks into a `ToolMessage`, a `Command` or a list of them; all else comes back untouched.
    """
    if not old or not new:
        return value
    listed = is_list(value) and any(_is_answer(each) for each in value)
    return _relabel(value, old, new) if listed or _is_answer(value) else value


def _is_answer(value: Any) -> bool:
    return isinstance(value, ToolMessage) or _is_command(value)


def _is_command(value: Any) -> TypeGuard[Command[Any]]:
    return isinstance(value, Command)


def _relabel(value: Any, old: str, new: str) -> Any:
    if isinstance(value, ToolMessage):
        same = value.tool_call_id != old
        return value if same else value.model_copy(update={"tool_call_id": new})
    if _is_command(value):
        return dataclasses.replace(value, update=_relabel(value.update, old, new))
    if is_object(value):
        return {name: _relabel(each, old, new) for name, each in value.items()}
    if is_list(value):
        return [_relabel(each, old, new) for each in value]
    return tuple(_relabel(each, old, new) for each in value) if is_tuple(value) else value
