"""A run and its steps, for machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rollcage.stages.orders import Order

from rollcage_views.orders import order_data
from rollcage_views.runs import Run, Step
from rollcage_views.status import Standing

__all__ = ["run_data", "step_data"]


def step_data(step: Step) -> dict[str, Any]:
    """Return a step for machines."""
    return dataclasses.asdict(step) | {"tokens": step.tokens}


def run_data(
    seen: Run,
    stands: Standing,
    steps: Sequence[Step],
    *,
    pause: Order | None = None,
) -> dict[str, Any]:
    """Return a run for machines.

    Args:
        seen: the run.
        stands: its open problems.
        steps: the listed steps.
        pause: the order that makes its next call wait.
    """
    finished = seen.finished or {}
    return {
        "run": {k: v for k, v in seen.started.items() if k not in ("event", "hash")},
        "status": seen.status,
        "error": finished.get("error"),
        "waits_for": finished.get("reason"),
        "abandoned": seen.abandoned,
        "paused": order_data(pause),
        "standing": stands.as_data(),
        "attempts": [dataclasses.asdict(each) for each in seen.attempts],
        "totals": dataclasses.asdict(seen.totals),
        "steps": [step_data(step) for step in steps],
        "refused": [dataclasses.asdict(row) for row in seen.refused],
    }
