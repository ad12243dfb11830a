"""Laws 8 and 9, in a lab of any kind: runs that are cut off anywhere, and resumed or undone."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator

from hypothesis import HealthCheck, settings
from programs import Lab, Program, World, folder
from rollcage.session.finished import aundo_run

__all__ = [
    "LAW", "assert_through", "assert_undone", "cuts", "last_step", "moments", "resumed_at_cuts",
    "undone_at_cuts",
]  # fmt: skip

# The same cases in each run of CI, for a case is a hundred sessions; `nox -s laws` tries new ones.
LAW = settings(
    derandomize=os.environ.get("HYPOTHESIS_PROFILE") != "laws",
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
PAUSES = 0.3  # of the runs that were cut off
CUTS = 3  # of each program's traces, in one case


def moments(lab: Lab, runs: Iterable[str]) -> Iterator[tuple[str, int, World]]:
    """All moments at which the process of one of these runs may have died."""
    for run in runs:
        for line in range(1, lab.lines(run) + 1):
            for world in lab.worlds(run, line):
                yield run, line, world


def cuts(lab: Lab, chance: random.Random) -> Iterator[tuple[str, int, World]]:
    """Some of the moments at which the process of a lab may have died."""
    every = [*moments(lab, lab.runs())]
    yield from chance.sample(every, min(CUTS, len(every)))


def assert_through(lab: Lab, program: Program, effects: Counter[str]) -> None:
    """Resumed until it is through, a job has done what it does uncut: nothing lost or doubled."""
    lab.through(program)
    assert lab.world.effects == effects
    assert all(count == 1 for count in lab.world.standing.values())


def resumed_at_cuts(kind: type[Lab], program: Program, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible moments
    with folder() as root:
        lab = kind(root / "whole")
        lab.through(program)
        effects = lab.world.effects
        for run, line, world in cuts(lab, chance):
            cut = lab.back(run, line, root / "cut", world)
            if chance.random() < PAUSES:
                cut.pauses.give(run, at_rest=True)
            assert_through(cut, program, effects)
            last = cut.runs()[-1]
            behind = chance.randint(1, cut.lines(last))
            there = chance.choice(list(cut.worlds(last, behind)))
            assert_through(cut.back(last, behind, root / "again", there), program, effects)


def undone_at_cuts(kind: type[Lab], program: Program, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - reproducible moments
    with folder() as root:
        lab = kind(root / "whole")
        lab.through(program)
        effects = lab.world.effects
        for run, line, world in cuts(lab, chance):
            cut = lab.back(run, line, root / "cut", world)
            if chance.random() < 0.5:  # a run that builds on another one
                cut.through(program)
            cut.resolve_all()
            newest = cut.runs()[-1]
            if chance.random() < PAUSES:
                cut.pauses.give(newest)
            to = chance.randint(1, last_step(cut, newest))
            assert_undone(cut, program, effects, to)


def last_step(lab: Lab, run: str) -> int:
    steps: list[int] = [event.get("step", 1) for event in lab.events(run)]
    return max(steps)


def assert_undone(lab: Lab, program: Program, effects: Counter[str], to: int) -> None:
    """The newest run is undone to a step, and then resumed, as one that stopped there."""
    newest = lab.runs()[-1]
    kept = lab.kept(newest, to)
    tools = list(lab.tools.by_name.values())
    report = asyncio.run(aundo_run(lab.store, newest, to=to, tools=tools))
    assert report.complete, str(report)
    assert lab.world.effects == kept
    assert_through(lab, program, effects)
