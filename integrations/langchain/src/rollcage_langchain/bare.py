"""Bare tools: tools that LangChain runs outside of the session, checked before their bodies run.

A middleware after the guard may run a tool of its own; an agent without the guard may run any.
LangChain tells its callbacks when a tool starts, and an exception in a callback keeps the tool from
running. Code that calls a tool's function, and not the tool, can't be caught.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import BaseTool
from langchain_core.tracers.context import register_configure_hook
from rollcage import Session
from rollcage_adapter import (
    as_written,
    declared_contract,
    guarding,
    refuse_bare,
    refuses_unguarded,
    session_here,
    step_here,
)

from rollcage_langchain.memory import note_attempt
from rollcage_langchain.private import starting_tool

__all__ = ["refusing_bare", "watch_calls"]


class _Refusal(BaseCallbackHandler):
    """Refuses each unguarded tool that starts."""

    raise_error = True
    run_inline = True  # in the context, and below the frame, of the tool's caller

    def __init__(self, session: Session, advice: str) -> None:
        self._session = session
        self._advice = advice

    @property
    def ignore_llm(self) -> bool:
        """Ignore models: it looks at tools only."""
        return True

    @property
    def ignore_chat_model(self) -> bool:
        """Ignore chat models."""
        return True

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        inputs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Refuse a bare tool.

        Raises:
            Blocked: the tool is bare; its body does not run.
        """
        if self._is_guarded(starting_tool()):
            return
        name = str(serialized.get("name") or "a tool")
        given = as_written(input_str if inputs is None else inputs)
        reason = f"{name} is not guarded where it was run, so it did not run: {self._advice}"
        refuse_bare(self._session, name, given, reason)

    def _is_guarded(self, tool: BaseTool | None) -> bool:
        if tool is None:
            return False
        if guarding(tool) is self._session:
            return True
        bodies = (getattr(tool, "func", None), getattr(tool, "coroutine", None))
        return session_here() is self._session and any(map(declared_contract, bodies))


class _Around(NamedTuple):
    """A guarded call that is passed on to the middleware after the guard."""

    step: tuple[str, int] | None  # the step whose body makes it; a later one is a guarded tool's
    refusal: _Refusal


_around: ContextVar[_Around | None] = ContextVar("rollcage_langchain_call", default=None)


@contextlib.contextmanager
def refusing_bare(session: Session) -> Generator[None]:
    """Refuse each bare tool that runs in the block, except in the body of a guarded tool."""
    advice = (
        "a middleware has to hand on its tool by request.override(tool=...), or to pass it through "
        "guard_tools first"
    )
    token = _around.set(_Around(step_here(), _Refusal(session, advice)))
    try:
        yield
    finally:
        _around.reset(token)


class _Hook:
    """Finds the handler for a tool that starts; LangChain reads it as a context variable."""

    def get(self) -> BaseCallbackHandler | None:
        """Return the handler; None if bare tools may run."""
        note_attempt()
        call = _around.get()
        if call is not None and call.step == step_here():
            return call.refusal
        session = refuses_unguarded()
        if session is None:
            return None
        return _Refusal(
            session,
            "a session is open that lets no tool run unguarded: pass its tools through "
            "guard_tools, or give the agent RollcageMiddleware",
        )


@functools.cache
def watch_calls() -> None:
    """Check each run of a tool, of any class. One call is enough."""
    register_configure_hook(cast("ContextVar[Any]", _Hook()), inheritable=False)
