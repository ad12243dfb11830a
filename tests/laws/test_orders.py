"""Law 20: in a run that was stopped nothing begins any more, wherever it was; lifted, it goes on.

The order is given from elsewhere, at any moment: while a body runs, while an intent is written, in
the store's own time. What may still come are the effects of bodies whose intents were on record
before it.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from rollcage import RunStopped, UnknownOutcome, lift_order, stop_run
from rollcage.errors import OrderRefused

from tests.laws.lab import Attempt, Lab, folder
from tests.laws.law import LAW, accounts, chances, fewer, offline, order, resumed
from tests.laws.places import place_of
from tests.laws.programs import LEAVES, Program, programs, seeds
from tests.laws.timeline import Deed, Moment

pytestmark = pytest.mark.law


class Stopping:
    """Gives the order at some moment of a run, and remembers which steps had begun by then."""

    def __init__(self, lab: Lab, moment: int) -> None:
        self.begun: set[int] | None = None  # the steps on record when the order was given
        self.late: list[Deed] = []
        self._lab, self._moment = lab, moment
        self._add = lab.timeline.add
        lab.timeline.add = self.add  # type: ignore[method-assign]

    def add(self, moment: Moment) -> None:
        """Take part in what happens."""
        self._add(moment)
        if isinstance(moment, Deed) and moment.sign > 0 and self.begun is not None:
            if moment.step not in self.begun:
                self.late.append(moment)
        elif self.begun is None and len(self._lab.timeline.moments) >= self._moment:
            self.give()

    def give(self) -> None:
        """Give the order, from another process."""
        run = self._lab.timeline.newest()
        if run is None:
            return
        try:
            stop_run(place_of(self._lab.root), run)
        except OrderRefused:  # it has just ended
            return
        self.begun = {e["step"] for e in self._lab.events(run) if e["event"] == "step"}

    def over(self) -> None:
        """Let the run go on."""
        self._lab.timeline.add = self._add  # type: ignore[method-assign]
        if self.begun is not None:
            lift_order(place_of(self._lab.root), self._lab.newest())


def stopped(program: Program, chance: random.Random, lab: Lab, moments: int) -> Attempt:
    """Run a program that is stopped at some moment, and let it go on."""
    stopping = Stopping(lab, chance.randint(1, moments))
    attempt = lab.attempt(program, **order(program, chance))
    stopping.over()
    assert not stopping.late, stopping.late
    if stopping.begun is None or attempt.error is None:
        return attempt
    assert isinstance(attempt.error, RunStopped | UnknownOutcome), attempt.error
    return resumed(lab, program, chance)


def lifted(program: Program, seed: int) -> None:
    """Check the law for a program that is stopped once."""
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        told = whole.through(program, **order(program, chance))
        accounts(whole, told)
        lab = Lab(root / "stopped")
        attempt = stopped(program, chance, lab, len(whole.timeline.moments))
        accounts(lab, attempt)
        assert lab.timeline.effects == whole.timeline.effects
        offline(lab, program, attempt, chance)


@LAW
@given(programs(blocks=["outer", "scope", "turn"]), seeds)
def test_calls_in_turns_and_in_bodies(program: Program, seed: int) -> None:
    lifted(program, seed)


@fewer(2)
@given(
    programs(
        tools=[*LEAVES, "stream", "thread"],
        blocks=["outer", "scope", "turn", "branches", "inner", "block", "overlap"],
    ),
    seeds,
)
def test_branches_sessions_transactions_and_streams(program: Program, seed: int) -> None:
    lifted(program, seed)
