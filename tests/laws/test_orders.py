"""Law 20: in a run that was stopped or paused nothing begins, wherever it was; lifted, it goes on.

The order is given from elsewhere, at any moment: while a body runs, while an intent is written,
while effects are taken back, in the store's own time. What may still come are the effects of bodies
whose intents were on record before it, and the rest of an undo.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import (
    Diverged,
    RunStopped,
    SessionError,
    UndoIncomplete,
    UnknownOutcome,
    lift_order,
    pause_run,
    stop_run,
)
from rollcage.errors import OrderRefused
from rollcage.stages import once, orders

from tests.laws.lab import ATTEMPTS, Attempt, Lab, folder
from tests.laws.law import LAW, accounts, chances, fewer, offline, order, resumed
from tests.laws.places import KIND
from tests.laws.programs import LEAVES, Program, programs, seeds
from tests.laws.test_divergence import pairs
from tests.laws.test_once import JOBS, ended, stands_once
from tests.laws.test_undo import check_record, kept, resolve_all, undo
from tests.laws.timeline import Deed, Line, Moment

pytestmark = pytest.mark.law

AROUND = ("outer", "scope")
ALL = ("outer", "scope", "turn", "branches", "inner", "block", "overlap")


@pytest.fixture(autouse=True, scope="module")
def impatient() -> Iterator[None]:
    """Have calls that wait look all the time, and not for long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "_LOOK", 0.0)
        patch.setattr(once, "PATIENCE", 0.2)
        yield


class Giving:
    """Gives orders to the newest run at some moments, and lifts pauses when calls wait.

    Attributes:
        late: the effects of calls that began while an order stood.
        began: the bodies that did, in a sync program.
    """

    def __init__(
        self,
        lab: Lab,
        chance: random.Random,
        moments: Sequence[int],
        kinds: Sequence[str] = ("stop", "pause", "pause"),
    ) -> None:
        self.late: list[Deed] = []
        self.began: list[str] = []
        self.stands = ""
        self._begun: set[int] = set()
        self._ran = 0
        self._patience = 0
        self._lab, self._chance, self._kinds = lab, chance, kinds
        self._moments = sorted(moments, reverse=True)
        self._acts = False  # what it does itself is none of its business
        self._add, self._bell, self._get = lab.timeline.add, lab.store.bell, lab.store.get

    @contextmanager
    def to(self) -> Iterator[Giving]:
        """Take part in what happens; at the end, check what happened, and lift a stop."""
        lab = self._lab
        lab.timeline.add = self.add  # type: ignore[method-assign]
        lab.store.bell = self.bell  # type: ignore[method-assign]
        lab.store.get = self.get  # type: ignore[method-assign]
        try:
            yield self
        finally:
            del lab.timeline.add, lab.store.bell, lab.store.get
        assert not self.late, self.late
        assert not self.began, self.began

    def add(self, moment: Moment) -> None:
        """Look at what happens; give an order if it is time for one."""
        self._add(moment)
        if self._acts:
            return
        if self.stands:
            if isinstance(moment, Deed) and moment.sign > 0 and moment.step not in self._begun:
                self.late.append(moment)
            ran = self._lab.world.ran
            if self._ran >= 0 and len(ran) > self._ran:
                # Bodies with calls in them are told of at their end.
                self.began += [each for each in ran[self._ran :] if each[:5] not in AROUND]
                self._ran = len(ran)
        elif self._moments and len(self._lab.timeline.moments) >= self._moments[-1]:
            self._moments.pop()
            with self._acting():
                self.give(moment)

    def give(self, moment: Moment) -> None:
        """Give an order, from another process."""
        lab, run = self._lab, self._lab.timeline.newest()
        if run is None:
            return
        kind = self._chance.choice(self._kinds)
        try:
            (stop_run if kind == "stop" else pause_run)(lab.store, run)
        except OrderRefused:  # it has just ended
            return
        self.stands = kind
        self._patience = self._chance.randint(0, 4)
        self._begun = {e["step"] for e in lab.events(run) if e["event"] == "step"}
        # The wait for a line has looked at the bell; and on a loop, other threads write the lines.
        # PostgreSQL looks as it puts a line on record, perhaps as soon as the line is sent.
        is_sent = isinstance(moment, Line) and os.environ.get(KIND) != "postgres"
        follows = (is_sent or isinstance(moment, Deed)) and lab.is_sync
        self._ran = len(lab.world.ran) if follows else -1

    def bell(self) -> int:
        self._look()
        return self._bell()

    def get(self, kind: str, key: str) -> bytes | None:
        if kind == "orders":
            self._look()
        return self._get(kind, key)

    def _look(self) -> None:
        if self.stands == "pause" and not self._acts:
            self._patience -= 1
            if self._patience < 0:
                self.lift()

    def lift(self) -> None:
        """Lift the order."""
        with self._acting():
            self.stands = ""
            run = self._lab.timeline.newest()
            if run is not None:
                lift_order(self._lab.store, run)

    @contextmanager
    def _acting(self) -> Iterator[None]:
        self._acts = True
        try:
            yield
        finally:
            self._acts = False


