"""Law 15: forks, dry and live, of forks too, killed and undone; the run that they are of stays."""

import dataclasses
import itertools
import random
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from rollcage import ForkEnded, SessionError, UnknownOutcome, tool
from rollcage_fork import Fork

from tests.laws.lab import ATTEMPTS, Attempt, Lab, folder
from tests.laws.law import accounts, chances, fewer, order, resumed
from tests.laws.programs import Program, programs, seeds, size
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


@tool(effect="read", name="read")
def other_read(arg: int, does: str) -> str:
    return f"{does} elsewhere {arg}"


@tool(effect="pure", name="pure")
def other_pure(arg: int, does: str) -> str:
    return f"{does} otherwise {arg}"


ANSWERED = ("write", "plain", "idem", "thread", "read", "pure")


def what_if(lab: Lab, run: str, chance: random.Random, **how: Any) -> Fork:
    """Choose a fork of a run: with each kind of change, in the log's form or as users say it."""
    step, change = changed(lab, run, chance)
    if step and chance.random() < 0.3:
        return Fork(run, step, change, **how)
    if step and chance.random() < 0.2:
        return Fork(run, step, error=ValueError("what if"), **how)
    if step and chance.random() < 0.2:
        return Fork(run, step, args={"arg": 7 + chance.randrange(3)}, **how)
    kinds: list[dict[str, Any]] = [{}, {"tools": [other_read, other_pure]}, {"model": "another"}]
    kind = chance.choice(kinds)
    if kind and step and chance.random() < 0.5:
        kind["at"] = step
    if chance.random() < 0.3:
        names = chance.sample(ANSWERED, 3)
        kind["answers"] = {name: f"answered-{name}" for name in names}
    return Fork(run, **kind, **how)


def deeds(lab: Lab) -> int:
    """Count what was done, and taken back."""
    return sum(isinstance(moment, Deed) for moment in lab.timeline.moments)


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
        first, _ = forked(lab, run, program, chance)
        between = lab.timeline.effects
        start = len(lab.timeline.moments)
        second, fork = forked(lab, first.run, program, chance)
        lab = lab.at(root / "killed", chance.randint(start, len(lab.timeline.moments)))
        if has_begun(lab, second.run):
            through(lab, program, chance, run=second.run, stages=[fork])
            undo(lab, second.run, chance)
        assert lab.timeline.effects == between
        undo(lab, first.run, chance)
        assert lab.timeline.effects == before
        assert lab.timeline.lines(run) == lines


def has_begun(lab: Lab, run: str) -> bool:
    """Tell whether a fork got so far that an attempt of its own had begun."""
    lines = map(orjson.loads, lab.timeline.lines(run))
    own = itertools.dropwhile(
        lambda line: (line["event"], line.get("run")) != ("forked", run), lines
    )
    return any(line["event"] == "attempt" for line in own)


def forked(lab: Lab, run: str, program: Program, chance: random.Random) -> tuple[Attempt, Fork]:
    """Run a live fork, perhaps with a change of any kind, until it is through."""
    fork = what_if(lab, run, chance, live=True)
    attempt = lab.attempt(program, stages=[fork], on_divergence="warn", **order(program, chance))
    if superseded(attempt):
        fork = Fork(run, live=True)
        attempt = lab.attempt(
            program, stages=[fork], on_divergence="warn", **order(program, chance)
        )
    if attempt.error is not None:
        how: dict[str, Any] = {"run": attempt.run, "stages": [fork], "error": attempt.error}
        attempt = through(lab, program, chance, **how)
    return attempt, fork


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
        attempt = lab.attempt(
            program, replay="continue", on_divergence="warn", **how, **order(program, chance)
        )
        error = attempt.error
        if error is None:
            return attempt
    raise AssertionError("there is no end to it")


@fewer(2)
@given(programs(blocks=BLOCKS, raises=False), seeds)
def test_a_dry_fork_does_nothing(program: Program, seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None:
            return
        base, before, runs = lab.newest(), deeds(lab), list[str]()
        kept: dict[str, list[bytes]] = {base: lab.timeline.lines(base)}
        fork = what_if(lab, base, chance)
        for _ in range(3):  # of a fork, and of a fork of a fork
            start = len(lab.timeline.moments)
            attempt = lab.attempt(program, stages=[fork], **order(program, chance))
            if superseded(attempt):
                return
            assert attempt.error is None or isinstance(attempt.error, ForkEnded), attempt.error
            assert deeds(lab) == before
            for run, lines in kept.items():
                assert lab.timeline.lines(run) == lines
            assert lab.newest() == base
            runs.append(attempt.run)
            kept[attempt.run] = lab.timeline.lines(attempt.run)
            killed = lab.at(
                root / f"killed {len(runs)}", chance.randint(start, len(lab.timeline.moments))
            )
            goes_on(killed, program, attempt.run, fork, before, chance)
            lab.begin(size(program))
            fork = what_if(lab, attempt.run, chance)


def superseded(attempt: Attempt) -> bool:
    """Tell whether a fork was refused, for its step was made again later."""
    return isinstance(attempt.error, SessionError) and "does not hold" in str(attempt.error)


def goes_on(
    lab: Lab, program: Program, run: str, fork: Fork, before: int, chance: random.Random
) -> None:
    """Resume a dry fork that was killed: it still does nothing, and needs what it began with."""
    if not has_begun(lab, run):
        return
    is_whole = not fork.answers and fork.changes not in ("model", "policy", "tools")
    for stages in ([fork], [], [fork]):
        attempt = lab.attempt(
            program, run=run, replay="continue", stages=stages, **order(program, chance)
        )
        assert deeds(lab) == before
        if not stages and not is_whole:
            assert "has the names of these only" in str(attempt.error)
            continue
        assert attempt.error is None or isinstance(attempt.error, ForkEnded), attempt.error
        assert attempt.run == run


@fewer(4)
@given(programs(blocks=BLOCKS, raises=False), seeds)
def test_the_same_fork_is_the_same_again(program: Program, seed: int) -> None:
    """Of the run itself and of an unchanged fork of it, call by call."""
    chance = chances(seed)
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None:
            return
        base = lab.newest()
        how: dict[str, Any] = {"at_once": False}
        same = lab.attempt(program, stages=[Fork(base)], **how)
        fork = what_if(lab, base, chance)
        given: list[Any] = []
        for run in (base, same.run):
            attempt = lab.attempt(program, stages=[dataclasses.replace(fork, run=run)], **how)
            ended = getattr(attempt.error, "status", type(attempt.error).__name__)
            said = {  # whoever asks a model again gets another answer
                path: re.sub(r"says \d+", "says", str(said)) for path, said in attempt.given.items()
            }
            if superseded(attempt):
                return
            given.append((said, ended))
        assert given[0] == given[1]


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
