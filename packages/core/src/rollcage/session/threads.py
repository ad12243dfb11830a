"""Threads for what may block: a few for each store, which end when they long had nothing to do.

They are not those of the event loop's pool, which may be full of those who wait. There are few of
them for one store, for its sessions open one after the other: more threads would only wait for each
other, and for the interpreter. What blocks one store keeps nobody from another.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["in_threads_of"]

_MOST: Final = 4  # threads of one place
_IDLE: Final = 1.0  # seconds
_guard = threading.Lock()
_places: Final[dict[str, _Place]] = {}


class _Place:
    """The threads of one place. All of it is changed by who holds the guard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.threads = 0
        self.pieces = 0  # of work: those that wait, and those that are done just now

    def serve(self) -> None:
        while True:
            try:
                work = self.todo.get(timeout=_IDLE)
            except queue.Empty:
                with _guard:
                    if not self.todo.empty():
                        continue
                    self.threads -= 1
                    if not self.threads:
                        _places.pop(self.name, None)
                    return
            try:
                work()
            finally:
                del work  # it holds what it gave
                with _guard:
                    self.pieces -= 1


def in_threads_of(name: str, work: Callable[[], None]) -> None:
    """Have work done in a thread of a place, as soon as one is free; it raises nothing.

    Args:
        name: of the place: those of one name wait for each other.
        work: what is done.
    """
    with _guard:
        place = _places.setdefault(name, _Place(name))
        place.pieces += 1
        place.todo.put(work)
        if place.pieces <= place.threads or place.threads == _MOST:
            return
        place.threads += 1
    try:
        threading.Thread(target=place.serve, name="rollcage-wait", daemon=True).start()
    except RuntimeError:  # the system has no more: those that there are do it
        with _guard:
            place.threads -= 1
            if place.threads:
                return
        raise


def _leave_to_parent() -> None:
    """In a forked child: the threads are the parent's, and so is what they have to do."""
    global _guard  # noqa: PLW0603 - another thread of the parent may have had it
    _guard = threading.Lock()
    _places.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
