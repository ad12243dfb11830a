"""A run, a sheet of steps at a time."""

from __future__ import annotations

import dataclasses

from rollcage.trace.recorded import LogTrace

from rollcage_views.runs import Run, read_run

__all__ = ["Sheet", "sheet_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Sheet:
    """Consecutive steps of a run.

    Attributes:
        run: the run, with these steps only.
        first: the place of the first of them, from 1.
        total: how many steps the run has.
        lines: how many lines its log has: a follower continues after them.
    """

    run: Run
    first: int
    total: int
    lines: int

    @property
    def next(self) -> int:
        """The place of the first step after this sheet; 0 after the last sheet."""
        after = self.first + len(self.run.steps)
        return after if after <= self.total else 0


def sheet_of(trace: LogTrace, *, first: int = 1, count: int = 100) -> Sheet:
    """Return a number of a run's steps, by their places.

    All lines are read, because the meaning of a line depends on all lines before it.

    Args:
        trace: the lines of the run.
        first: the place of the first step, from 1.
        count: how many; the last sheet has fewer.

    Raises:
        TraceCorrupt: a line breaks the chain, or is not of a run.
    """
    seen, first = read_run(trace, schema=False), max(first, 1)
    steps = seen.steps[first - 1 : first - 1 + count]
    total = len(seen.steps)
    return Sheet(dataclasses.replace(seen, steps=steps), first, total, trace.data.count(b"\n"))
