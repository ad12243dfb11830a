"""The place of a call: the message that issued it, and the agent that makes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

from crewai.utilities.agent_utils import extract_tool_call_info
from rollcage_adapter import calls_of, slot_of

__all__ = ["Awaiting", "asked_for", "awaiting", "issued_in", "this_call"]

this_call: ContextVar[object] = ContextVar("rollcage_crewai_call", default=None)
"""Set anew for each call of a guarded crew."""


def asked_for(args: tuple[Any, ...]) -> tuple[str, str, Any] | None:
    """Return the id, name and arguments of a native call, in the model's own form."""
    return extract_tool_call_info(args[0]) if args else None


def issued_in(messages: list[Any], call_id: str) -> tuple[int | None, list[tuple[str, Any]] | None]:
    """Return a call's place in the message that issued it, and all its calls; None if unknown."""
    made = (message["tool_calls"] for message in reversed(messages) if message.get("tool_calls"))
    issued: list[Any] = list(next(made, ()))
    slot = slot_of(call_id, (call.get("id") for call in issued))
    found = [extract_tool_call_info(call) for call in issued]
    calls = None if None in found else calls_of(each[1:] for each in found if each is not None)
    return slot, calls


# --- async bodies ---------------------------------------------------------------------------------


class Awaiting:
    """The async bodies of one agent that are running now, each in a thread and loop of its own.

    A cancelled `await` of the crew does not reach them: CrewAI tells no thread.
    """

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], tuple[asyncio.AbstractEventLoop, Future[None]]] = {}
        self._cancelled = False

    @contextlib.contextmanager
    def body(self) -> Generator[None]:
        """Mark a running body, in its own loop."""
        task = asyncio.current_task()
        assert task is not None
        ended: Future[None] = Future()
        self._running[task] = asyncio.get_running_loop(), ended
        try:
            if self._cancelled:
                raise asyncio.CancelledError
            yield
        finally:
            del self._running[task]
            ended.set_result(None)

    async def cancel(self) -> None:
        """Cancel all of them, and wait for their ends; none begins any more."""
        self._cancelled = True
        ends: list[asyncio.Future[None]] = []
        for task, (loop, ended) in list(self._running.items()):
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)
                ends.append(asyncio.wrap_future(ended))
        if ends:
            await asyncio.wait(ends)


awaiting: ContextVar[Awaiting | None] = ContextVar("rollcage_crewai_awaiting", default=None)
"""The async bodies of the current agent."""
