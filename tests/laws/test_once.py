"""Effect keys: what happens once happens once, over runs, jobs and processes that die."""

import inspect
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import UnknownOutcome
from rollcage.contract.contract import Contract

from tests.laws.lab import Attempt, Lab, folder
from tests.laws.law import LAW, chances, order
from tests.laws.programs import Op, Program, seeds
from tests.laws.test_undo import undo

pytestmark = [
    pytest.mark.law,
    pytest.mark.skipif(
        "once" not in inspect.signature(Contract).parameters, reason="no effect keys yet"
    ),
]

JOBS = ("ann", "ben", "cleo")
CALLS = st.lists(
    st.builds(Op, st.sampled_from(["once", "once", "write", "read"]), st.integers(0, 1)),
    min_size=1,
    max_size=3,
).map(tuple)


def told(lab: Lab, job: str, program: Program, chance: random.Random, **how: Any) -> Attempt:
    """Run or resume a job until it is through; say what became of steps, in whichever run."""
    lab.job = job
    for _ in range(20):
        attempt = lab.attempt(program, replay="continue", **how, **order(program, chance))
        if not isinstance(attempt.error, UnknownOutcome):
            assert attempt.error is None, attempt.error
            return attempt
        lab.resolve(attempt.error.run, attempt.error.step)
    raise AssertionError("it is asked about for ever")


@LAW
@given(st.lists(CALLS, min_size=2, max_size=3), seeds)
def test_a_key_is_claimed_once_in_all_runs_killed_anywhere(
    programs: list[Program], seed: int
) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "whole")
        for job, program in zip(JOBS, programs, strict=False):
            told(lab, job, program, chance)
        for kill in range(2):
            lab = lab.at(root / f"killed-{kill}", chance.randint(1, len(lab.timeline.moments)))
            gave: dict[str, set[str]] = {}
            for job, program in chance.sample([*zip(JOBS, programs, strict=False)], len(programs)):
                attempt = told(lab, job, program, chance)
                for (place,), (_, value) in attempt.given.items():
                    op = program[place]
                    if isinstance(op, Op) and op.tool == "once":
                        gave.setdefault(f"once-{op.arg}", set()).add(str(value))
            for label, values in gave.items():
                assert lab.timeline.effects[label] == 1
                assert len(values) == 1
        assert lab.world.doubled == []


@LAW
@given(CALLS, seeds)
def test_an_undo_frees_its_keys(program: Program, seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "whole")
        first = told(lab, "ann", program, chance)
        effects = lab.timeline.effects
        undo(lab, first.run, chance)
        assert not lab.timeline.effects
        told(lab, "ben", program, chance)
        assert lab.timeline.effects == effects
