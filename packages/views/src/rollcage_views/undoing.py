"""What an undo would do, and has done, for machines; and the identity of a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import orjson
from rollcage import PlannedStep, UndoneStep, UndoPlan, UndoReport

__all__ = ["plan_data", "plan_digest", "report_data"]


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
