"""The effect of a change on one recorded run, as counts: from its record, or from a fork."""

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
"""The counts that can have a threshold, by their names in `BacktestRow`."""


@dataclasses.dataclass(slots=True)
class BacktestRow:
    """One run.

    Attributes:
        run: its id.
        name: the name of its job.
        calls: calls that would be made or requested.
        blocked: calls that would be refused, and were not.
        asked: calls that would require approval, and did not.
        newly_allowed: calls that would be made, and were refused or required approval.
        unknown: calls that can't be judged: the trace lacks a value that a rule uses.
        writes: writes that would be made, and were not, by tool and arguments.
        ran: calls that ran for the test, because they are not recorded.
        tokens: the models' tokens; for a fork, the tokens of the test itself.
        cost: the cost by the policy's prices; None without prices.
        failed: 1 if the program failed where the recorded program did not, else 0.
        fork: the fork's id.
        status: the status of the run, or of the fork.
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
        """Return the count that a threshold of this name limits."""
        return len(self.writes) if what == "writes" else int(getattr(self, what))


def over(
    meant: Iterable[Recorded], row_of: Callable[[BacktestRow, Recorded], None]
) -> Iterable[BacktestRow]:
    """Yield a row for each run; the row of a run that can't be read has its error."""
    for each in meant:
        assert each.info is not None
        row = BacktestRow(each.run, each.info.name, status=each.info.status or "unfinished")
        try:
            row_of(row, each)
        except RollcageError as error:
            row.error = f"{error.code}: {error}"
        yield row


def judged_row(row: BacktestRow, recorded: Recorded, rerun: Rerun) -> None:
    """Count a policy's verdicts on a recorded run; no tool and no agent's code runs."""
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
    """Count the calls that a program makes in a fork of a recorded run."""
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
    """Return the type of the error that ended a run; None if no error did."""
    error = (run.finished or {}).get("error")
    return None if error is None else str(error["type"])


def _blocked(refused: Iterable[RefusedCall]) -> int:
    """Return how many calls a rule refused, without the call that ended a fork."""
    return sum(bool((call.verdict or {}).get("rule")) for call in refused)
