"""Bare tools: those that nobody guards, where a session lets none of them run.

CrewAI's hooks before a tool call are for agents only. So the methods by which tools are called, of
each class that there is or will be, are replaced by ones that look first; without such a session
they do nothing else than those methods. Code that calls a tool's function is out of reach.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final

from crewai.tools.base_tool import BaseTool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.tools.tool_failure import ToolFailure
from rollcage import Blocked
from rollcage.adapter import (
    as_written,
    declared_contract,
    guarded_contract,
    refuse_bare,
    refuses_unguarded,
)

from rollcage_crewai.contracts import arguments_of

__all__ = ["watch_calls"]

Refused = Callable[[Blocked, Any], ToolFailure]

_WATCHED: Final = "__rollcage_watched__"
_BODIES: Final = ("run", "arun", "_run", "_arun")
_FORMS: Final = ("invoke", "ainvoke")  # of a tool's form for agents without native calls


def watch_calls(refused: Refused) -> None:
    """Look before each call of a tool, of whichever class; `refused` makes what answers one."""
    for cls in _and_below(BaseTool):
        _watch(cls, _BODIES, refused)
    for cls in _and_below(CrewStructuredTool):
        _watch(cls, _FORMS, refused)
    own: Any = vars(BaseTool)["__init_subclass__"]

    def __init_subclass__(cls: Any, /, **options: Any) -> None:  # noqa: N807 - it becomes one
        own.__func__(cls, **options)
        _watch(cls, _BODIES, refused)

    later: Any = classmethod(__init_subclass__)
    setattr(BaseTool, "__init_subclass__", later)  # noqa: B010 - no method of a class is to be assigned


def _and_below(cls: Any) -> Iterator[Any]:
    yield cls
    for each in cls.__subclasses__():
        yield from _and_below(each)


def _watch(cls: Any, names: tuple[str, ...], refused: Refused) -> None:
    """Replace methods of this very class."""
    own: dict[str, Any] = dict(cls.__dict__)
    for name in names:
        method = own.get(name)
        if inspect.isfunction(method) and not hasattr(method, _WATCHED):
            watched = _watched(method, refused)
            setattr(watched, _WATCHED, True)
            setattr(cls, name, watched)


def _watched(method: Callable[..., Any], refused: Refused) -> Any:
    @functools.wraps(method)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = _bare_call(self, args, kwargs, refused)
        return method(self, *args, **kwargs) if answer is None else answer

    @functools.wraps(method)
    async def awatched(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = _bare_call(self, args, kwargs, refused)
        return await method(self, *args, **kwargs) if answer is None else answer

    return awatched if inspect.iscoroutinefunction(method) else watched


def _bare_call(
    tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any], refused: Refused
) -> ToolFailure | None:
    """What answers a call of a bare tool, which does not run; None of any other."""
    session = refuses_unguarded()
    if session is None or not _is_bare(tool):
        return None
    given: Any
    if isinstance(tool, CrewStructuredTool):
        given = args[0] if args else kwargs.get("input")
    else:
        given = arguments_of(tool.args_schema, args, kwargs)
    reason = (
        f'{tool.name} is not guarded, so it did not run: a session with unguarded="refuse" is '
        f"open. Pass its crew through guard_crew, or its tools through guard_tools"
    )
    try:
        refuse_bare(session, tool.name, as_written(given), reason)
    except Blocked as blocked:
        return refused(blocked, tool)


def _is_bare(tool: Any) -> bool:
    """Whether nobody guards a tool, or the one that this is a form of."""
    of = getattr(tool, "_original_tool", None) or tool
    if guarded_contract(tool) is not None or guarded_contract(of) is not None:
        return False
    return declared_contract(getattr(of, "func", None)) is None