def moments_of(lab: Lab, more: int, chance: random.Random) -> list[int]:
    """Choose up to three moments from now on."""
    now = len(lab.timeline.moments)
    return [now + chance.randint(1, more) for _ in range(chance.randint(1, 3))]


def lift(lab: Lab, chance: random.Random, program: Program) -> None:
    """Lift the order of the newest run; while it is stopped, nothing resumes it."""
    run = lab.timeline.newest()
    if run is None:
        return
    standing = orders.order_of(lab.store, run)
    if standing is not None and standing.kind == "stop" and not lab.finished():
        before = lab.timeline.lines(run)
        attempt = lab.attempt(program, replay="continue", **order(program, chance))
        assert isinstance(attempt.error, RunStopped), attempt.error
        assert lab.timeline.lines(run) == before
        assert attempt.ran == []
    lift_order(lab.store, run)


def under_orders(
    lab: Lab, program: Program, chance: random.Random, moments: int, **how: Any
) -> Attempt:
    """Run or resume a program that gets orders; it may be stopped then."""
    giving = Giving(lab, chance, moments_of(lab, moments, chance))
    with giving.to():
        return lab.attempt(program, **order(program, chance), **how)


def killed(lab: Lab, root: Any, chance: random.Random, since: int) -> Lab:
    """Kill what happened at some moment since, perhaps."""
    if chance.random() < 0.5:
        return lab
    return lab.at(root, chance.randint(since, len(lab.timeline.moments)))


def lifted(program: Program, seed: int) -> None:
    """Check the law for a program that gets orders, is killed, and goes on."""
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        told = whole.through(program, **order(program, chance))
        accounts(whole, told)
        lab = Lab(root / "ordered")
        for attempt_number in range(chance.randint(1, 3)):
            since = len(lab.timeline.moments)
            attempt = under_orders(lab, program, chance, len(whole.timeline.moments))
            error = attempt.error
            if isinstance(error, UnknownOutcome):
                lab.resolve(error.run, error.step)
            else:
                assert isinstance(error, RunStopped | None), error
            lab = killed(lab, root / f"killed-{attempt_number}", chance, max(since, 1))
            lift(lab, chance, program)
            if lab.finished():
                break
        attempt = resumed(lab, program, chance)
        accounts(lab, attempt)
        assert lab.timeline.effects == whole.timeline.effects
        offline(lab, program, attempt, chance)


@LAW
@given(programs(blocks=["outer", "scope", "turn"]), seeds)
def test_calls_in_turns_and_in_bodies(program: Program, seed: int) -> None:
    lifted(program, seed)


@fewer(2)
@given(programs(tools=[*LEAVES, "stream", "thread"], blocks=ALL), seeds)
def test_branches_sessions_transactions_and_streams(program: Program, seed: int) -> None:
    lifted(program, seed)


