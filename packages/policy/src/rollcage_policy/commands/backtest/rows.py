"""What a change would have made of one recorded run, counted: by its record, or by a fork of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rollcage.errors import RollcageError
from rollcage.heart import RunInfo, Store, trace_of
from rollcage.trace import Run, Step, read_run
from rollcage_cli.forks import ForkRequest, ForkResult, Program, run_fork, would_have
from rollcage_views import align, first_difference, in_order
from rollcage_views.infos import is_pruned

from rollcage_policy import Judged, Rerun

__all__ = ["LIMITS", "BacktestRow", "forked_row", "judged_row", "over", "worth_testing"]

LIMITS: Final = ("blocked", "asked", "newly_allowed", "unknown", "writes", "failed")
"""What a threshold can be set for, by its name in a `BacktestRow`."""


@dataclasses.dataclass(slots=True)
class BacktestRow:
    """One run.

    Attributes:
        run: its id.
        name: of its job.
        calls: that would have been made, or asked for.
        blocked: that would be refused, and were not.
        asked: that would require approval, and did not.
        newly_allowed: that would be made, and were refused or required approval.
        unknown: that can't be judged: the trace does not hold what a rule uses.
        writes: that would have been made, and were not, by tool and arguments.
        ran: calls that were made for the test, for they are not recorded.
        tokens: that the models used; of a fork, what they used for the test.
        cost: what the policy's prices make of that; None without prices.
        failed: 1 where the program failed in a way that the recorded one did not, else 0.
        fork: the fork's id.
        status: how the run ended, or the fork.
        first: the first difference, in a few words.
        error: why the run can't be tested.
    """

    run: str
    name: str
    calls: int = 0
    blocked: int = 0
    asked: int = 0
    newly_allowed: int = 0
    unknown: int = 0
    writes: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    ran: int = 0
    tokens: int = 0
    cost: float | None = None
    failed: int = 0
    fork: str = ""
    status: str = ""
    first: str = ""
    error: str = ""

    def count(self, what: str) -> int:
        """What a threshold of this name holds against."""
        return len(self.writes) if what == "writes" else int(getattr(self, what))


def worth_testing(infos: Sequence[RunInfo]) -> list[RunInfo]:
    """The runs that are jobs, and not pruned: a fork is no evidence of anything."""
    return [info for info in infos if not info.fork and not is_pruned(info)]


def over(
    store: Store, infos: Iterable[RunInfo], row_of: Callable[[BacktestRow, Run], None]
) -> Iterable[BacktestRow]:
    """A row for each run; one that can't be read has its error."""
    for info in infos:
        row = BacktestRow(info.run, info.name, status=info.status or "unfinished")
        try:
            row_of(row, read_run(trace_of(store, info.run)))
        except RollcageError as error:
            row.error = f"{error.code}: {error}"
        yield row


def judged_row(row: BacktestRow, run: Run, rerun: Rerun, get_blob: Callable[[str], bytes]) -> None:
    """Count what a policy says of a recorded run; no tool runs, and no code of an agent."""
    for judged in rerun.over(run, get_blob):
        row.calls += 1
        if judged.now is None:
            row.unknown += 1
        elif judged.changes and not judged.apart:
            _count_change(row, judged)
    row.tokens = sum(step.tokens for step in run.steps)
    priced = rerun.policy.prices.calls or rerun.policy.prices.models
    if priced and rerun.spent is not None:
        row.cost = rerun.spent.cost


def _count_change(row: BacktestRow, judged: Judged) -> None:
    was, now = judged.was.decision, "" if judged.now is None else judged.now.decision
    change = f"{judged.view.name}: {was} → {now}"
    row.first = row.first or (f"step {judged.step}, {change}" if judged.step else change)
    if now == "deny":
        row.blocked += 1
    elif now == "ask" and was == "allow":
        row.asked += 1
    else:
        row.newly_allowed += 1


def forked_row(row: BacktestRow, run: Run, asked: ForkRequest, program: Program) -> None:
    """Count what a program makes of a recorded run today, as a fork of it."""
    made: ForkResult = run_fork(asked, program, quiet=True)
    fork = made.run
    steps = [step for step in fork.steps if step.kind != "branch"]
    fresh = [step for step in steps if step.state in ("ran", "failed") and step.simulated is None]
    row.fork, row.status = fork.id, fork.status
    row.failed = int(made.failed and _error_of(fork) != _error_of(run))
    row.calls, row.ran = len(steps), len(fresh)
    row.tokens = sum(step.tokens for step in fresh)
    row.blocked = _newly_blocked(run, steps)
    row.asked = int(fork.status == "would_ask")
    row.writes = [{"name": step.name, "args": step.args} for step in would_have(fork)]
    first = first_difference(align(in_order(run), in_order(fork)))
    if first is not None:
        step = first.b or first.a
        assert step is not None
        what = {"only_a": "not called", "only_b": "new"}.get(first.relation, "differs")
        row.first = f"step {step.step}, {step.name}: {what}"


def _error_of(run: Run) -> str | None:
    """The type of the error by which a run ended; None where it ended by none."""
    error = (run.finished or {}).get("error")
    return None if error is None else str(error["type"])


def _newly_blocked(run: Run, steps: Iterable[Step]) -> int:
    """Calls that a rule refuses, more than it did; not where the fork itself came to its end."""
    refused = [s for s in steps if s.state == "blocked" and (s.verdict or {}).get("rule")]
    before = sum(step.state == "blocked" for step in run.steps)
    return max(0, len(refused) - before)
