"""What readers make of any log: the same as whoever resumes it, at each of its lines."""

import random
from typing import Any

import pytest
from hypothesis import given
from rollcage.trace.chain import checked
from rollcage.trace.recorded import LogTrace, verify_trace
from rollcage.trace.run import Run as Fold
from rollcage.trace.run import fold_lines
from rollcage_views import Run, read_run

from tests.laws.lab import Lab, folder
from tests.laws.law import chances, fewer, order, resumed
from tests.laws.programs import LEAVES, Program, programs, seeds
from tests.laws.test_undo import undo
from tests.laws.timeline import Line

pytestmark = pytest.mark.law

LOSES = ("work", "work", "fail", "lose before", "lose after")


def read(lines: list[bytes], *, schema: bool = False) -> tuple[Run, Fold]:
    """Read some lines as a reader does, and as an attempt does."""
    trace = LogTrace("", "the log", b"".join(lines))
    return read_run(trace, schema=schema), fold_lines(checked(lines, ""), "", {})


def agrees(run: Run, fold: Fold, lines: int) -> None:
    """Check that a reader says of each step what the fold says."""
    ends = {"ok": ("ran", "hit", "simulated"), "error": ("failed", "hit", "simulated")}
    seen = {step.step: step for step in run.steps}
    for n, step in fold.steps.items():
        if n not in seen:  # it waited, and began as another step; or another run's, not asked for
            assert step.gone == "again" or step.borrowed
            continue
        own = seen[n]
        assert own.gone == step.gone
        assert own.replacement == (step.replacement or None)
        assert own.parent is None or own.parent in fold.steps
        assert own.line <= (own.ended_line or lines) <= lines
        if step.gone != "undone" and step.status in ends:
            assert own.state in ends[step.status], (n, own.state)
        elif step.status == "unknown":
            assert own.state in ("unknown", "cut_off", "ran", "failed"), (n, own.state)
        if not step.acts or step.status == "waiting":
            assert not own.stays_done or step.borrowed or step.once, n
    assert seen.keys() <= fold.steps.keys()
    made = [n for attempt in run.attempts for n in attempt.steps]
    assert sorted(made) == sorted(n for n, step in fold.steps.items() if not step.borrowed)
    for number, attempt in enumerate(run.attempts, 1):
        of_it = {step.step for step in run.steps if step.attempt == number}
        assert of_it <= {*attempt.steps}
        spans = [n for first, last in attempt.replayed for n in range(first, last + 1)]
        assert all(n in fold.steps for n in spans)
        if attempt.status and attempt.calls is not None and not attempt.restarted:
            assert len(spans) >= attempt.hits - sum(s.state == "hit" for s in run.steps)


def every_cut(lab: Lab, chance: random.Random) -> None:
    """Read each run of a lab at each of its lines."""
    for run in {moment.run for moment in lab.timeline.moments if isinstance(moment, Line)}:
        lines = lab.timeline.lines(run)
        for count in range(1, len(lines) + 1):
            agrees(*read(lines[:count]), count)
        verified = verify_trace(LogTrace(run, "", b"".join(lines)))
        assert verified.lines == len(lines)
        read(lines, schema=True)
        if chance.random() < 0.2:
            assert read(lines)[0].totals.steps == len(read(lines)[0].steps)


def stands(lab: Lab) -> None:
    """Check that a reader lists what stands in the world, each effect once."""
    run = lab.newest()
    seen = read(lab.timeline.lines(run))[0]
    standing = [t for t, count in lab.timeline.standing.items() if count > 0]
    assert len(seen.effects) == len(standing)


def recorded(program: Program, seed: int, **more: Any) -> None:
    """Record a program, cut it, resume it, take a part of it back, and read all of that."""
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        whole.through(program, **order(program, chance))
        stands(whole)
        every_cut(whole, chance)
        moment = chance.randint(1, len(whole.timeline.moments))
        lab = whole.at(root / "cut", moment, chances(chance.random()))
        resumed(lab, program, chance)
        stands(lab)
        every_cut(lab, chance)
        run = lab.newest()
        steps = [step.step for step in read(lab.timeline.lines(run))[0].steps]
        if steps and more.get("undoes"):
            undo(lab, run, chance, to=chance.choice([None, *steps]))
            stands(lab)
            every_cut(lab, chance)


@fewer(2)
@given(programs(blocks=["outer", "scope", "turn", "branches", "inner"]), seeds)
def test_any_program_that_is_cut_and_resumed(program: Program, seed: int) -> None:
    recorded(program, seed)


@fewer(2)
@given(programs(does=LOSES, blocks=["outer", "scope", "turn", "branches"]), seeds)
def test_calls_that_get_lost(program: Program, seed: int) -> None:
    recorded(program, seed)


@fewer(2)
@given(
    programs(tools=[t for t in LEAVES if t != "thread"], blocks=["block", "turn", "inner"]), seeds
)
def test_transactions_and_undo(program: Program, seed: int) -> None:
    recorded(program, seed, undoes=True)
