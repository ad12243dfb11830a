"""Supply the answers of a fork: given answers, other tools, and equal calls recorded elsewhere.

A supplied call makes no effect: its step is `simulated`, is never taken back by this run, and needs
no approval. In a dry fork, a call without a place on the recorded path gets the outcome recorded
for the same call, which is then *assumed* to hold.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from rollcage.calls.ending import kept
from rollcage.calls.stage import Stage
from rollcage.errors import ForkEnded, Halt, SessionHalted
from rollcage.replay.missing import miss
from rollcage.replay.outcome import LARGE, failure, success
from rollcage.stages.fork import HARMLESS
from rollcage.trace.run import Outcome
from rollcage.undo.plan import consult

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.calls.stage import Work
    from rollcage.replay.call import Call, Match
    from rollcage.session.session import Session
    from rollcage.stages.fork import Fork
    from rollcage.trace.run import Event, Step

__all__ = ["WhatIf"]

_log: Final = logging.getLogger("rollcage")


class WhatIf(Stage):
    """Answer calls with the supplies of the fork."""

    def __init__(self, fork: Fork) -> None:
        self._fork = fork
        self._replaced = fork.replaced

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Supply an answer to a call that no recorded step answers.

        Raises:
            ReplayMiss: the program does not make the recorded calls before the changed step.
        """
        if match.kind == "hit" or call.simulates or call.supplied is not None:
            return None
        if call.kind == "tool":
            stand_in = self._stand_in(call)
            if stand_in is not None:
                return stand_in
        if match.step is not None or match.kind != "new":
            return None
        step = self._assumed(call)
        if step is not None:
            return self._assume(call, step)
        if call.kind == "tool" and not self._has_passed(call):
            raise call.attempt.halt(miss(call.attempt, call))
        return None

    def _stand_in(self, call: Call) -> Work | None:
        name = call.contract.name
        replaced = self._replaced.get(name)
        if replaced is not None and replaced.contract.effect in HARMLESS:
            if call.effect in HARMLESS:
                return self._replace(call, replaced.function)
            return self._supply(call, replaced.function)
        if replaced is None and name in self._fork.answers:
            return self._supply(call, self._fork.answers[name])
        return None

    @staticmethod
    def _replace(call: Call, function: Callable[..., Any]) -> Work:
        """Run another function, which changes nothing either."""
        call.body = function
        _simulate(call)
        return
        yield

    @staticmethod
    def _supply(call: Call, given: Any) -> Work:
        """Answer a call with a value, or with the result of a function of its arguments."""
        contract, attempt = call.contract, call.attempt
        try:
            value = given
            if callable(given):
                value = yield consult(
                    cast("Callable[..., Any]", given), call.is_async, **call.values
                )
            if contract.streams and isinstance(value, AsyncIterator):
                value = yield functools.partial(_collected, value)
            elif contract.streams and isinstance(value, Iterator):
                value = yield consult(list, call.is_async, value)
        except (Halt, SessionHalted):
            raise
        except Exception as error:  # noqa: BLE001 - the tool may raise anything, so may what stands for it
            outcome = failure(contract, error, attempt.seal, attempt.types, unclear=False)
        else:
            outcome = success(contract, value, attempt.seal, attempt.types)
            drift = orjson.loads(outcome.data).get("drift") if outcome.flawed else None
            if drift is not None:
                why = f"{contract.name} gives no such result: {drift['path']}: {drift['reason']}"
                raise attempt.halt(ForkEnded(why, "halted", contract.name))
            if len(outcome.data) >= LARGE:
                outcome = yield from kept(attempt, call, outcome)
        call.supplied = outcome
        _simulate(call)

    @staticmethod
    def _assumed(call: Call) -> Step | None:
        """Return a recorded step of the same call whose place the fork has left."""
        attempt = call.attempt
        if not attempt.dry or call.kind != "tool":
            return None
        for step in attempt.recorded_by_key[call.place.branch, call.key]:
            was_left = step.gone == "left"
            is_free = was_left or not (step.taken or step.gone)
            if is_free and not step.given and not step.claimed and _can_be_given(attempt, step):
                return step
        return None

    @staticmethod
    def _assume(call: Call, step: Step) -> Work:
        """Answer a call with the outcome of an equal recorded call that answers no other."""
        assert step.outcome is not None
        call.supplied = Outcome(step.status, step.outcome)
        step.given = True
        _simulate(call, {"from": step.n, "assumed": True})
        return
        yield

    def _has_passed(self, call: Call) -> bool:
        """Tell whether the program has reached the changed step."""
        return _is_reached(self._fork, call.attempt.run.steps)

    def marks(self, call: Call) -> Event | None:
        """Mark the step as simulated."""
        if not call.simulates:
            return None
        return {"simulated": True, **(call.kept or {}).get("what if", {})}

    def closed(self, session: Session, error: BaseException | None) -> str | None:
        """Report that the program never reached the changed step."""
        attempt, at = session.outermost.attempt, self._fork.at
        if error is not None or attempt.halted is not None:
            return None
        if _is_reached(self._fork, attempt.run.steps):
            return None
        _log.warning(
            "the fork never came to step %s (%s), so nothing was changed in it",
            at, attempt.run.steps[at].name,
        )  # fmt: skip
        return "partial"


def _can_be_given(attempt: Attempt, step: Step) -> bool:
    """Tell whether the outcome of a step of the other run can answer a call."""
    is_known = step.status in ("ok", "error") and not (step.flawed or step.unclear)
    is_another = step.n in attempt.run.edits or step.n in attempt.run.remade
    return step.borrowed and is_known and not step.rolled and not is_another


def _simulate(call: Call, marks: Event | None = None) -> None:
    """Turn a call into a simulation, which needs no approval."""
    call.simulates = True
    call.granted = call.verdict
    call.keep("what if", marks or {})


def _is_reached(fork: Fork, steps: Mapping[int, Step]) -> bool:
    """Tell whether the changed step was asked for; True for a fork without one."""
    if not fork.changes_a_step:
        return True
    step = steps[fork.at]
    return step.taken or bool(step.gone) or step.claimed


async def _collected(chunks: AsyncIterator[Any]) -> list[Any]:
    return [chunk async for chunk in chunks]
