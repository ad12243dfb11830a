"""How the calls of a paused run wait: all calls of a session on one future."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Final

from rollcage.errors import SessionHalted
from rollcage.step.requests import Flow, Raised, Returned, WaitForCall

__all__ = ["Pausing", "held_back"]

_FIRST: Final = 0.02  # seconds until the order is looked for again ...
_MOST: Final = 0.25  # ... and never longer than that


class Pausing:
    """What the calls of a session wait for while their run is paused.

    As long as there are any, one thread looks whether the order still holds. It holds the session's
    lock for that alone, so whoever leaves the session, or finishes a call in it, is not kept back.

    Args:
        lock: the session's.
        holds: whether the session is open, and an order to pause holds; called with the lock.
    """

    def __init__(
        self, lock: AbstractContextManager[Any, bool | None], holds: Callable[[], bool]
    ) -> None:
        self._lock = lock
        self._holds = holds
        self._over: Future[None] | None = None
        self._since = self._before = 0.0

    @property
    def seconds(self) -> float:
        """For how long calls have waited, until now."""
        with self._lock:
            now = 0.0 if self._over is None else time.monotonic() - self._since
            return self._before + now

    def over(self) -> Future[None]:
        """Done as soon as the run is no longer paused, or is stopped. The caller has the lock."""
        if self._over is None:
            over = Future[None]()
            name = "rollcage-pause"
            threading.Thread(target=self._watch, args=(over,), name=name, daemon=True).start()
            self._over, self._since = over, time.monotonic()
        return self._over

    def _watch(self, over: Future[None]) -> None:
        """Look until the order is gone; the calls that waited then find out what holds instead."""
        look, wait = threading.Event(), _FIRST
        try:
            while not look.wait(wait):
                wait = min(wait * 2, _MOST)
                with self._lock:
                    if not self._holds():
                        self._before += time.monotonic() - self._since
                        self._over = None
                        return
        finally:
            over.set_result(None)


def held_back(why: Callable[[], SessionHalted | Future[None] | None], flow: Flow) -> Flow:
    """The flow of a call that is made from inside of another session, as soon as that allows it.

    Args:
        why: what it has to wait for, or why it is refused; None if it may go on.
        flow: what follows.
    """
    held: BaseException | Future[None] | None = why()
    while isinstance(held, Future):
        answer: Returned | Raised = yield WaitForCall(held)
        held = answer.error if isinstance(answer, Raised) else why()
    if held is not None:
        flow.close()
        return Raised(held)
    return (yield from flow)
