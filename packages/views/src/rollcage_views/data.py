"""A run and its steps, for machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rollcage.store import StopOrder
from rollcage.trace import Run, Step

from rollcage_views.lineage import LineageStatus
from rollcage_views.orders import order_data

__all__ = ["run_data", "step_data"]


def step_data(step: Step) -> dict[str, Any]:
    """A step."""
    return dataclasses.asdict(step) | {"tokens": step.tokens}


def run_data(
    seen: Run,
    stands: LineageStatus,
    steps: Sequence[Step],
    *,
    torn: int = 0,
    pause: StopOrder | None = None,
) -> dict[str, Any]:
    """A run.

    Args:
        seen: as its trace tells.
        stands: the status of its lineage.
        steps: those that are listed.
        torn: how many bytes of a cut-off last line are left out.
        pause: the order by which its next call waits.
    """
    finished = seen.finished or {}
    return {
        "run": {k: v for k, v in seen.started.items() if k not in ("event", "hash")},
        "status": seen.status,
        "error": finished.get("error"),
        "waits_for": finished.get("reason"),
        "abandoned": seen.abandoned,
        "paused": order_data(pause),
        "torn_bytes": torn,
        "standing": stands.as_data(),
        "attempts": [dataclasses.asdict(each) for each in seen.attempts],
        "totals": dataclasses.asdict(seen.totals),
        "steps": [step_data(step) for step in steps],
        "refused": [dataclasses.asdict(row) for row in seen.refused],
    }
