"""The source of time and randomness of a session."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

__all__ = ["Clock"]


@dataclasses.dataclass(frozen=True, slots=True)
class Clock:
    """The source of time and randomness, so that a test can bring its own.

    Called from any thread; what they give must not depend on anything that the agent does.

    Attributes:
        wall: the time, in ns since 1970.
        monotonic: ns that never go back; durations are their differences.
        random: so many random bytes, for the ids of runs.
    """

    wall: Callable[[], int] = time.time_ns
    monotonic: Callable[[], int] = time.perf_counter_ns
    random: Callable[[int], bytes] = os.urandom
