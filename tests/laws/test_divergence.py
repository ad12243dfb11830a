"""Law 13: a program that was edited, on the log of what it was, killed at any moment."""

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rollcage import Diverged, UnknownOutcome

from tests.laws.lab import ATTEMPTS, Attempt, Lab, folder
from tests.laws.law import accounts, chances, fewer, offline, order
from tests.laws.programs import (
    LEAVES,
    Block,
    Branches,
    Inner,
    Node,
    Op,
    Program,
    Turn,
    flat,
    inside,
    parts,
    programs,
    seeds,
)
from tests.laws.timeline import Deed

pytestmark = pytest.mark.law

KILLS = 2
ONE, LOOK, OTHER = Op("write"), Op("read"), Op("write", 1)
BLOCKS = ("outer", "scope", "inner", "block", "message")  # each has one order in which it happens
AT_ONCE = ("outer", "scope", "inner", "block", "turn", "overlap", "branches", "branches")


EDITS = ("add", "remove", "reword", "wrap", "unwrap", "inside")


def edited(
    program: Program, chance: random.Random, ways: tuple[str, ...] = (*EDITS, "beside")
) -> Program:
    """Return the program with a call added, removed, reworded, or moved into a block or out.

    A call may also be added beside another one, at once with it.
    """
    nodes = [*program]
    at = chance.randrange(len(nodes)) if nodes else 0
    new = Op(chance.choice(["write", "plain", "read"]), chance.randint(5, 7))
    match chance.choice(ways) if nodes else "add":
        case "add":
            nodes.insert(at, new)
        case "beside":
            old = nodes[at]
            nodes[at : at + 1] = [Turn((new, old), "overlap")] if type(old) is Op else [new, old]
        case "remove":
            del nodes[at]
        case "reword":
            nodes[at] = new
        case "wrap":
            one = (nodes[at],)
            blocks: list[Node] = [Block(one), Op("scope", 0, inner=one), Inner("in", one)]
            nodes[at] = chance.choice(blocks)
        case "unwrap":
            nodes[at : at + 1] = [*inside(nodes[at])]
        case _:
            old = nodes[at]
            if isinstance(old, Turn) and old.how == "message":
                ways = ("add", "remove", "reword")  # it has no blocks
            nodes[at] = with_inside(old, edited((*inside(old),), chance, ways))
    return tuple(nodes)


def edited_anywhere(program: Program, chance: random.Random) -> Program:
    """Return the program with an edit as of `edited`, in a branch, or from one into another."""
    places = [n for n, node in enumerate(program) if isinstance(node, Branches)]
    if not places or chance.random() < 0.3:
        return edited(program, chance, EDITS)
    nodes = [*program]
    at = chance.choice(places)
    branches = nodes[at]
    assert isinstance(branches, Branches)
    lines = [*branches.lines]
    line, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    if lines[line] and line != other and chance.random() < 0.3:
        lines[other] = (lines[line][0], *lines[other])
        lines[line] = lines[line][1:]
    else:
        lines[line] = edited(lines[line], chance, EDITS)
    nodes[at] = dataclasses.replace(branches, lines=tuple(lines))
    return tuple(nodes)


def with_inside(node: Node, nodes: Program) -> Node:
    """Return a block with something else in it."""
    match node:
        case Op(tool, arg, does, _) if tool in ("outer", "scope"):
            return Op(tool, arg, does, nodes)
        case Block(_, raises):
            return Block(nodes, raises)
        case Turn(_, how) if nodes:
            return Turn(nodes, how)
        case Inner(name, _):
            return Inner(name, nodes)
        case _:
            return node


@st.composite
def pairs(
    draw: st.DrawFn,
    /,
    *,
    blocks: Sequence[str] = BLOCKS,
    edit: Callable[[Program, random.Random], Program] = edited,
    **how: Any,
) -> tuple[Program, Program]:
    """Draw a program, and the same with one to three edits."""
    program = draw(programs(blocks=blocks, **how))
    chance = chances(draw(seeds))
    other = program
    for _ in range(chance.randint(1, 3)):
        other = edit(other, chance)
    return program, other


