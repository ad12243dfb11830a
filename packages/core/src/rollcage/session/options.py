"""Hold the settings that few sessions need."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import EllipsisType
from typing import Literal

from rollcage.contract.compensation import ToolSource
from rollcage.errors import SessionError
from rollcage.fingerprint.identity import next_uuid7, uuid7

__all__ = ["Clock", "Options"]


class _Ids:
    """Hold the last id that a clock gave to a run."""

    __slots__ = ("last", "lock")

    def __init__(self) -> None:
        self.last, self.lock = "", threading.Lock()


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
    _ids: _Ids = dataclasses.field(default_factory=_Ids, init=False, repr=False, compare=False)

    def run_id(self, before: str = "") -> str:
        """Return the id of a new run, a UUIDv7 greater than the last one of this clock.

        So runs that one process begins are listed in the order in which they began: within a
        millisecond, and after a clock that went back, the random part is counted up.

        Args:
            before: the id of a run that began before, perhaps by another clock.
        """
        ids = self._ids
        with ids.lock:
            fresh = uuid7(self.wall() // 1_000_000, self.random(10))
            ids.last = run = self._above(ids.last, fresh)
        return self._above(before, run)

    def _above(self, before: str, run: str) -> str:
        """Return an id, or the one after another if that is greater."""
        if run <= before:
            with contextlib.suppress(ValueError):  # an id that was not made here
                return next_uuid7(before, self.random(6))
        return run


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Hold the settings that few sessions need.

    Attributes:
        seed: separates the worlds of this job from the worlds of another seed.
        retry_failed: the recorded failures that run again: None, failures with no step after them;
            True, all; False, none.
        strict: whether arguments that need coercion are refused.
        unguarded: the response to a tool called without any session while this session is open:
            `"warn"` or `"refuse"`; None: it is refused if any entry of the gate blocks calls.
        take: whether to take the run over from a writer that seems alive: the fence refuses that
            writer's next line.
        resume_within: the greatest age of the last line of a run to resume, as a timedelta or in
            seconds; an older run is refused. By wall clocks: a line from the future counts as new.
        before_resume: called with the id of the run to resume, once no other process can write it
            and before a line is added. An exception is raised on entering: for a program that has
            examined the run before, and must know that nothing has changed since. The function must
            not enter a session, and may be called in a thread.
        types: classes whose values are restored, besides the classes of return types.
        tools: the tools for undo plans, if not the tools of this process; `...` adds these.
        clock: the source of time and randomness.

    Raises:
        SessionError: a setting is invalid.
    """

    seed: str = ""
    retry_failed: bool | None = None
    strict: bool = False
    unguarded: Literal["warn", "refuse"] | None = None
    take: bool = False
    resume_within: dt.timedelta | float | None = None
    before_resume: Callable[[str], None] | None = None
    types: Iterable[type] = ()
    tools: Mapping[str, ToolSource] | Iterable[ToolSource | EllipsisType] | None = None
    clock: Clock = Clock()

    def __post_init__(self) -> None:
        within = self.resume_within
        if within is None:
            return
        try:
            span = within if isinstance(within, dt.timedelta) else dt.timedelta(0, within)
        except (TypeError, ValueError, OverflowError):
            span = dt.timedelta(-1)
        if span < dt.timedelta(0):
            raise SessionError(
                f"resume_within={within!r} is not a time span: pass a timedelta, or seconds from 0 "
                f"up"
            )
        object.__setattr__(self, "resume_within", span)
