"""A run, a sheet of steps at a time."""

from __future__ import annotations

import dataclasses

from rollcage.trace.recorded import LogTrace

from rollcage_views.runs import Run, read_run

__all__ = ["Sheet", "sheet_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Sheet:
    """Some steps of a run, one after the other.

    Attributes:
        run: the run, with these steps only.
        first: the place of the first of them, from 1.
        total: how many steps the run has.
        lines: how many lines its log has: a follower goes on after them.
    """

    run: Run
    first: int
    total: int
    lines: int

    @property
    def next(self) -> int:
        """The place of the first step that is on no sheet up to this one; 0 where all are."""
        after = self.first + len(self.run.steps)
        return after if after <= self.total else 0


def sheet_of(trace: LogTrace, *, first: int = 1, count: int = 100) -> Sheet:
    """Return so many steps of a run, by their places.

    All lines are read for it: what one means, all lines before it say.

    Args:
        trace: the lines of the run.
        first: the place of the first step, from 1.
        count: how many; the last sheet has fewer.

    Raises:
        TraceCorrupt: a line breaks the chain, or is none of a run.
    """
    seen, first = read_run(trace, schema=False), max(first, 1)
    steps = seen.steps[first - 1 : first - 1 + count]
    total = len(seen.steps)
    return Sheet(dataclasses.replace(seen, steps=steps), first, total, trace.data.count(b"\n"))
