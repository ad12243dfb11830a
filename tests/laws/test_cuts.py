"""Laws 8, 10 and 14: a run that dies at any moment is resumed to the same world, in any order."""

import random

import pytest
from hypothesis import given

from tests.laws.lab import Attempt, Lab, folder
from tests.laws.law import LAW, accounts, chances, comparable, fewer, offline, order, resumed
from tests.laws.programs import LEAVES, Program, flat, programs, seeds, sequential

pytestmark = pytest.mark.law

CUTS = 2  # of each program, in one case
LOSES = ("work", "work", "work", "fail", "lose before", "lose after")


def cut(program: Program, seed: int) -> None:
    """Check the law at some moments of a program."""
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        told = whole.through(program, **order(program, chance))
        accounts(whole, told)
        end = len(whole.timeline.moments)
        for moment in [chance.randint(1, end) for _ in range(CUTS)]:
            first = whole.at(root / "cut", moment, chances(chance.random()))
            ends_alike(whole, told, first, program, chance)
            behind = chance.randint(moment, len(first.timeline.moments))
            second = first.at(root / "again", behind, chances(chance.random()))
            ends_alike(whole, told, second, program, chance)


def ends_alike(
    whole: Lab, told: Attempt, lab: Lab, program: Program, chance: random.Random
) -> None:
    """Check that a program that was cut ends as the one that was not."""
    attempt = resumed(lab, program, chance)
    accounts(lab, attempt)
    assert lab.timeline.effects == whole.timeline.effects
    if sequential(program) and not any(op.does.startswith("lose") for op in flat(program)):
        assert comparable(program, attempt) == comparable(program, told)
    offline(lab, program, attempt, chance)


@LAW
@given(programs(blocks=["outer", "scope", "turn"]), seeds)
def test_calls_in_turns_and_in_bodies(program: Program, seed: int) -> None:
    cut(program, seed)


@fewer(2)
@given(programs(blocks=["outer", "scope", "turn", "branches", "inner"]), seeds)
def test_branches_and_sessions(program: Program, seed: int) -> None:
    cut(program, seed)


@fewer(2)
@given(programs(blocks=["outer", "block", "inner", "turn", "branches"]), seeds)
def test_transactions(program: Program, seed: int) -> None:
    cut(program, seed)


@fewer(2)
@given(
    programs(
        tools=[*LEAVES, "stream", "thread"],
        blocks=["overlap", "outer", "scope", "branches", "turn"],
    ),
    seeds,
)
def test_streams_threads_and_calls_that_overlap(program: Program, seed: int) -> None:
    cut(program, seed)


@fewer(3)
@given(programs(does=LOSES), seeds)
def test_calls_that_get_lost(program: Program, seed: int) -> None:
    cut(program, seed)
