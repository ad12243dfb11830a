"""What a run used up: calls, time and tokens, by tool, model and agent; and what replay spared."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rollcage_views.runs import Run, Step

__all__ = ["Price", "Usage", "UsageRow", "usage_of"]

Price = Callable[[Step], "float | None"]
"""What a call costs, in the caller's currency; None if it is not known."""


@dataclasses.dataclass(slots=True)
class UsageRow:
    """What the calls of one tool or model used up.

    Attributes:
        kind: `tool` or `model`; `run` for the sum.
        name: its name.
        calls: those that ran here.
        failed: those of them that failed.
        replayed: calls that were answered with a recorded outcome.
        duration: how long their bodies ran (µs); what is called in a body counts in both.
        input_tokens: that models were given.
        output_tokens: that models gave.
        spared_tokens: that replayed calls had taken.
        spared: how long replayed calls had taken (µs).
        cost: of the calls that ran; None where the price of one is not known.
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
            return  # blocked, or cut off: nothing is known of it
        first = self.calls == 0
        self.calls += 1
        self.failed += step.state == "failed"
        self.duration += step.duration or 0
        usage: dict[str, int] = step.outcome.get("usage") or {}
        self.input_tokens += sum(n for name, n in usage.items() if "input" in name)
        self.output_tokens += sum(n for name, n in usage.items() if "input" not in name)
        known = cost is not None and (first or self.cost is not None)
        self.cost = (self.cost or 0.0) + cost if known and cost is not None else None


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a run used up.

    Attributes:
        rows: by tool and model, what took the most tokens, then the most time, first.
        total: the sum.
    """

    rows: list[UsageRow]
    total: UsageRow

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        return {"rows": rows, "total": dataclasses.asdict(self.total)}


def usage_of(seen: Run, price: Price | None = None) -> Usage:
    """Return what a run used up.

    Args:
        seen: the run.
        price: what a call costs; without it, costs are unknown.
    """
    rows: dict[tuple[str, str], UsageRow] = {}
    total = UsageRow("run", "")
    answered = Counter(_answers(seen))
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


def _answers(seen: Run) -> Iterator[int]:
    """The numbers of the steps that answered calls, once for each attempt."""
    for attempt in seen.attempts:
        yield from {n for first, last in attempt.replayed for n in range(first, last + 1)}
