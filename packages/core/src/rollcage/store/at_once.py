"""What an event loop may do itself: what waits for nobody, and for no disk.

A session that begins or ends in a store on a local disk needs half a millisecond of it, and a
thread for that would take as much again: it and the loop would only wait for the interpreter in
turn. So the loop tries it first. Where a lock is taken, much is to be read, or the disk has to be
waited for, it does not go on, and a thread does all of it instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from rollcage.store.protocol import Store

__all__ = ["AT_ONCE", "WouldWait", "at_once", "held", "look", "will_wait"]

T = TypeVar("T")

AT_ONCE: Final = 1 << 16  # bytes that are read at once
_at_once: Final[ContextVar[bool]] = ContextVar("rollcage_at_once", default=False)


class WouldWait(Exception):
    """It can't be done at once; nothing was changed."""


@contextlib.contextmanager
def at_once() -> Generator[None]:
    """In here, `WouldWait` is raised before anything that would wait."""
    token = _at_once.set(True)
    try:
        yield
    finally:
        _at_once.reset(token)


def will_wait() -> None:
    """Called before what waits for somebody else, or for a disk.

    Raises:
        WouldWait: this is done `at_once`.
    """
    if _at_once.get():
        raise WouldWait


@contextlib.contextmanager
def held(lock: threading.Lock) -> Generator[None]:
    """Hold a lock of this process.

    Raises:
        WouldWait: another thread has it, and this is done `at_once`.
    """
    if not lock.acquire(blocking=not _at_once.get()):
        raise WouldWait
    try:
        yield
    finally:
        lock.release()


async def look(store: Store, looks: Callable[[], T]) -> T:
    """What a look at a store gives: at once if that waits for nobody, else from a thread.

    Args:
        store: where it looks.
        looks: is called, and once more in a thread if it would have waited.
    """
    if not store.waits:
        with contextlib.suppress(WouldWait), at_once():
            return looks()
    return await asyncio.to_thread(looks)
