"""Law 15: forks, dry and live, of forks too, killed and undone; the run that they are of stays."""

import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from rollcage import ForkEnded, UnknownOutcome
from rollcage_fork import Fork

from tests.laws.lab import ATTEMPTS, Attempt, Lab, folder
from tests.laws.law import accounts, chances, fewer, order, resumed
from tests.laws.programs import Program, programs, seeds
from tests.laws.test_undo import resolve_all, undo
from tests.laws.timeline import Deed

pytestmark = pytest.mark.law

BLOCKS = ("outer", "scope", "turn", "inner", "branches")


def recorded(root: Path, program: Program, chance: random.Random) -> Lab | None:
    """Record a program, cut it somewhere, and say what became of what was in flight."""
    whole = Lab(root / "whole")
    whole.through(program, **order(program, chance))
    lab = whole.at(root / "cut", chance.randint(1, len(whole.timeline.moments)))
    if lab.timeline.newest() is None:
        return None
    lab.settle()
    resolve_all(lab, lab.newest())
    return lab


def changed(lab: Lab, run: str, chance: random.Random) -> tuple[int, dict[str, object]]:
    """Choose a step that ended, and another result for it."""
    ended = {
        event["step"]: event["outcome"]["status"]
        for event in lab.events(run)
        if event["event"] in ("step", "outcome") and event.get("outcome")
    }
    steps = [
        event["step"]
        for event in lab.events(run)
        if event["event"] == "step"
        and event["effect"] in ("read", "write")
        and not event["branch"].startswith("-")
        and ended.get(event["step"]) == "ok"
    ]
    if not steps:
        return 0, {}
    return chance.choice(steps), {"outcome": {"status": "ok", "value": "another"}}


def deeds(lab: Lab) -> int:
    """Count what was done, and taken back."""
    return sum(isinstance(moment, Deed) for moment in lab.timeline.moments)


@fewer(2)
@given(programs(blocks=BLOCKS, raises=False), seeds)
def test_a_dry_fork_does_nothing(program: Program, seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None:
            return
        run = lab.newest()
        before, lines = deeds(lab), lab.timeline.lines(run)
        fork = run
        for _ in range(2):  # a fork of a fork is the same
            step, change = changed(lab, fork, chance) if chance.random() < 0.7 else (0, {})
            attempt = lab.attempt(
                program, stages=[Fork(fork, step, change)], **order(program, chance)
            )
            assert attempt.error is None or isinstance(attempt.error, ForkEnded), attempt.error
            assert deeds(lab) == before
            fork = attempt.run
        assert lab.timeline.lines(run) == lines
        assert lab.newest() == run


@fewer(2)
@given(programs(blocks=["scope", "turn", "inner", "branches"], raises=False), seeds)
def test_a_live_fork_of_a_fork_is_undone_alone(program: Program, seed: int) -> None:
    # Without writes that call tools: the plan of one stands for all that it did, borrowed or not.
    chance = chances(seed)
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None:
            return
        run = lab.newest()
        before, lines = lab.timeline.effects, lab.timeline.lines(run)
        first = forked(lab, run, program, chance)
        between = lab.timeline.effects
        start = len(lab.timeline.moments)
        second = forked(lab, first.run, program, chance)
        lab = lab.at(root / "killed", chance.randint(start, len(lab.timeline.moments)))
        copied = map(orjson.loads, lab.timeline.lines(second.run))
        if any(line["event"] == "forked" and line["run"] == second.run for line in copied):
            through(lab, program, chance, run=second.run, replay="continue")
            undo(lab, second.run, chance)
        assert lab.timeline.effects == between
        undo(lab, first.run, chance)
        assert lab.timeline.effects == before
        assert lab.timeline.lines(run) == lines


def forked(lab: Lab, run: str, program: Program, chance: random.Random) -> Attempt:
    """Run a live fork, perhaps with another result of a step, until it is through."""
    step, change = changed(lab, run, chance) if chance.random() < 0.7 else (0, {})
    attempt = lab.attempt(
        program,
        stages=[Fork(run, step, change, live=True)],
        on_divergence="warn",
        **order(program, chance),
    )
    if attempt.error is None:
        return attempt
    return through(lab, program, chance, run=attempt.run, replay="continue", error=attempt.error)


def through(
    lab: Lab,
    program: Program,
    chance: random.Random,
    error: BaseException | None = None,
    **how: Any,
) -> Attempt:
    """Resume a fork until it is through."""
    for _ in range(ATTEMPTS):
        if isinstance(error, UnknownOutcome):
            lab.resolve(error.run, error.step)
        elif error is not None:
            raise error
        attempt = lab.attempt(program, on_divergence="warn", **how, **order(program, chance))
        error = attempt.error
        if error is None:
            return attempt
    raise AssertionError("there is no end to it")


@fewer(4)
@given(programs(blocks=BLOCKS), seeds)
def test_forks_are_nothing_to_the_job(program: Program, seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None or lab.finished():
            return
        alone = Lab(root / "alone")
        alone.through(program)
        step, change = changed(lab, lab.newest(), chance)
        lab.attempt(program, stages=[Fork(lab.newest(), step, change)], **order(program, chance))
        attempt = resumed(lab, program, chance)
        accounts(lab, attempt)
        assert lab.timeline.effects == alone.timeline.effects
