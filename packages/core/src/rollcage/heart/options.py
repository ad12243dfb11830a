"""What few sessions set."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import EllipsisType
from typing import Literal

from rollcage.step.clock import Clock
from rollcage.undo.compensation import ToolSource

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
        types: classes whose values come back as themselves, besides those of return types.
        tools: the tools that undo plans name, if not those of this process; `...` adds these.
        clock: the source of time and randomness.
    """

    seed: str = ""
    retry_failed: bool | None = None
    strict: bool = False
    unguarded: Literal["warn", "refuse"] | None = None
    take: bool = False
    types: Iterable[type] = ()
    tools: Mapping[str, ToolSource] | Iterable[ToolSource | EllipsisType] | None = None
    clock: Clock = Clock()  # noqa: RUF009 - immutable
