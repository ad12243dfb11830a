"""Limits hold for a run, over all of its attempts; and what the recording answers takes nothing.

A call counts by its fingerprint, from its beginning: repeated, it is the same call.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import Diverged, UnknownOutcome
from rollcage_policy import Policy

from tests.laws.lab import ATTEMPTS, Attempt, Lab, folder
from tests.laws.law import LAW, accounts, chances, fewer, order
from tests.laws.programs import LEAVES, Program, programs, seeds
from tests.laws.test_divergence import pairs
from tests.laws.test_forks import recorded, what_if
from tests.laws.test_undo import resolve_all, undo
from tests.laws.timeline import Deed

pytestmark = pytest.mark.law

ALL = ("outer", "scope", "turn", "branches", "inner", "block", "overlap")
TOOLS = ("write", "plain", "idem", "stream", "thread", "outer")


def policy(rules: list[dict[str, Any]]) -> Policy:
    """Return a policy with these limits, and nothing else."""
    named = [{"id": f"limit-{number}", **rule} for number, rule in enumerate(rules)]
    data = {"version": 1, "default": "allow", "limits": {"rules": named}}
    return Policy.parse(json.dumps(data), form="yaml")


def fingerprints(lab: Lab, run: str) -> dict[int, tuple[str, str]]:
    """Return the name and the fingerprint of each step."""
    return {
        event["step"]: (event["name"], event["fingerprint"])
        for event in lab.events(run)
        if event["event"] == "step"
    }


def begun(lab: Lab, run: str) -> Counter[str]:
    """Count the writes whose bodies had an effect in a run, by tool."""
    steps = fingerprints(lab, run)
    own = {deed.step for deed in lab.timeline.moments if isinstance(deed, Deed) and deed.key
           and deed.run == run}  # fmt: skip
    return Counter(name for name, _ in {steps[step] for step in own})


def check(rules: list[dict[str, Any]], done: Counter[str]) -> None:
    """Check that no limit was exceeded."""
    for rule in rules:
        counts = [done[name] for name in rule["tools"]]
        used = max(counts) if rule["per"] == "tool" else sum(counts)
        assert used <= rule["calls"], (rule, counts)


RULES = st.lists(
    st.builds(
        lambda tools, calls, per: {"tools": sorted(tools), "calls": calls, "per": per},
        st.sets(st.sampled_from(TOOLS), min_size=1),
        st.integers(0, 5),
        st.sampled_from(["run", "run", "tool"]),
    ),
    min_size=1,
    max_size=2,
)


def attempts(
    lab: Lab, program: Program, chance: random.Random, rules: list[dict[str, Any]], **how: Any
) -> Attempt:
    """Run or resume a program within limits until it is through, or diverges."""
    for _ in range(ATTEMPTS):
        attempt = lab.attempt(
            program, replay="continue", gate=[policy(rules)], **order(program, chance), **how
        )
        check(rules, begun(lab, lab.newest()))
        if not isinstance(attempt.error, UnknownOutcome):
            return attempt
        lab.resolve(attempt.error.run, attempt.error.step)
    raise AssertionError("it is asked about for ever")


@LAW
@given(programs(tools=[*LEAVES, "stream", "thread"], blocks=ALL), RULES, seeds)
def test_no_limit_is_exceeded_over_attempts_kills_and_undos(
    program: Program, rules: list[dict[str, Any]], seed: int
) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "first")
        for kill in range(3):
            attempt = attempts(lab, program, chance, rules)
            assert isinstance(attempt.error, Diverged | None), attempt.error
            if attempt.error is None:
                accounts(lab, attempt)
            if chance.random() < 0.7:
                moment = chance.randint(1, len(lab.timeline.moments))
                lab = lab.at(root / f"killed-{kill}", moment)
                if lab.timeline.newest() is None:
                    return
            if chance.random() < 0.3:
                lab.settle()
                resolve_all(lab, lab.newest())
                undo(lab, lab.newest(), chance)


@LAW
@given(programs(tools=[*LEAVES, "stream", "thread"], blocks=ALL, raises=False), seeds)
def test_a_job_that_needs_what_it_may_use_is_never_refused(program: Program, seed: int) -> None:
    """However often it is killed: a hit takes nothing, and a repeated call is the same call."""
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        told = whole.through(program, **order(program, chance))
        counts = Counter(name for name, _ in fingerprints(whole, told.run).values())
        rules = [{"tools": [name], "calls": counts[name], "per": "run"} for name in TOOLS]
        lab = Lab(root / "limited")
        for kill in range(3):
            attempt = attempts(lab, program, chance, rules)
            assert attempt.error is None, attempt.error
            assert not any("may make" in str(said) for said in attempt.given.values())
            accounts(lab, attempt)
            assert lab.timeline.effects == whole.timeline.effects
            lab = lab.at(root / f"killed-{kill}", chance.randint(1, len(lab.timeline.moments)))
            if lab.timeline.newest() is None:
                return


@fewer(2)
@given(pairs(), RULES, seeds)
def test_no_limit_is_exceeded_by_edited_programs(
    pair: tuple[Program, Program], rules: list[dict[str, Any]], seed: int
) -> None:
    program, other = pair
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "first")
        way = chance.choice(["halt", "undo", "warn"])
        for kill in range(3):
            told = chance.choice([program, other])
            attempt = attempts(lab, told, chance, rules, on_divergence=way)
            assert isinstance(attempt.error, Diverged | None), attempt.error
            if attempt.error is None and way == "undo":
                accounts(lab, attempt)
            if chance.random() < 0.7:
                moment = chance.randint(1, len(lab.timeline.moments))
                lab = lab.at(root / f"killed-{kill}", moment)
                if lab.timeline.newest() is None:
                    return


@fewer(2)
@given(programs(blocks=["scope", "turn", "inner", "branches"], raises=False), RULES, seeds)
def test_a_fork_counts_what_it_was_given(
    program: Program, rules: list[dict[str, Any]], seed: int
) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None:
            return
        fork = what_if(lab, lab.newest(), chance, live=True)
        how: dict[str, Any] = {"stages": [fork], "on_divergence": "warn", "gate": [policy(rules)]}
        own: set[str] = set()

        def watch(new: Deed) -> None:
            own.add(new.token)
            check(rules, Counter(token.partition("-")[0] for token in own | lab.told))

        for _ in range(ATTEMPTS):
            lab.told.clear()
            lab.world.watch = watch
            attempt = lab.attempt(program, **how, **order(program, chance))
            if not isinstance(attempt.error, UnknownOutcome):
                return
            lab.resolve(attempt.error.run, attempt.error.step)
            how |= {"run": attempt.run, "replay": "continue"}
        raise AssertionError("it is asked about for ever")