@fewer(2)
@given(programs(blocks=ALL), seeds)
def test_an_undo_goes_on_under_orders(program: Program, seed: int) -> None:
    """Law 9 with orders while effects are taken back; killed, the undo is finished by the next."""
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        whole.through(program, **order(program, chance))
        lab = whole.at(root / "cut", chance.randint(1, len(whole.timeline.moments)))
        if lab.timeline.newest() is None:
            return
        run = lab.newest()
        lab.settle()
        resolve_all(lab, run)
        last = max((event.get("step", 0) for event in lab.events(run)), default=0)
        to = chance.randint(0, last)
        left = kept(lab, run, to)
        for number in range(chance.randint(1, 2)):
            since = len(lab.timeline.moments)
            giving = Giving(lab, chance, [since + chance.randint(0, 20)])
            if chance.random() < 0.5:
                giving.give(lab.timeline.moments[-1])
            with giving.to():
                undo(lab, run, chance, to=to or None)
            assert lab.timeline.effects == left
            lab = killed(lab, root / f"killed-{number}", chance, since)
        lift(lab, chance, program)
        attempt = resumed(lab, program, chance)
        accounts(lab, attempt)
        assert lab.timeline.effects == whole.timeline.effects


@fewer(2)
@given(pairs(), seeds)
def test_orders_while_what_is_left_is_taken_back(pair: tuple[Program, Program], seed: int) -> None:
    """Law 13 with orders: in the end, the world is the edited program's alone."""
    program, other = pair
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        whole.through(program, **order(program, chance))
        alone = Lab(root / "alone")
        alone.through(other)
        moments = len(whole.timeline.moments)
        lab = whole.at(root / "cut", chance.randint(1, moments))
        if lab.timeline.newest() is None or lab.finished():
            return
        attempt = None
        for number in range(ATTEMPTS):
            since = len(lab.timeline.moments)
            attempt = under_orders(lab, other, chance, moments, on_divergence="undo")
            error = attempt.error
            if error is None:
                break
            assert isinstance(error, RunStopped | UnknownOutcome | Diverged), error
            if isinstance(error, UnknownOutcome):
                lab.resolve(error.run, error.step)
            if number < 3:
                lab = killed(lab, root / f"killed-{number}", chance, since)
            lift(lab, chance, other)
            if lab.finished():
                return
        assert attempt is not None
        assert attempt.error is None, attempt.error
        accounts(lab, attempt)
        assert lab.timeline.effects == alone.timeline.effects


@fewer(2)
@given(
    programs(
        tools=["write", "plain", "idem", "read", "model", "stream", "thread", "undo", "undo"],
        blocks=ALL,
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
            since = len(lab.timeline.moments)
            attempt = under_orders(lab, program, chance, 40, replay="continue", on_divergence=way)
            assert lab.world.doubled == []
            check_record(lab)
            error = attempt.error
            if isinstance(error, UnknownOutcome):
                lab.resolve(error.run, error.step)
            else:
                assert isinstance(error, RunStopped | Diverged | UndoIncomplete | None), error
            lab = killed(lab, root / f"killed-{kill}", chance, max(since, 1))
            if lab.timeline.newest() is None:
                return
            lift_order(lab.store, lab.newest())


@fewer(2)
@given(
    st.lists(
        programs(tools=("once", "once", "write", "read"), does=("work",), blocks=ALL, length=3),
        min_size=2,
        max_size=3,
    ),
    seeds,
)
def test_no_key_stands_twice_under_orders(among: list[Program], seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root / "whole")
        for number, program in enumerate(among):
            lab.job = JOBS[number]
            lab.world.watch = functools.partial(stands_once, lab)
            way = chance.choice(["halt", "undo", "warn"])
            attempt = under_orders(lab, program, chance, 40, on_divergence=way)
            lab.world.watch = None
            assert lab.world.doubled == []
            error = attempt.error
            # A sync call waits for no other task of its loop.
            assert isinstance(
                error, RunStopped | UnknownOutcome | Diverged | UndoIncomplete | SessionError | None
            ), error
            lab = killed(lab, root / f"killed-{number}", chance, 1)
            if lab.timeline.newest() is None:
                return
            lift_order(lab.store, lab.newest())
            lab.job = JOBS[number]
            attempt = ended(lab, program, chance)
            if attempt.error is None:
                standing = lab.timeline.standing
                assert all(standing[token] > 0 for token in attempt.stays)
