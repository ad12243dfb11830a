"""What a change would have made of one recorded run, counted: by its record, or by a fork of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

from rollcage.errors import RollcageError
from rollcage_cli.forks import ForkRequest, ForkResult, Program, run_fork, would_have
from rollcage_views import RefusedCall, Run, align, first_difference, in_order

from rollcage_policy import Judged, Rerun
from rollcage_policy.commands.meant import Recorded

__all__ = ["LIMITS", "BacktestRow", "forked_row", "judged_row", "over"]

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


def over(
    meant: Iterable[Recorded], row_of: Callable[[BacktestRow, Recorded], None]
) -> Iterable[BacktestRow]:
    """Yield a row for each run; one that can't be read has its error."""
    for each in meant:
        assert each.info is not None
        row = BacktestRow(each.run, each.info.name, status=each.info.status or "unfinished")
        try:
            row_of(row, each)
        except RollcageError as error:
            row.error = f"{error.code}: {error}"
        yield row


def judged_row(row: BacktestRow, recorded: Recorded, rerun: Rerun) -> None:
    """Count what a policy says of a recorded run; no tool runs, and no code of an agent."""
    run = recorded.read()
    for judged in rerun.over(run, recorded.blob):
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


def forked_row(row: BacktestRow, asked: ForkRequest, program: Program) -> None:
    """Count what a program makes of a recorded run today, as a fork of it."""
    run = asked.origin
    made: ForkResult = run_fork(asked, program, quiet=True)
    fork = made.run
    steps = [step for step in fork.steps if step.kind != "branch"]
    fresh = [step for step in steps if step.state in ("ran", "failed") and step.simulated is None]
    row.fork, row.status = fork.id, fork.status
    row.failed = int(made.failed and _error_of(fork) != _error_of(run))
    row.calls, row.ran = len(steps) + len(fork.refused), len(fresh)
    row.tokens = sum(step.tokens for step in fresh)
    row.blocked = max(0, _blocked(fork.refused) - _blocked(run.refused))
    row.asked = int(fork.status == "would_ask")
    row.writes = [{"name": step.name, "args": step.args} for step in would_have(fork)]
    first = first_difference(align(in_order(run), in_order(fork)))
    if first is not None:
        step = first.a or first.b
        assert step is not None
        what = {"only_a": "not called", "only_b": "new"}.get(first.relation, "differs")
        row.first = f"step {step.step}, {step.name}: {what}"


def _error_of(run: Run) -> str | None:
    """The type of the error by which a run ended; None where it ended by none."""
    error = (run.finished or {}).get("error")
    return None if error is None else str(error["type"])


def _blocked(refused: Iterable[RefusedCall]) -> int:
    """How many calls a rule refused; not where a fork itself came to its end."""
    return sum(bool((call.verdict or {}).get("rule")) for call in refused)
