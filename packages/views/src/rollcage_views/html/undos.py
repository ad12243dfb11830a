"""An undo, planned or done, as rows of a page: each with the restored state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from rollcage_views.html.rows import Cut, RowChange, cut, row_changes
from rollcage_views.runs import Run
from rollcage_views.states import States
from rollcage_views.text import arguments_text, visible
from rollcage_views.values import items_of, mapping_of
from rollcage_views.viewer import SEES_ALL, Viewer

__all__ = ["UndoRow", "undo_rows"]

_LONGEST: Final = 400  # characters of a call


@dataclasses.dataclass(frozen=True, slots=True)
class UndoRow:
    """A step of a plan, or of a report.

    Attributes:
        run: the run in which it was performed.
        step: its number there.
        name: the tool's name.
        args: its arguments; empty in a report.
        state: the planned, or actual, result of its undo.
        reason: why.
        calls: the compensating calls.
        differs: the resources in an unexpected state, with the fields if they are known.
        changes: the changes by its undo.
    """

    run: str
    step: int
    name: str
    args: Cut
    state: str
    reason: str
    calls: list[Cut]
    differs: list[str]
    changes: list[RowChange]


def undo_rows(
    data: Mapping[str, Any], seen: Run | None = None, viewer: Viewer = SEES_ALL
) -> list[UndoRow]:
    """Return the steps of a plan or a report, in the order of their undo.

    Args:
        data: the data of `UndoPlan.as_data` or `UndoReport.as_data`.
        seen: its run, for the changes of its steps.
        viewer: the viewer.
    """
    found = [mapping_of(each) or {} for each in items_of(data.get("steps")) or []]
    states = States(seen)
    return [
        _row(
            each, seen if seen is not None and each.get("run") == seen.id else None, states, viewer
        )
        for each in found
    ]


def _row(planned: Mapping[str, Any], seen: Run | None, states: States, viewer: Viewer) -> UndoRow:
    number = int(planned["step"])
    step = None if seen is None else seen.step(number)
    calls = [mapping_of(each) or {} for each in items_of(planned.get("calls")) or []]
    differs = mapping_of(planned.get("differs")) if viewer.values else None
    return UndoRow(
        run=str(planned["run"]),
        step=number,
        name=cut(visible(str(planned["name"])), 200).text,
        args=_arguments(planned, viewer),
        state=str(planned.get("state") or planned.get("status")),
        reason=cut(visible(viewer.text(str(planned.get("reason", ""))))).text,
        calls=[
            Cut(f"{visible(str(call.get('name')))}({shown.text})", shown.left)
            for call in calls
            for shown in [_arguments(call, viewer)]
        ],
        differs=[
            visible(f"{resource}: {', '.join(map(str, items_of(fields) or ['all of it']))}")
            for resource, fields in (differs or {}).items()
        ],
        changes=[] if step is None else row_changes(step, states, viewer, back=True),
    )


def _arguments(call: Mapping[str, Any], viewer: Viewer) -> Cut:
    return cut(arguments_text(viewer.arguments(mapping_of(call.get("args")) or {})), _LONGEST)
