"""Tasks are cancelled at any moment, also while effects are taken back: none is lost or doubled.

A cancelled body leaves its step in doubt, and a cancelled undo is finished by the next session.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import example, given
from rollcage import Diverged, StepNotUnknown, UndoIncomplete, UnknownOutcome, lift_order
from rollcage.errors import ReplayedError

from tests.laws.lab import ATTEMPTS, Attempt, Lab, folder
from tests.laws.law import accounts, chances, fewer, offline, order, resumed
from tests.laws.programs import LEAVES, Block, Op, Program, Turn, programs, seeds
from tests.laws.test_orders import ALL, Giving
from tests.laws.test_undo import check_record, resolve_all, undo
from tests.laws.timeline import Moment

pytestmark = pytest.mark.law


class Cancels(Lab):
    """Cancels one of the tasks that run, at some moment, as a timeout does."""

    def cancel_at(self, when: int, chance: random.Random) -> None:
        """Cancel a task at this moment of the timeline."""
        self.tasks: list[asyncio.Task[None]] = []
        self.when, self.which = when, chance
        self.loop: asyncio.AbstractEventLoop | None = None
        add = self.timeline.add

        def added(moment: Moment) -> None:
            add(moment)
            if len(self.timeline.moments) == self.when and self.loop is not None:
                self.loop.call_soon_threadsafe(self.cancel)

        self.timeline.add = added  # type: ignore[method-assign]

    def cancel(self) -> None:
        running = [task for task in self.tasks if not task.done()]
        if running:
            self.which.choice(running).cancel()

    async def together(self, calls: list[Coroutine[Any, Any, None]]) -> None:
        if not self.at_once:
            return await super().together(calls)
        self.loop = asyncio.get_running_loop()

        async def begun(call: Coroutine[Any, Any, None]) -> None:
            task = asyncio.current_task()
            assert task is not None
            self.tasks.append(task)  # one that has not begun would tell nobody that it ended
            await call

        async def patient(call: Coroutine[Any, Any, None]) -> None:
            task = asyncio.create_task(begun(call))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()  # as `gather` does with what it waits for
            if task.cancelled():
                raise TimeoutError
            await task

        try:
            await super().together([patient(call) for call in calls])
        finally:
            for call in calls:
                if inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
                    call.close()  # its task was cancelled before it began


def cancelled(lab: Cancels, program: Program, chance: random.Random, **how: Any) -> Attempt:
    """Run or resume a program on a loop, and cancel one of its tasks, perhaps while orders come."""
    now = len(lab.timeline.moments)
    moments = [now + chance.randint(1, 40)] if chance.random() < 0.3 else []
    giving = Giving(lab, chance, moments, kinds=("pause",))
    with giving.to():
        lab.cancel_at(now + chance.randint(1, 40), chance)
        shuffle = chance.choice([None, chance.randrange(1000)])
        attempt = lab.attempt(program, at_once=True, shuffle=shuffle, **how)
    lift_order(lab.store, lab.newest())
    return attempt


def resolve(lab: Cancels, error: UnknownOutcome) -> None:
    """Say what became of a step in doubt, unless the thread of its call has just ended."""
    with contextlib.suppress(StepNotUnknown):
        lab.resolve(error.run, error.step)


def ended(lab: Cancels, attempt: Attempt) -> None:
    """Check how a cancelled attempt ended, and say what became of a step in doubt."""
    error = attempt.error
    assert lab.world.doubled == []
    if isinstance(error, UnknownOutcome):
        resolve(lab, error)
    else:
        # a read that was cancelled has failed, and a resume is given that
        expected = UndoIncomplete | Diverged | TimeoutError | KeyError | ReplayedError | None
        assert isinstance(error, expected), error


CUT_BESIDE_A_WRITE: Program = (
    Block((
        Block((Op("stream", 1), Op("plain", 1), Op("model", 0, "fail"))),
        Turn((Op("plain", 0, "fail"), Op("stream", 1), Op("model", 0)), "turn"),
        Turn((Op("thread", 1), Op("pure", 1)), "turn"),
    )),
)  # fmt: skip


@fewer(2)
@example(CUT_BESIDE_A_WRITE, 107)  # its failure was the answer for ever
@given(programs(tools=[*LEAVES, "stream", "thread"], blocks=ALL), seeds)
def test_a_program_whose_tasks_are_cancelled_goes_on(program: Program, seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        whole.through(program, **order(program, chance))
        lab = Cancels(root / "cancelled")
        for _ in range(chance.randint(1, 3)):
            attempt = cancelled(lab, program, chance, replay="continue")
            ended(lab, attempt)
        attempt = resumed(lab, program, chance)
        accounts(lab, attempt)
        assert lab.timeline.effects == whole.timeline.effects
        offline(lab, program, attempt, chance)


@fewer(2)
@given(
    programs(
        tools=["write", "plain", "idem", "read", "stream", "thread", "undo", "undo"],
        blocks=[*ALL, "branches"],
    ),
    seeds,
)
def test_an_undo_that_was_cancelled_is_finished(program: Program, seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = Cancels(root / "first")
        for _ in range(chance.randint(1, 3)):
            way = chance.choice(["halt", "undo", "warn"])
            attempt = cancelled(lab, program, chance, replay="continue", on_divergence=way)
            check_record(lab)
            ended(lab, attempt)
        run = lab.newest()
        for _ in range(ATTEMPTS):
            try:
                lab.settle()
                break
            except UnknownOutcome as unknown:
                resolve(lab, unknown)
        resolve_all(lab, run)
        undo(lab, run, chance)
        assert not lab.timeline.effects
