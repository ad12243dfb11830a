"""Write the first line of a step, with the fingerprint that names the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rollcage.fingerprint.identity import fingerprint
from rollcage.replay.call import Call, Place
from rollcage.replay.walk import Branch, Look, Turn
from rollcage.trace.run import Event, Step

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt

__all__ = ["begin_step", "intent_of"]

_fromhex: Final = bytes.fromhex


def intent_of(attempt: Attempt, call: Call, step: Step | None, look: Look | None) -> Event:
    """Return the line of the step that a call begins.

    Args:
        attempt: the attempt.
        call: the call.
        step: the recorded step that has its place, if there is one.
        look: where it stands; None if it waits there, and for pure and model calls.
    """
    branch, contract, place = call.branch, call.contract, call.place
    if look is not None:
        start = look.start
    else:
        start = step.start if call.waiting and step is not None else branch.pos
    event = begin_step(attempt,
        contract.name, call.effect, call.key, call.arguments, branch, call.turn, call.slot,
        place, start, step,
    )  # fmt: skip
    if call.waiting:
        event["pos"] = attempt.run.steps[call.waiting].pos
        if call.changes and branch.running == 1 and not branch.preparing:
            event.pop("during", None)  # what runs there is this call itself
    elif not call.changes and start > branch.pos:
        event["pos"] = start  # a batch is open that its turn did not see begin
    if call.kind == "model":
        event["rank"] = call.rank
    elif attempt.run.unclear or attempt.run.continues:
        retries = _retries(attempt, call, step)
        if retries:
            event["retries"] = retries
    if contract.version:
        event["version"] = contract.version
    if contract.framework:
        event["framework"] = contract.framework
    if place.agent:
        event["agent"] = place.agent
    if place.call_id:
        event["call_id"] = place.call_id
    return event


def _retries(attempt: Attempt, call: Call, step: Step | None) -> int:
    """Return the step whose idempotency key a repeated call uses; 0: the call has its own."""
    run = attempt.run
    if call.key in run.unclear and step is None and call.supplied is None:
        return run.unclear[call.key] if call.contract.idempotent else 0
    if run.continues and step is not None and step.borrowed:  # what another run began
        return step.n if step.status == "unknown" or step.unclear else 0
    return 0


def begin_step(
    attempt: Attempt,
    name: str,
    effect: str,
    key: str,
    arguments: Any,
    branch: Branch,
    turn: Turn,
    slot: int,
    place: Place,
    start: int,
    again: Step | None = None,
) -> Event:
    """Return the line of a step that begins here."""
    run, declared = attempt.run, place.slot is not None
    if again is not None:  # it is the same step, at its place
        mark, slot, declared = again.fingerprint, again.slot, again.declared
        number = again.turn
    else:
        number = turn.n or attempt.number(turn)
        key_bytes, world, rank = _fromhex(key), branch.world(), branch.rank(key, turn)
        mark = fingerprint(key_bytes, world, rank, slot).hex()
        count = 0
        while mark in attempt.marks or mark in run.named:  # a name is given once
            count += 1
            mark = fingerprint(key_bytes, world, rank, slot, count).hex()
        attempt.marks.add(mark)
    run.last += 1
    event: Event = {
        "event": "step", "step": run.last, "name": name, "effect": effect, "key": key,
        "args": arguments, "branch": branch.name, "start": start, "pos": branch.pos,
        "turn": number, "slot": slot, "fingerprint": mark,
        "time": attempt.options.clock.wall() // 1000,
    }  # fmt: skip
    if declared:
        event["declared"] = True
    if branch.running or branch.preparing:
        event["during"] = True
    if again is not None:
        event["again"] = again.n
        if again.epoch:
            event["epoch"] = again.epoch
    elif run.epochs and (epoch := run.epoch(branch.name)):
        event["epoch"] = epoch
    return event
