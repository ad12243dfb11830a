"""The flow of a call with its labels: what its result carries is noted when it is known.

It stands around the flow of the step and lets all of its effects through. The labels are written
with the step's end, so that a replay knows those that came from calls which are not made again.
"""

from __future__ import annotations

from typing import Final

from rollcage.errors import ArgumentsInvalid, Blocked, CaptureFailed, Halt, SessionError
from rollcage.gate.labels import Labels
from rollcage.step.call import Admission, Progress
from rollcage.step.requests import Execute, Flow, Raised, Returned, Settle

__all__ = ["labelled"]

# What these say is not a tool's own words.
_OURS: Final = (ArgumentsInvalid, Blocked, CaptureFailed, Halt, SessionError)


def labelled(flow: Flow, progress: Progress, labels: Labels, *, streamed: bool = False) -> Flow:
    """Follow a call to its end and note what its result carries.

    Args:
        flow: of the call's step.
        progress: of the call; `found` are the labels that its arguments had when it was decided.
        labels: those of the run.
        streamed: its value is the list of a stream's chunks, which are handed on before its end.
    """
    recorded: tuple[str, ...] = ()
    answer: object = None
    carried: frozenset[str] | None = None
    ended: Returned | Raised | None = None
    while ended is None:
        try:
            effect = flow.send(answer)
        except StopIteration as stop:
            ended = stop.value
            continue
        if streamed and type(effect) is Execute:
            labels.begin(
                progress.number, progress.call.contract.name, _carried(progress, labels, recorded)
            )
        elif type(effect) is Settle:
            carried = _carried(progress, labels, recorded)
            if carried:
                effect.marks = {**(effect.marks or {}), "labels": sorted(carried)}
        answer = yield effect
        if type(answer) is Admission and answer.entry is not None:
            recorded = answer.entry.labels
    if carried is None:
        carried = _carried(progress, labels, recorded)
    _note(progress, labels, carried, ended, streamed=streamed)
    return ended


def _carried(progress: Progress, labels: Labels, recorded: tuple[str, ...]) -> frozenset[str]:
    """What a call's result carries: declared, recorded, of its arguments, of its own calls."""
    carried = labels.carried(progress.call.contract, progress.call.kind, progress.found, recorded)
    inside = labels.inside(progress.number)
    return carried | inside if inside else carried


def _note(
    progress: Progress,
    labels: Labels,
    carried: frozenset[str],
    ended: Returned | Raised,
    *,
    streamed: bool,
) -> None:
    if isinstance(ended, Returned):
        value = ended.value
    elif streamed or isinstance(ended.error, _OURS) or not isinstance(ended.error, Exception):
        return  # what a stream gave until then stays open: all later calls carry its labels
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
