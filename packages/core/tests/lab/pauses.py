"""Somebody who pauses runs of a lab, and lifts each pause as soon as a call waits for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rollcage import OrderRefused, RunNotFound
from rollcage.store import pause_run, unpause_run

if TYPE_CHECKING:
    from programs import Lab

__all__ = ["Pauses"]

MOST = 5  # pauses of a lab: one that begins for each session again would come for ever
LOOKS = 0.0005  # seconds


def waits() -> bool:
    """Whether a call of this process waits in a paused run."""
    return any(thread.name == "rollcage-pause" for thread in threading.enumerate())


class Pauses:
    """The pauses of a lab.

    Each is given by whoever is at work, or after the process has died; and lifted by another
    thread, with a store of its own, while a call waits, or when nothing is done any more.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._over = threading.Event()
        self._lifting: dict[str, threading.Thread] = {}
        self._wrong: list[str] = []
        self.given = 0

    def give(self, run: str, *, at_rest: bool = False) -> None:
        """Pause a run; one `at_rest` is in no session, and nothing may be done before that ends."""
        if self.given == MOST or run in self._lifting:
            return
        with suppress(OrderRefused):  # it is over
            pause_run(self._lab.store, run, by="ann", reason="let me look", time=1)
            self.given += 1
            done = self._done() if at_rest else None
            thread = threading.Thread(target=self._lift, args=(run, done), name="ann", daemon=True)
            self._lifting[run] = thread
            thread.start()

    def _done(self) -> int:
        return sum(deed.sign > 0 for deed in self._lab.world.deeds)

    def _lift(self, run: str, done: int | None) -> None:
        while not (waits() or self._over.wait(LOOKS)):
            pass
        if done is not None and self._done() != done and not self._over.is_set():
            self._wrong.append(f"something was done while {run} was paused")
        with suppress(OrderRefused, RunNotFound):
            unpause_run(self._lab.store, run)
        while waits():  # those that wait look again now and then
            time.sleep(LOOKS)
        self._lifting.pop(run, None)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Around all that is done in a lab: at the end, no pause is left."""
        try:
            yield
        finally:
            self._over.set()
            for thread in list(self._lifting.values()):
                thread.join()
            self._over = threading.Event()
        assert not self._wrong, self._wrong
