"""Unclear failures: nobody knows how far a call got, so the same one is not made again unasked."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import UnknownOutcome

from tests.laws.lab import Attempt, Lab, folder
from tests.laws.law import LAW, accounts, chances, order
from tests.laws.programs import Op, Program, Turn, flat, seeds

pytestmark = pytest.mark.law

RISKY = Op("risky", 9, "break")
CALLS = st.lists(
    st.builds(Op, st.sampled_from(["write", "plain", "read"]), st.integers(0, 1)), max_size=3
).map(tuple)


@LAW
@given(CALLS, CALLS, seeds)
def test_other_calls_go_on_and_the_same_one_halts(
    before: Program, between: Program, seed: int
) -> None:
    chance = chances(seed)
    program = (*before, RISKY, *between)
    with folder() as root:
        lab = Lab(root / "whole")
        attempt = lab.attempt(program, **order(program, chance))
        if between:  # the agent acted upon the failure: its error is what it was
            assert attempt.error is None, attempt.error
            again = lab.attempt(program, replay="continue", **order(program, chance))
            assert again.given == attempt.given
            assert again.ran == []
        once_more = lab.attempt((*program, RISKY), replay="continue", **order(program, chance))
        assert isinstance(once_more.error, UnknownOutcome), once_more.error
        assert lab.timeline.performed["risky-9"] == 1
        assert lab.world.ran.count("risky-9") == 0


@LAW
@given(CALLS, seeds, st.booleans())
def test_who_says_what_became_of_it_lets_it_go_on(
    before: Program, seed: int, happened: bool
) -> None:
    chance = chances(seed)
    program = (*before, RISKY)
    with folder() as root:
        lab = Lab(root / "whole")
        lab.world.breaks_after = happened
        lab.attempt(program, **order(program, chance))
        attempt = lab.attempt(program, replay="continue", **order(program, chance))
        assert isinstance(attempt.error, UnknownOutcome), attempt.error
        lab.world.breaks = False
        lab.resolve(attempt.error.run, attempt.error.step)
        attempt = lab.attempt(program, replay="continue", **order(program, chance))
        assert attempt.error is None, attempt.error
        assert lab.timeline.effects["risky-9"] == 1
        accounts(lab, attempt)


@LAW
@given(CALLS, CALLS, seeds)
def test_killed_anywhere_it_is_made_once(before: Program, between: Program, seed: int) -> None:
    chance = chances(seed)
    program = (*before, RISKY, *between)
    with folder() as root:
        lab = Lab(root / "whole")
        lab.attempt(program, **order(program, chance))
        lab = lab.at(root / "cut", chance.randint(1, len(lab.timeline.moments)))
        resumed_with_truth(lab, program, chance)
        assert lab.timeline.performed["risky-9"] == 1
        assert all(count == 1 for count in lab.timeline.standing.values())


def resumed_with_truth(lab: Lab, program: Program, chance: random.Random) -> Attempt:
    """Resume until it is through; an operator says what became of each step that is asked about."""
    for _ in range(10):
        attempt = lab.attempt(program, replay="continue", **order(program, chance))
        if not isinstance(attempt.error, UnknownOutcome):
            assert attempt.error is None, attempt.error
            return attempt
        lab.resolve(attempt.error.run, attempt.error.step)
    raise AssertionError("it is asked about for ever")


FLAKY = st.builds(Op, st.just("flaky"), st.integers(0, 1))
REPEATED = st.lists(
    st.one_of(
        FLAKY,
        FLAKY,
        st.builds(Op, st.sampled_from(["plain", "read"]), st.integers(0, 1)),
        st.builds(Turn, st.lists(FLAKY, min_size=2, max_size=3).map(tuple)),
    ),
    min_size=1,
    max_size=5,
).map(tuple)


@LAW
@given(REPEATED, seeds)
def test_an_idempotent_call_that_is_repeated_until_it_works_is_made_once(
    program: Program, seed: int
) -> None:
    """Whatever its calls fail with, and wherever the process is killed."""
    chance = chances(seed)
    calls = [*flat(program)]
    with folder() as root:
        lab = Lab(root / "whole")
        for number in range(3):
            lab.world.flakes = chances(chance.random())
            lab.attempt(program, replay="continue", **order(program, chance))
            end = chance.randint(1, len(lab.timeline.moments))
            lab = lab.at(root / str(number), end)
        calm = (*program, *(op for op in calls if op.tool == "flaky"))
        attempt = resumed_with_truth(lab, calm, chance)
        for label in ("flaky-0", "flaky-1"):
            told = [said for _, said in attempt.given.values() if said.startswith(f"{label}.")]
            assert len(told) == len(set(told)) == lab.timeline.performed[label]
