"""All small programs, killed at every moment, resumed, and undone to every step.

The bound is how many calls and blocks a program has: `ROLLCAGE_EXHAUSTIVE`, else a small one.
"""

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.laws.lab import Lab, folder
from tests.laws.law import accounts, chances, offline
from tests.laws.programs import Block, Branches, Inner, Node, Op, Program, Turn, size
from tests.laws.test_undo import kept, resolve_all, undo

pytestmark = pytest.mark.law

BOUND = int(os.environ.get("ROLLCAGE_EXHAUSTIVE", "2"))
PARTS = 4  # of all programs, so that workers share them
CALLS = (Op("write"), Op("plain"), Op("read"))


def rows(count: int, *, outside: bool = True) -> Iterator[Program]:
    """Yield every row of nodes of this size."""
    if count == 0:
        yield ()
    for first in range(1, count + 1):
        for node in nodes(first, outside=outside):
            for rest in rows(count - first, outside=outside):
                yield (node, *rest)


def nodes(count: int, *, outside: bool) -> Iterator[Node]:
    """Yield every node of this size; blocks stand outside of others, and have one call at least."""
    if count == 1:
        yield from CALLS
        return
    for inner in rows(count - 1, outside=False):
        yield Op("outer", inner=inner)
        if outside:
            yield Op("scope", inner=inner)
            yield Block(inner)
            yield Block(inner, raises=True)
            yield Inner("in", inner)
            if len(inner) > 1:
                yield Turn(inner)
    if outside and count > 3:
        for first in range(1, count - 2):
            for pair in itertools.product(
                rows(first, outside=False), rows(count - 2 - first, outside=False)
            ):
                yield Branches(pair, ("b0", "b1"))


def every() -> list[Program]:
    """Return all programs within the bound."""
    return [program for count in range(1, BOUND + 1) for program in rows(count)]


def every_kill(program: Program) -> None:
    """Kill a program at every moment, and resume it; undo it to every step, and resume it."""
    with folder() as root:
        whole = Lab(root / "whole")
        accounts(whole, whole.through(program))
        effects = whole.timeline.effects
        for moment in range(1, len(whole.timeline.moments) + 1):
            lab = whole.at(root / "cut", moment)
            if lab.finished():
                continue
            attempt = lab.through(program)
            accounts(lab, attempt)
            assert lab.timeline.effects == effects
            offline(lab, program, attempt, chances(moment))
            lab = whole.at(root / "cut", moment)
            if lab.timeline.newest() is None:
                continue
            lab.settle()
            resolve_all(lab, lab.newest())
            end, run = len(lab.timeline.moments), lab.newest()
            for to in range(
                max((event.get("step", 0) for event in lab.events(run)), default=0) + 1
            ):
                back = lab.at(root / "undone", end)
                left = kept(back, run, to)
                undo(back, run, chances(to), to=to or None)
                assert back.timeline.effects == left
                accounts(back, back.through(program))
                assert back.timeline.effects == effects


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, PARTS))]
)
def test_every_small_program_killed_and_undone_anywhere(part: int) -> None:
    for program in every()[part::PARTS]:
        every_kill(program)


def test_there_is_one_of_each() -> None:
    assert len(set(every())) == len(every())
    assert {size(program) for program in every()} == {*range(1, BOUND + 1)}
