"""Run a function in a thread, for an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Final, TypeVar

__all__ = ["apart", "in_thread"]

T = TypeVar("T")

apart: Final[ContextVar[bool]] = ContextVar("rollcage.trace.threads.apart", default=False)
"""Whether functions of this context get threads of their own.

The loop's executor has few threads. Bodies that wait in all of them for the end of some work, such
as an undo, would keep that work from its end.
"""


async def in_thread(function: Callable[..., T], *args: object, **words: object) -> T:
    """Run a function in a thread of the loop's executor, or in one of its own: see `apart`."""
    if not apart.get():
        return await asyncio.to_thread(function, *args, **words)
    call = functools.partial(contextvars.copy_context().run, function, *args, **words)
    executor = ThreadPoolExecutor(1, "rollcage-apart")
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, call)
    finally:
        executor.shutdown(wait=False)
