"""All small programs, cut behind every line, resumed and undone: what random search needs luck for.

The bound is how many events a program has: `ROLLCAGE_EXHAUSTIVE`, else a small one. Two tools, two
branches, one nesting; the reference is the program itself, run without a cut.
"""

import asyncio
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterator

import pytest
from programs import Branches, Lab, Node, Op, Program, World, folder
from rollcage.session.finished import aundo_run

pytestmark = [pytest.mark.law, pytest.mark.slow]

BOUND = int(os.environ.get("ROLLCAGE_EXHAUSTIVE", "2"))
PARTS = 8  # of all programs, so that workers share them
TOOLS = (Op("write"), Op("read"))


def calls(count: int) -> Iterator[tuple[Node, ...]]:
    """Every row of so many calls."""
    yield from itertools.product(TOOLS, repeat=count)


def parts(count: int, *, branches: bool, nesting: bool) -> Iterator[Program]:
    """Every program of so many events, with at most one fork of branches and one nesting."""
    if count == 0:
        yield ()
        return
    for op in TOOLS:
        for rest in parts(count - 1, branches=branches, nesting=nesting):
            yield (op, *rest)
    for inside in range(1, count + 1):
        if nesting:
            for inner in calls(inside):
                for rest in parts(count - inside, branches=branches, nesting=False):
                    yield (Op("outer", inner=inner), *rest)
        if branches:
            for first in range(1, inside):
                for one, two in itertools.product(calls(first), calls(inside - first)):
                    for rest in parts(count - inside, branches=False, nesting=nesting):
                        yield (Branches((one, two)), *rest)


def programs() -> list[Program]:
    sizes = range(1, BOUND + 1)
    return [p for size in sizes for p in parts(size, branches=True, nesting=True)]


def moments(lab: Lab) -> Iterator[tuple[str, int, World]]:
    for run in lab.runs():
        for line in range(1, lab.lines(run) + 1):
            for world in lab.worlds(run, line):
                yield run, line, world


def assert_through(lab: Lab, program: Program, effects: Counter[str]) -> None:
    lab.through(program)
    assert lab.world.effects == effects
    assert all(count == 1 for count in lab.world.standing.values())


def undone(lab: Lab, to: int) -> None:
    """Take the newest run back to a step, and look at what is left."""
    newest = lab.runs()[-1]
    kept = lab.kept(newest, to)
    tools = list(lab.tools.by_name.values())
    report = asyncio.run(aundo_run(lab.root, newest, to=to, tools=tools))
    assert report.complete, str(report)
    assert lab.world.effects == kept


@pytest.mark.parametrize("part", range(PARTS))
def test_every_small_program_with_every_cut_and_every_undo(part: int) -> None:
    with folder() as root:
        for program in programs()[part::PARTS]:
            lab = Lab(root / "whole")
            lab.through(program)
            effects = lab.world.effects
            for run, line, world in moments(lab):
                deeds = list(world.deeds)
                cut = lab.back(run, line, root / "cut", world)
                steps = max((event.get("step", 0) for event in cut.events(run)), default=0)
                assert_through(cut, program, effects)
                for to in range(1, steps + 1):
                    there = world.at(deeds)
                    again = lab.back(run, line, root / "undone", there)
                    again.resolve_all()
                    undone(again, to)
                    assert_through(again, program, effects)
            shutil.rmtree(root / "whole")


def test_there_is_one_of_each() -> None:
    assert len(set(programs())) == len(programs())
    kinds = {type(node) for program in programs() for node in program}
    assert kinds == {Op, Branches}
    assert any(isinstance(n, Op) and n.tool == "outer" for p in programs() for n in p)
