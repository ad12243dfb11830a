"""The labels of a call: what its result carries is written with its end, and noted for later calls.

They are written so that a replay knows those that came from calls which are not made again.
"""

from __future__ import annotations

from typing import Final

from rollcage.errors import ArgumentsInvalid, Blocked, CaptureFailed, Halt, SessionError
from rollcage.gate.labels import Labels
from rollcage.step.call import Progress
from rollcage.step.requests import Raised, Returned, Settle

__all__ = ["begin_stream", "mark", "noted"]

# The texts of these are not a tool's own.
_OURS: Final = (ArgumentsInvalid, Blocked, CaptureFailed, Halt, SessionError)


def begin_stream(progress: Progress) -> None:
    """A body begins: what a stream gives is labelled before its end."""
    labels = progress.labels
    if labels is not None and progress.streamed:
        labels.begin(progress.number, progress.call.contract.name, _carried(progress, labels))


def mark(settled: Settle, progress: Progress) -> Settle:
    """How a step ended, with the labels that its result carries."""
    labels = progress.labels
    if labels is not None:
        progress.carried = carried = _carried(progress, labels)
        if carried:
            settled.marks = {**(settled.marks or {}), "labels": sorted(carried)}
    return settled


def _carried(progress: Progress, labels: Labels) -> frozenset[str]:
    """What a call's result carries: declared, recorded, of its arguments, of its own calls."""
    call, entry = progress.call, progress.recorded
    recorded = () if entry is None else entry.labels
    return labels.carried(call.contract, call.kind, progress.found, recorded, progress.number)


def noted(ended: Returned | Raised, progress: Progress) -> Returned | Raised:
    """How a call has ended, live or replayed; what its result carries is noted for later ones."""
    labels = progress.labels
    if labels is not None:
        carried = progress.carried
        if carried is None:  # no end of it was written
            carried = _carried(progress, labels)
        if carried:
            _note(ended, progress, labels, carried)
    return ended


def _note(
    ended: Returned | Raised, progress: Progress, labels: Labels, carried: frozenset[str]
) -> None:
    streamed = progress.streamed
    if isinstance(ended, Returned):
        value = ended.value
    elif streamed or isinstance(ended.error, _OURS) or not isinstance(ended.error, Exception):
        return  # the stream stays open in the labels: all later calls carry its own
    else:
        value = ended.error
    labels.note(
        progress.number,
        progress.call.contract.name,
        carried,
        value,
        found=progress.found,
        streamed=streamed,
        parent=0 if progress.call.parent is None else progress.call.parent.number,
    )