class Ahead:
    """Watches each new effect: what lay ahead of it then?

    Attributes:
        found: of each new effect, the recorded ones that stood and were not asked for.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        standing = lab.timeline.standing
        self.recorded = {
            deed.token: deed for deed in lab.timeline.by_key.values() if standing[deed.token] > 0
        }
        lab.told.clear()
        self.found: list[tuple[Deed, list[Deed]]] = []

    def __call__(self, new: Deed) -> None:
        standing = self.lab.timeline.standing
        ahead = [
            deed
            for token, deed in self.recorded.items()
            if standing[token] > 0 and token not in self.lab.told
        ]
        expected = self.lab.expected.copy()
        for deed in [*ahead]:
            if expected[deed.label] > 0:  # a message that is under way asks for it later
                expected[deed.label] -= 1
                ahead.remove(deed)
        if new.sign > 0 and ahead:
            self.found.append((new, ahead))


def left(lab: Lab, run: str) -> set[int]:
    """Return the steps that lines of a run name as left behind."""
    spans: Iterator[list[int]] = (
        span for event in lab.events(run) for span in event.get("left", ())
    )
    return {step for first, last in spans for step in range(first, last + 1)}


def attempts(
    lab: Lab, program: Program, chance: random.Random, *, watches: bool = True, **how: Any
) -> Attempt:
    """Resume a program until it is through or diverges for good; a block is made anew.

    `watches`: whether each new effect is looked at, which has to come in one order then.
    """
    blocks = any(isinstance(node, Block) for node in parts(program))
    for _ in range(ATTEMPTS):
        watch = Ahead(lab)
        lab.world.watch = watch if watches else None
        attempt = lab.attempt(program, replay="auto", **order(program, chance), **how)
        lab.world.watch = None
        for new, ahead in watch.found:
            if how["on_divergence"] == "warn":
                named = left(lab, new.run)
                assert all(deed.step in named for deed in ahead), (new, ahead)
            else:
                raise AssertionError(f"{new} was done while {ahead} lay ahead")
        if isinstance(attempt.error, UnknownOutcome):
            lab.resolve(attempt.error.run, attempt.error.step)
        elif (
            not isinstance(attempt.error, Diverged) or how["on_divergence"] == "halt" or not blocks
        ):
            return attempt
    raise AssertionError("there is no end to it")


def recorded(root: Any, program: Program, chance: random.Random) -> Lab | None:
    """Record a program, and cut it somewhere."""
    whole = Lab(root / "whole")
    whole.through(program, **order(program, chance))
    end = len(whole.timeline.moments)
    lab = whole.at(root / "cut", chance.randint(1, end))
    return None if lab.timeline.newest() is None or lab.finished() else lab


def left_alone(pair: tuple[Program, Program], seed: int, *, watches: bool) -> None:
    """Check that a run which takes back what it leaves has the effects of the new program."""
    program, other = pair
    chance = chances(seed)
    how: dict[str, Any] = {"on_divergence": "undo", "watches": watches}
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None:
            return
        alone = Lab(root / "alone")
        alone.through(other)
        for kill in range(chance.randint(0, KILLS)):
            start = len(lab.timeline.moments)
            attempts(lab, other, chance, **how)
            behind = chance.randint(start, len(lab.timeline.moments))
            lab = lab.at(root / f"killed-{kill}", behind)
            if lab.finished():
                return
        attempt = attempts(lab, other, chance, **how)
        assert attempt.error is None, attempt.error
        accounts(lab, attempt)
        assert lab.timeline.effects == alone.timeline.effects


@fewer(2)
@given(pairs(), seeds)
def test_undo_leaves_the_edited_program_alone(pair: tuple[Program, Program], seed: int) -> None:
    left_alone(pair, seed, watches=True)


@fewer(2)
@given(
    pairs(blocks=AT_ONCE, edit=edited_anywhere, tools=[*LEAVES, "stream", "thread"], length=3),
    seeds,
)
def test_undo_leaves_the_edited_program_alone_where_calls_meet(
    pair: tuple[Program, Program], seed: int
) -> None:
    left_alone(pair, seed, watches=False)


@fewer(2)
@example(((Block((LOOK,)), OTHER), (Block((LOOK, ONE)), OTHER)), 2)
@given(pairs(), seeds)
def test_halt_runs_nothing_new_while_effects_lie_ahead(
    pair: tuple[Program, Program], seed: int
) -> None:
    program, other = pair
    chance = chances(seed)
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None:
            return
        attempt = attempts(lab, other, chance, on_divergence="halt")
        if isinstance(attempt.error, Diverged):
            before = len(lab.timeline.moments)
            again = attempts(lab, other, chance, on_divergence="halt")
            assert isinstance(again.error, Diverged)
            assert not any(isinstance(m, Deed) for m in lab.timeline.moments[before:])
        else:
            assert attempt.error is None, attempt.error


@fewer(2)
@example(((Block((ONE,)), ONE, ONE), (Block(()), Inner("in", (ONE,)))), 1)
@example(((Block((LOOK,)), OTHER), (Block((LOOK, ONE)), OTHER, Op("plain", 2))), 2)
@given(pairs(raises=False), seeds)
def test_warn_names_what_it_leaves_before_it_writes(
    pair: tuple[Program, Program], seed: int
) -> None:
    program, other = pair
    chance = chances(seed)
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None:
            return
        attempt = attempts(lab, other, chance, on_divergence="warn")
        assert attempt.error is None, attempt.error
        assert lab.world.doubled == []
        assert {*attempt.stays} <= {*(+lab.timeline.standing)}
        offline(lab, other, attempt, chance)


@fewer(4)
@example(((ONE, ONE, Inner("in", (ONE,))), (ONE, Inner("in", (ONE,)))), 0)
@given(pairs(), seeds)
def test_a_program_that_was_halted_for_an_edit_goes_on_without_it(
    pair: tuple[Program, Program], seed: int
) -> None:
    program, other = pair
    if any(op.does == "fail" for op in flat((*program, *other))):
        return
    chance = chances(seed)
    with folder() as root:
        lab = recorded(root, program, chance)
        if lab is None:
            return
        alone = Lab(root / "alone")
        alone.through(program)
        before = len(lab.timeline.moments)
        attempt = attempts(lab, other, chance, on_divergence="halt")
        wrote = any(isinstance(moment, Deed) for moment in lab.timeline.moments[before:])
        if not isinstance(attempt.error, Diverged) or wrote:
            return
        attempt = attempts(lab, program, chance, on_divergence="halt")
        assert attempt.error is None, attempt.error
        accounts(lab, attempt)
        assert lab.timeline.effects == alone.timeline.effects
