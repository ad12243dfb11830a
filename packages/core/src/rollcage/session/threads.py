"""Threads for what may block: a few for each store, which end after a while without work.

They are not those of the event loop's pool, which may be full of waiting tasks. One store has
few of them, because its sessions open one after the other: more threads would only wait for each
other and for the interpreter. What blocks one store does not block another.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["in_threads_of"]

_MOST: Final = 4  # threads of one place
_IDLE: Final = 1.0  # seconds
_guard = threading.RLock()  # reentrant: what is collected under it may start work
_places: Final[dict[str, _Place]] = {}


class _Place:
    """The threads of one place. Changed only under the guard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.threads = 0
        self.pieces = 0  # of work: waiting, or being done

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
            except BaseException:  # noqa: BLE001 - nobody waits for it; others wait for this thread
                threading.excepthook(
                    threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                )
            del work  # it holds what it gave
            with _guard:
                self.pieces -= 1


def in_threads_of(name: str, work: Callable[[], object]) -> None:
    """Have work done in a thread of a place, as soon as one is free.

    Args:
        name: of the place: those of one name wait for each other.
        work: what is done. Its error is reported as that of any thread, and ends none.

    Raises:
        RuntimeError: the system has no thread for it; it will not be done.
    """
    with _guard:
        place = _places.get(name) or _Place(name)
        if place.pieces >= place.threads and place.threads < _MOST:
            try:
                threading.Thread(target=place.serve, name="rollcage-wait", daemon=True).start()
            except RuntimeError:  # the system has no more: the existing ones do it
                if not place.threads:
                    raise
            else:
                place.threads += 1
        _places[name] = place
        place.pieces += 1
        place.todo.put(work)


def _leave_to_parent() -> None:
    """In a forked child: the threads are the parent's, and so is what they have to do."""
    global _guard  # noqa: PLW0603 - another thread of the parent may have had it
    _guard = threading.RLock()
    _places.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
