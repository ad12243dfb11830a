"""The usage of a run: calls, time and tokens, by tool, model and agent; the savings by replay."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

from rollcage.trace import tokens_of

from rollcage_views.runs import Run, Step

__all__ = ["Price", "Usage", "UsageRow", "usage_of"]

Price = Callable[[Step], "float | None"]
"""The cost of a call, in the caller's currency; None if unknown."""


@dataclasses.dataclass(slots=True)
class UsageRow:
    """The usage by the calls of one tool or model.

    Attributes:
        kind: `tool` or `model`; `run` for the sum.
        name: its name.
        calls: calls that ran here.
        failed: how many of them failed.
        replayed: calls that were answered with a recorded outcome.
        duration: how long their bodies ran (µs); a call in a body counts in both.
        input_tokens: tokens that models received.
        output_tokens: tokens that models returned.
        spared_tokens: tokens of the replayed calls.
        spared: how long the replayed calls had taken (µs).
        cost: the cost of the calls that ran; None if a price is unknown.
    """

    kind: str
    name: str
    calls: int = 0
    failed: int = 0
    replayed: int = 0
    duration: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    spared_tokens: int = 0
    spared: int = 0
    cost: float | None = None

    def _spare(self, step: Step, times: int) -> None:
        self.replayed += times
        self.spared += times * (step.duration or 0)
        self.spared_tokens += times * step.tokens

    def _add(self, step: Step, cost: float | None) -> None:
        if step.outcome is None:
            return  # blocked, or cut off: its usage is unknown
        first = self.calls == 0
        self.calls += 1
        self.failed += step.state == "failed"
        self.duration += step.duration or 0
        read, written = tokens_of(step.outcome.get("usage"))
        self.input_tokens += read
        self.output_tokens += written
        known = cost is not None and (first or self.cost is not None)
        self.cost = (self.cost or 0.0) + cost if known and cost is not None else None


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a run.

    Attributes:
        rows: by tool and model; most tokens first, then most time.
        total: the sum.
    """

    rows: list[UsageRow]
    total: UsageRow

    def as_data(self) -> dict[str, Any]:
        """Return the usage for machines."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        return {"rows": rows, "total": dataclasses.asdict(self.total)}


def usage_of(seen: Run, price: Price | None = None) -> Usage:
    """Return the usage of a run.

    Args:
        seen: the run.
        price: the cost of a call; without it, costs are unknown.
    """
    rows: dict[tuple[str, str], UsageRow] = {}
    total = UsageRow("run", "")
    answered = Counter(n for attempt in seen.attempts for n in attempt.answers)
    for step in seen.steps:
        if step.kind == "branch":
            continue
        cost = None if price is None else price(step)
        row = rows.setdefault((step.kind, step.name), UsageRow(step.kind, step.name))
        times = max(answered[step.step], step.state == "hit")
        for each in (row, total):
            each._spare(step, times)  # noqa: SLF001 - its own module
            if step.state != "hit":
                each._add(step, cost)  # noqa: SLF001 - its own module
    order = sorted(
        rows.values(), key=lambda row: (-row.input_tokens - row.output_tokens, -row.duration)
    )
    return Usage(order, total)
