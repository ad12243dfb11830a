"""What an undo would do, for a person to confirm: each call with the change that it takes back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
from rollcage import PlannedStep, UndoneStep, UndoPlan, UndoReport
from rollcage.trace import Run

from rollcage_views.changes import StateChange, changes_of
from rollcage_views.viewer import SEES_ALL, Viewer

__all__ = ["PlanRow", "plan_data", "plan_digest", "plan_rows", "report_data"]


class PlanRow(NamedTuple):
    """A step of a plan.

    Attributes:
        planned: what would be done.
        changes: what the step had changed, by resource: what its undo takes back.
    """

    planned: PlannedStep
    changes: list[StateChange]


def plan_rows(plan: UndoPlan, runs: Sequence[Run] = (), viewer: Viewer = SEES_ALL) -> list[PlanRow]:
    """The steps of a plan, in the order in which they would be undone.

    Args:
        plan: what `rollcage.plan_undo` gives.
        runs: the lineage of its run, where the changes of the steps are looked up.
        viewer: who looks.
    """
    by_id = {seen.id: seen for seen in runs}
    rows: list[PlanRow] = []
    for planned, shown in zip(plan.steps, viewer.plan(plan).steps, strict=True):
        seen = by_id.get(planned.run)
        step = None if seen is None else seen.step(planned.step)
        changes = changes_of(step, runs) if step is not None and viewer.values else []
        rows.append(PlanRow(shown, changes))
    return rows


def plan_digest(plan: UndoPlan) -> str:
    """The identity of a plan: who confirms one confirms that, and no other (64 hex digits)."""
    return sha256(orjson.dumps(plan_data(plan), option=orjson.OPT_SORT_KEYS)).hexdigest()


def plan_data(plan: UndoPlan) -> dict[str, Any]:
    """A plan, for machines."""
    return {
        "run": plan.run, "to": plan.to, "complete": plan.complete, "conflicts": plan.conflicts,
        "steps": _steps_data(plan.steps),
    }  # fmt: skip


def report_data(report: UndoReport) -> dict[str, Any]:
    """What an undo has done, for machines."""
    left = [{"run": run, "step": step, "name": name} for run, step, name in report.left]
    return {
        "run": report.run, "to": report.to, "complete": report.complete,
        "steps": _steps_data(report.steps), "left": left,
    }  # fmt: skip


def _steps_data(steps: Sequence[PlannedStep | UndoneStep]) -> list[dict[str, Any]]:
    return [
        dataclasses.asdict(step) | {"calls": [call.as_data() for call in step.calls]}
        for step in steps
    ]
