"""What few sessions set."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from types import EllipsisType
from typing import Literal

from rollcage.contract.compensation import ToolSource
from rollcage.errors import SessionError
from rollcage.session.clock import Clock

__all__ = ["Options"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What few sessions set.

    Attributes:
        seed: sets the worlds of this job apart from those of another seed.
        retry_failed: which recorded failures run again: None, those that nothing came after; True,
            all; False, none.
        strict: arguments that would have to be coerced are refused.
        unguarded: what is done with a tool that is called without any session while this one is
            open: `"warn"` or `"refuse"`; None: it is refused if anything in the gate blocks calls.
        take: whether the run is taken over from a writer that seems to live: the fence refuses that
            one's next line.
        resume_within: how long ago the run that is resumed may have been written to, as a timedelta
            or in seconds; an older one is refused. By wall clocks: one from the future counts as
            new.
        before_resume: called with the id of the run that is to be resumed, once nobody else can
            write it and before anything is recorded. What it raises is raised on entering: for a
            program that has looked at the run before that, and has to know that nothing changed
            since. It must not enter a session, and may be called in a thread.
        types: classes whose values come back as themselves, besides those of return types.
        tools: the tools that undo plans name, if not those of this process; `...` adds these.
        clock: the source of time and randomness.

    Raises:
        SessionError: one of them means nothing.
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
    clock: Clock = Clock()  # noqa: RUF009 - immutable

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
