"""Timeouts of steps: the time in which their run was paused does not count."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

from rollcage import Session

__all__ = ["within"]

_LOOK: Final = 0.05  # seconds between two looks at a paused run, at least


@contextlib.asynccontextmanager
async def within(session: Session, limit: float) -> AsyncGenerator[asyncio.Timeout]:
    """Limit a block like `asyncio.timeout`, without the time in which a paused run's calls waited.

    Args:
        session: the session of the run.
        limit: seconds.

    Raises:
        TimeoutError: the block took longer than that.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + limit - session.held
    timer = loop.call_later(limit, lambda: look())  # noqa: PLW0108 - it is bound below

    def look() -> None:
        nonlocal timer
        left = ends + session.held - loop.time()
        if left <= 0:
            timeout.reschedule(loop.time())
        else:
            timer = loop.call_later(max(left, _LOOK), look)

    async with asyncio.timeout(None) as timeout:
        try:
            yield timeout
        finally:
            timer.cancel()
