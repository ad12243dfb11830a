"""The run so far, as the conditions of guards see it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rollcage.gate import RunView, WithLimits

__all__ = ["RunSoFar"]


class RunSoFar(RunView):
    """The run so far, looked at when a condition asks.

    Args:
        job: the session's name.
        calls: how many calls the run has placed.
        clock: monotonic time in ns.
    """

    def __init__(self, job: str, calls: Callable[[], int], clock: Callable[[], int]) -> None:
        self._job = job
        self._calls = calls
        self._clock = clock
        self._run = ""
        self._meter: WithLimits | None = None
        self._opened = 0
        self._looking = threading.Lock()
        self._latest = 0  # the clock's, when somebody asked before

    def begin(self, run: str, meter: WithLimits | None) -> None:
        """The run begins; `meter` knows what it uses, if that is counted."""
        self._run, self._meter, self._opened = run, meter, self._clock()

    @property
    def id(self) -> str:
        """See `RunView`."""
        return self._run

    @property
    def name(self) -> str:
        """See `RunView`."""
        return self._job

    @property
    def calls(self) -> int:
        """See `RunView`."""
        return self._calls()

    @property
    def tokens(self) -> int:
        """See `RunView`."""
        return self._meter.spent.tokens if self._meter else 0

    @property
    def cost(self) -> float:
        """See `RunView`."""
        return self._meter.spent.cost if self._meter else 0.0

    @property
    def elapsed(self) -> float:
        """See `RunView`."""
        with self._looking:
            now = self._clock()
            if now < max(self._latest, self._opened):
                raise ValueError("the clock went backwards")
            self._latest = now
        return (now - self._opened) / 1e9
