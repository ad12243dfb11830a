"""Effect keys: what happens once happens once, over runs, jobs and processes that die."""

import inspect
import random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import Diverged, SessionError, StepNotUnknown, UnknownOutcome, undo_run
from rollcage.contract.contract import Contract
from rollcage.errors import UndoIncomplete

from tests.laws.lab import ATTEMPTS, Attempt, Lab, folder
from tests.laws.law import LAW, chances, fewer, order
from tests.laws.programs import Op, Program, programs, seeds
from tests.laws.test_divergence import edited
from tests.laws.test_undo import undo
from tests.laws.timeline import Deed

pytestmark = [
    pytest.mark.law,
    pytest.mark.skipif(
        "once" not in inspect.signature(Contract).parameters, reason="no effect keys yet"
    ),
]

UNDOS = ("undoing", "undone", "rolled")
JOBS = ("ann", "ben", "cleo")
CALLS = st.lists(
    st.builds(Op, st.sampled_from(["once", "once", "write", "read"]), st.integers(0, 1)),
    min_size=1,
    max_size=3,
).map(tuple)
TOLD = st.lists(
    programs(tools=("once", "once", "write", "read"), does=("work",), length=3),
    min_size=2,
    max_size=4,
)


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


def stands_once(lab: Lab, deed: Deed) -> None:
    """Check that no effect with the key of a new effect stands."""
    if deed.sign > 0 and deed.label.startswith("once"):
        standing = lab.timeline.standing
        stand = {token.partition(".")[0] for token in standing if standing[token] > 0}
        assert deed.label not in stand


def ended(lab: Lab, program: Program, chance: random.Random, replay: str = "auto") -> Attempt:
    """Run or resume a program until it ends, or can't go on; end undos that were cut off."""
    how = chance.choice(["halt", "undo", "warn"])
    for _ in range(ATTEMPTS):
        lab.world.watch = lambda deed: stands_once(lab, deed)
        attempt = lab.attempt(program, on_divergence=how, replay=replay, **order(program, chance))
        lab.world.watch = None
        error = attempt.error
        if not isinstance(error, UnknownOutcome):
            # An `outer` tells of what another run did under a key, so its plan would take it back;
            # and a sync call waits for no other task of its loop.
            assert isinstance(error, (type(None), Diverged, UndoIncomplete, SessionError)), error
            return attempt
        try:
            lab.resolve(error.run, error.step)
        except StepNotUnknown:
            log = lab.events(error.run)
            undos = ["", *(each["event"] for each in log if each["event"] in UNDOS)]
            if undos[-1] != "undoing":
                assert any(each.get("kind") == "transaction" for each in log)
                return attempt  # it has not ended, and may take the effect back
            lab.begin(len(log))
            undo_run(lab.store, error.run, tools=lab.tools(sync=True), in_doubt="restore")
    raise AssertionError("it is asked about for ever")


@fewer(2)
@given(
    st.lists(programs(tools=("once", "once", "write", "read"), length=3), min_size=2, max_size=4),
    seeds,
)
def test_no_key_stands_twice_in_blocks_undos_and_other_programs(
    among: list[Program], seed: int
) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "whole")
        jobs: dict[str, Program] = {}
        for number, program in enumerate(among):
            lab.job = job = chance.choice(JOBS)
            jobs[job] = edited(jobs[job], chance) if job in jobs else program
            attempt = ended(lab, jobs[job], chance)
            if chance.random() < 0.3:
                lab.begin(len(lab.timeline.moments))
                undo_run(lab.store, attempt.run, tools=lab.tools(sync=True), in_doubt="restore")
            if chance.random() < 0.5:
                moment = chance.randint(1, len(lab.timeline.moments))
                lab = lab.at(root / f"killed-{number}", moment)
        assert lab.world.doubled == []


class Told(NamedTuple):
    """What a run was told of, until the run is undone or made again.

    Attributes:
        moments: how much had happened by then.
        undos: how many undos of the run had begun.
        tokens: the effects.
    """

    moments: int
    undos: int
    tokens: list[str]


def undos_of(lab: Lab, run: str) -> int:
    """Count the undos of a run that have begun."""
    return sum(each["event"] == "undoing" for each in lab.events(run))


def undo_some(lab: Lab, run: str, chance: random.Random) -> None:
    """Undo a run, or a part of it."""
    numbers = [each["step"] for each in lab.events(run) if each["event"] == "step"]
    to = chance.choice(numbers) if numbers and chance.random() < 0.5 else None
    lab.begin(len(lab.timeline.moments))
    undo_run(lab.store, run, tools=lab.tools(sync=True), in_doubt="restore", to=to)


def check_what_was_told(among: list[Program], seed: int) -> None:
    """Run programs as jobs, undone and killed, and check that what they were told stands."""
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "whole")
        jobs: dict[str, Program] = {}
        told: dict[str, Told] = {}
        for number, program in enumerate([*among, *among]):
            lab.job = job = chance.choice(JOBS)
            jobs[job] = edited(jobs[job], chance) if job in jobs else program
            attempt = ended(lab, jobs[job], chance, chance.choice(["auto", "continue"]))
            told.pop(attempt.run, None)
            if attempt.error is None:
                undos = undos_of(lab, attempt.run)
                told[attempt.run] = Told(len(lab.timeline.moments), undos, attempt.stays)
            if told and chance.random() < 0.4:
                undo_some(lab, chance.choice([*told]), chance)
            for run, (_, undos, tokens) in told.items():
                if undos_of(lab, run) == undos:
                    assert all(lab.timeline.standing[token] > 0 for token in tokens)
            if chance.random() < 0.5:
                moment = chance.randint(1, len(lab.timeline.moments))
                lab = lab.at(root / f"killed-{number}", moment)
                told = {run: each for run, each in told.items() if each.moments <= moment}
        assert lab.world.doubled == []


@fewer(2)
@given(TOLD, seeds)
def test_what_was_told_under_a_key_stands(among: list[Program], seed: int) -> None:
    """Whatever a transaction or an undo takes back, here or in another run, was told to nobody."""
    check_what_was_told(among, seed)
