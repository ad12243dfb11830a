"""Supply the answers of a fork: given answers, other tools, and equal calls recorded elsewhere.

A supplied call makes no effect: its step is `simulated`, is never taken back by this run, and needs
no approval. In a dry fork, a call without a place on the recorded path gets the outcome recorded
for the same call, which is then *assumed* to hold.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import orjson
from rollcage import ForkEnded, Halt, SessionHalted
from rollcage.session.adapters import LARGE, Outcome, consult, failure, kept, success

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.calls.stage import Work
    from rollcage.replay.call import Call
    from rollcage.session.adapters import Look
    from rollcage.trace.run import Event, Step

__all__ = ["assume", "assumed", "marks", "replace", "supply"]


def replace(call: Call, function: Callable[..., Any]) -> Work:
    """Run another function, which changes nothing either."""
    call.body = function
    _simulate(call)
    return
    yield


def supply(call: Call, given: Any) -> Work:
    """Answer a call with a value, or with the result of a function of its arguments."""
    contract, attempt = call.contract, call.attempt
    try:
        value = given
        if callable(given):
            values, _ = call.shown()
            value = yield consult(cast("Callable[..., Any]", given), call.is_async, **values)
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


def assumed(call: Call, look: Look | None) -> Step | None:
    """Return a recorded step of the same call whose place the fork has left."""
    attempt = call.attempt
    if not attempt.dry or call.kind != "tool":
        return None
    for step in attempt.recorded_by_key[call.place.branch, call.key]:
        was_left = step.gone == "left"
        is_free = was_left or not (step.taken or step.gone or _is_to_come(call, look, step))
        if is_free and not step.given and not step.claimed and _can_be_given(attempt, step):
            return step
    return None


def _is_to_come(call: Call, look: Look | None, step: Step) -> bool:
    """Tell whether a step answers another slot of the call's turn.

    If nothing came after that turn, it may have been cut before this call.
    """
    slot = call.place.slot
    if look is None or slot is None or not step.declared or step.slot == slot:
        return False
    if not step.start <= call.branch.pos + look.move <= step.reach:
        return False
    return not any(
        each.borrowed and each.branch == step.branch and each.turn > step.turn
        for each in reversed(call.attempt.run.steps.values())
    )


def assume(call: Call, step: Step) -> Work:
    """Answer a call with the outcome of an equal recorded call that answers no other."""
    assert step.outcome is not None
    call.supplied = Outcome(step.status, step.outcome)
    step.given = True
    _simulate(call, {"from": step.n, "assumed": True})
    return
    yield


def marks(call: Call) -> Event | None:
    """Mark the step as simulated."""
    if not call.simulates:
        return None
    return {"simulated": True, **(call.kept or {}).get("what if", {})}


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


async def _collected(chunks: AsyncIterator[Any]) -> list[Any]:
    return [chunk async for chunk in chunks]
