"""Law 9: a run that was taken back to any step, killed in that too, is one that stopped there."""

import asyncio
import random
from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from rollcage import Diverged, UndoIncomplete, UnknownOutcome, aundo_run, undo_run
from rollcage.trace.run import fold_lines

from tests.laws.lab import Lab, folder
from tests.laws.law import accounts, chances, fewer, order, resumed
from tests.laws.programs import Op, Program, programs, seeds

pytestmark = pytest.mark.law


def steps_above(lab: Lab, run: str) -> dict[int, list[int]]:
    """Return the steps in whose bodies or blocks each step was made, innermost first."""
    owner: dict[str, int] = {}
    branch: dict[int, str] = {}
    for event in lab.events(run):
        if event["event"] == "step":
            owner["#" + event["fingerprint"]] = event["step"]
            branch[event["step"]] = event["branch"]
    above: dict[int, list[int]] = {}
    for step in branch:
        around, above[step] = step, []
        while branch[around] in owner:
            around = owner[branch[around]]
            above[step].append(around)
    return above


def kept(lab: Lab, run: str, to: int) -> Counter[str]:
    """Count what an undo leaves: steps up to that one, and what bodies of them did that ended.

    Up to step 0 is nothing. What a write's body did goes with the write, whose plan may cover it.
    An effect of a call that was begun again is an effect of its last step.
    """
    ended: set[int] = set()
    last: dict[int, int] = {}
    effects: dict[int, str] = {}
    for event in lab.events(run):
        if event["event"] == "step":
            effects[event["step"]] = event["effect"]
            if "again" in event:
                last[event["again"]] = event["step"]
        if event["event"] in ("step", "outcome") and "outcome" in event:
            ok = (event["outcome"] or {}).get("status") == "ok"
            (ended.add if ok else ended.discard)(event["step"])
        if event["event"] == "undone":
            ended.difference_update(event.get("reopens", []))
    above = steps_above(lab, run)

    def stays(step: int) -> bool:
        while step in last:
            step = last[step]
        calls = [each for each in above[step] if effects[each] != "branch"]
        if not all(stays(each) for each in calls if effects[each] == "write"):
            return False  # what a write did goes with it, if it was begun again later
        return step <= to or any(each <= to and each in ended for each in calls)

    standing = lab.timeline.standing
    deeds = [each for each in lab.timeline.by_key.values() if standing[each.token] > 0]
    return Counter(each.label for each in deeds if stays(each.step))


def resolve_all(lab: Lab, run: str) -> None:
    """Say what became of each step that nobody has heard of since."""
    unheard: set[int] = set()
    for event in lab.events(run):
        if event["event"] == "step" and event["effect"] == "write":
            unheard.discard(event.get("again", 0))
            if "outcome" not in event and "waits" not in event:
                unheard.add(event["step"])
        elif event["event"] == "outcome":
            unheard.discard(event["step"])
        elif event["event"] == "undone":
            unheard.difference_update(event["steps"])
    for step in sorted(unheard):
        lab.resolve(run, step)


def undo(lab: Lab, run: str, chance: random.Random, **how: Any) -> None:
    """Undo a run in some colour, and check that nothing is left to be done by hand."""
    lab.begin(chance.random())
    if chance.random() < 0.5:
        report = undo_run(lab.store, run, tools=lab.tools(sync=True), **how)
    else:
        tools = lab.tools(sync=False)
        report = asyncio.run(aundo_run(lab.store, run, tools=tools, **how))
    assert report.complete, str(report)


def undone(program: Program, seed: int, *, kills: int) -> None:
    """Check the law at some step of a program that was cut somewhere."""
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        whole.through(program, **order(program, chance))
        moment = chance.randint(1, len(whole.timeline.moments))
        lab = whole.at(root / "cut", moment)
        if lab.timeline.newest() is None:
            return
        if chance.random() < 0.5 and not lab.finished():
            resumed(lab, program, chance)
        run = lab.newest()
        lab.settle()
        resolve_all(lab, run)
        last = max((event.get("step", 0) for event in lab.events(run)), default=0)
        to = chance.randint(0, last)
        left = kept(lab, run, to)
        before = len(lab.timeline.moments)
        undo(lab, run, chance, to=to or None)
        assert lab.timeline.effects == left
        for _ in range(kills):
            behind = chance.randint(before, len(lab.timeline.moments))
            lab = lab.at(root / f"killed-{behind}", behind)
            if chance.random() < 0.5:
                undo(lab, run, chance, to=to or None)
                assert lab.timeline.effects == left
        attempt = resumed(lab, program, chance)
        accounts(lab, attempt)
        assert lab.timeline.effects == whole.timeline.effects


