"""A run, a sheet of steps at a time: what one costs hardly grows with the run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from rollcage.errors import TraceCorrupt
from rollcage.trace import (
    Run,
    Tail,
    Traced,
    fold,
    is_log,
    read_events,
    read_run,
    split_tail,
    tail_of,
)

__all__ = ["Sheet", "sheet_of"]

# How lines begin; a line feed is nowhere but at a line's end.
_BEGIN: Final = re.compile(
    rb'\n\{"event":"(?:step\.(?:started|replayed|blocked)|branch\.joined)","time":\d+,"step":(\d+),'
)
_UNDONE: Final = b'\n{"event":"undo.finished",'
_LAST: Final = (b'\n{"event":"run.finished",', b'\n{"event":"run.abandoned",')
_NEAR: Final = 1 << 20  # bytes before the end in which it is looked how a run ended


@dataclasses.dataclass(frozen=True, slots=True)
class Sheet:
    """Some steps of a run, one after the other.

    Attributes:
        run: as its trace tells, with these steps only; its approvals and refused calls are those
            that stand between them.
        first: the place of the first of them, from 1.
        total: how many steps the run has.
        lines: how many lines its trace has: a follower goes on after them.
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


def sheet_of(trace: Traced, *, first: int = 1, count: int = 100, lines: int | None = None) -> Sheet:
    """So many steps of a run, by their places in its trace.

    The hashes of the lines that are read are checked, and those of no others.

    Args:
        trace: all of it.
        first: the place of the first one, from 1.
        count: how many; the last sheet has fewer.
        lines: how many lines the trace has, where that is known.

    Raises:
        TraceCorrupt: a line that breaks the chain, or is no event of this format.
    """
    if is_log(trace.data):
        return _of_log(trace, max(first, 1), count)
    data, _ = split_tail(trace.data)
    found = _BEGIN.finditer(data)
    begins = [match.start() + 1 for match in islice(found, max(first - 1, 0), first + count)]
    total = _total(data)
    end = begins[count] if len(begins) > count else len(data)
    spans = [(0, data.find(b"\n") + 1)]
    if begins:
        spans.append((begins[0], end))
    try:
        events = [event for span in spans for event in _events(data, span, trace.where)]
        later = [*_ends(data, end, events), *_undone(data, end), *_endings(data, spans[-1])]
        for start in sorted(set(later)):
            events += _events(data, (start, data.find(b"\n", start) + 1), trace.where)
        run = fold(events)
    except (LookupError, TypeError, AttributeError) as error:
        raise TraceCorrupt(trace.where, 1, f"not an event of this format: {error!r}") from None
    return Sheet(run, max(first, 1), total, data.count(b"\n") if lines is None else lines)


def _of_log(trace: Traced, first: int, count: int) -> Sheet:
    """So many steps of the log of a run: what a line means, all lines before it say."""
    seen = read_run(trace, schema=False)
    steps = seen.steps[first - 1 : first - 1 + count]
    total, lines = len(seen.steps), trace.data.count(b"\n")
    return Sheet(dataclasses.replace(seen, steps=steps), first, total, lines)


def _events(data: bytes, span: tuple[int, int], where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events of whole lines, each with its number and its hash found right."""
    start, end = span
    if not start:
        after = None
    else:
        head = tail_of(data[data.rfind(b"\n", 0, start - 1) + 1 : start]).head
        after = Tail(data.count(b"\n", 0, start), start, head, b"")
    return read_events(data[start:end], where, after=after, restore=False)


def _total(data: bytes) -> int:
    """How many steps there are: the number of the last one, for they are counted from 1."""
    start, size = len(data), 1 << 16
    while start > 0:
        start = max(len(data) - size, 0)
        found = [int(match[1]) for match in _BEGIN.finditer(data, start)]
        if found:
            return max(found)
        size *= 8
    return 0


def _ends(data: bytes, after: int, events: list[tuple[int, dict[str, Any]]]) -> Iterator[int]:
    """Where after a sheet the ends of its steps are."""
    ended = {event["step"] for _, event in events if event["event"] == "step.finished"}
    began = {event["step"] for _, event in events if event["event"] == "step.started"}
    left = began - ended
    if left and after < len(data):
        numbers = b"|".join(b"%d" % each for each in sorted(left))
        end = rb'\n\{"event":"step\.(?:finished|resolved)","time":\d+,"step":(?:%b),' % numbers
        for match in re.compile(end).finditer(data, max(after - 1, 0)):
            yield match.start() + 1


def _undone(data: bytes, after: int) -> Iterator[int]:
    """Where after a sheet the outcomes of the undo of steps are."""
    at = data.find(_UNDONE, max(after - 1, 0))
    while at >= 0:
        yield at + 1
        at = data.find(_UNDONE, at + 1)


def _endings(data: bytes, sheet: tuple[int, int]) -> Iterator[int]:
    """Where the run's own ends are, the last of each kind; an undo may come after them."""
    for each in _LAST:
        at = data.rfind(each, max(len(data) - _NEAR, 0)) + 1
        if at and not sheet[0] <= at < sheet[1]:
            yield at