def check_record(lab: Lab) -> None:
    """Check that the effects stand which steps on record hold, and no others."""
    for name in {deed.run for deed in lab.timeline.by_key.values()}:
        run = fold_lines(map(orjson.loads, lab.timeline.lines(name)), name, {})
        open_steps = () if run.undoing is None else run.undoing["steps"]
        for deed in lab.timeline.by_key.values():
            step = run.steps[deed.step] if deed.run == name else None
            while step is not None and step.replacement:
                step = run.steps[step.replacement]
            if step is None or step.n in open_steps:
                continue
            is_made_anew = run.idempotency_key(step) != deed.key  # behind an undo of this effect
            holds = step.gone != "undone" and not step.rolled and step.status != "waiting"
            assert (holds and not is_made_anew) == (lab.timeline.standing[deed.token] > 0), deed


@fewer(2)
@given(
    programs(
        tools=["write", "plain", "idem", "read", "model", "stream", "thread", "undo", "undo"],
        blocks=["outer", "scope", "turn", "overlap", "branches", "branches", "inner", "block"],
    ),
    seeds,
)
def test_the_record_tells_what_stands_where_tasks_ask_for_undos(
    program: Program, seed: int
) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "first")
        for kill in range(chance.randint(1, 3)):
            way = chance.choice(["halt", "undo", "warn"])
            how = order(program, chance)
            attempt = lab.attempt(program, replay="continue", on_divergence=way, **how)
            assert lab.world.doubled == []
            check_record(lab)
            if isinstance(attempt.error, UnknownOutcome):
                lab.resolve(attempt.error.run, attempt.error.step)
            else:
                assert isinstance(attempt.error, Diverged | UndoIncomplete | None), attempt.error
            if chance.random() < 0.5:
                moment = chance.randint(1, len(lab.timeline.moments))
                lab = lab.at(root / f"killed-{kill}", moment)
                if lab.timeline.newest() is None:
                    return


@fewer(2)
@example((Op("outer", inner=(Op("outer", inner=(Op("write"),)),)),), 106)
@given(programs(blocks=["outer", "scope", "turn", "inner", "branches"]), seeds)
def test_a_run_that_was_undone_to_a_step(program: Program, seed: int) -> None:
    undone(program, seed, kills=0)


@fewer(2)
@given(programs(), seeds)
def test_a_run_that_was_killed_in_its_undo(program: Program, seed: int) -> None:
    undone(program, seed, kills=2)


@fewer(4)
@given(programs(blocks=["outer", "turn", "branches", "block"], length=3), seeds)
def test_a_branch_that_was_undone(program: Program, seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "whole")
        lab.through(program, **order(program, chance))
        effects, run = lab.timeline.effects, lab.newest()
        effect = {e["step"]: e["effect"] for e in lab.events(run) if e["event"] == "step"}
        rolled = {n for e in lab.events(run) if e["event"] == "rolled" for n in e["steps"]}
        opened = {
            event["name"]: event["step"]
            for event in lab.events(run)
            if event["event"] == "step"
            and event["effect"] == "branch"
            and event["step"] not in rolled
        }
        if not opened:
            return
        name = chance.choice(sorted(opened))
        above = steps_above(lab, run)
        named = {
            event["step"]
            for event in lab.events(run)
            if event["event"] == "step" and (event["effect"], event["name"]) == ("branch", name)
        }
        around = {n for step in named for n in above[step] if effect[n] == "write"}
        undo(lab, run, chance, branch=name)
        for deed in lab.timeline.by_key.values():
            if named & {*above[deed.step]}:
                assert lab.timeline.standing[deed.token] == 0
            elif deed.step < min(named | around):  # a write goes with a block in its body
                assert lab.timeline.standing[deed.token] == 1 or "block" in repr(program).lower()
        attempt = resumed(lab, program, chance)
        accounts(lab, attempt)
        assert lab.timeline.effects == effects
