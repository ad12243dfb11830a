"""End a call: write its outcome, or record that the outcome is unknown."""

from __future__ import annotations

import asyncio
import functools
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import orjson

from rollcage.calls.branches import ended
from rollcage.contract.results import warn_of
from rollcage.contract.unknown_errors import certainty
from rollcage.errors import (
    ArgumentsInvalid,
    Blocked,
    Halt,
    PermissionUndeclared,
    SessionHalted,
    TraceUnwritable,
)
from rollcage.replay.call import Call
from rollcage.replay.outcome import LARGE, answered, failure, refused, says_lost, success
from rollcage.trace.run import CHANGES, Outcome

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.calls.driver import Flow

__all__ = ["end", "failed", "is_clean", "is_lost", "kept", "lose", "returned"]

_REFUSALS: Final = (ArgumentsInvalid, Blocked, PermissionUndeclared)


def returned(attempt: Attempt, call: Call, value: Any, **more: Any) -> Flow:
    """Record that a body returned a value; return the value, unless it breaks the contract."""
    call.took = attempt.ticks() - call.began
    if call.read is not None:
        more.update(answered(call.contract, call.read, value, attempt.seal))
    outcome = success(call.contract, value, attempt.seal, attempt.types, more)
    if len(outcome.data) >= LARGE:
        outcome = yield from kept(attempt, call, outcome)
    end(attempt, call, outcome)
    if call.effect == "write" and not attempt.is_at_once:
        yield from attempt.settle(is_async=call.is_async)
    if outcome.flawed:
        recorded = orjson.loads(outcome.data)
        drift = refused(call.contract, recorded)
        if drift is not None:
            raise drift
        warning = warn_of(call.contract, recorded) if "lossy" in recorded else None
        if warning is not None:
            raise warning
    return value


def failed(attempt: Attempt, call: Call, error: BaseException) -> Flow:
    """Record that a body raised, or that its outcome is unknown."""
    call.took = attempt.ticks() - call.began
    contract, effect = call.contract, call.event["effect"]
    is_halt = isinstance(error, (Halt, SessionHalted))
    if effect == "write" and is_lost(attempt, call, error):
        with attempt.lock:
            if not attempt.closed:
                why = f": it was cut off by {type(error).__name__}"
                halt = attempt.unknown(attempt.run.steps[call.event["step"]], why)
                if isinstance(error, Exception) and not is_halt:
                    halt.__cause__ = error
                attempt.halt(halt)
    elif not is_halt:
        unclear = (
            effect == "write"
            and isinstance(error, Exception)
            and not is_clean(attempt, call, error)
        )
        outcome = failure(contract, error, attempt.seal, attempt.types, unclear=unclear)
        if not attempt.closed:
            end(attempt, call, outcome)
            if effect == "write" and not attempt.is_at_once:
                yield from attempt.settle(is_async=call.is_async)
    elif effect in CHANGES:  # somebody's own halt went through a scope: the next attempt goes on
        with attempt.lock:
            call.is_ended = True
            if attempt.halted is None and not attempt.closed:
                ended(attempt, call.branch, None)


def lose(attempt: Attempt, call: Call, error: BaseException) -> None:
    """Let nothing more run if a body has run, and no line says how it ended.

    Something came between its end and that line: Ctrl-C, say, or a store that can't keep a value.
    """
    if call.is_ended or not call.is_on_record:
        return
    with attempt.lock:
        if attempt.closed:
            return
        call.is_ended = True
        step = attempt.run.steps[call.event["step"]]
        if call.event["effect"] == "write":
            why = f": {type(error).__name__} came before its end was on record"
            halt = attempt.unknown(step, why)
            if isinstance(error, Exception):
                halt.__cause__ = error
            attempt.halt(halt)
        elif call.event["effect"] in CHANGES:  # it acts through guarded calls: it is entered again
            ended(attempt, call.branch, None)


def end(attempt: Attempt, call: Call, outcome: Outcome) -> None:
    """Write the outcome of a call."""
    with attempt.lock:
        if attempt.closed:
            if call.event["effect"] != "write":
                return
            raise TraceUnwritable(
                f"{call} ended after its session was left: its outcome is not on record"
            )
        event, changes = call.event, call.changes
        if changes or call.is_on_record:
            event = {"event": "outcome", "step": event["step"]}
            if attempt.has_recording and (unasked := _unasked(attempt, call)):
                event["unasked"] = unasked
        event["duration"] = call.took // 1000
        for settled in call.hooks.settled:
            event.update(settled(call, outcome, None) or ())
        attempt.put(event, outcome, call.asked)
        call.is_ended = True
        if changes:
            ended(attempt, call.branch, attempt.run.steps[call.event["step"]])
        if call.session.gate.settles:
            attempt.notify(call, outcome, None)


def is_lost(attempt: Attempt, call: Call, error: BaseException) -> bool:
    """Tell whether an error means that the answer to a write got lost: its outcome is unknown.

    An error raised by a guarded call inside of the body concerned that call's own requests.
    """
    if (call.kept or {}).get("nested") is error and attempt.halted is None:
        return False
    return says_lost(call.contract, error)


def is_clean(attempt: Attempt, call: Call, error: Exception) -> bool:
    """Tell whether the effect of a failed write is known not to have happened.

    The contract may say so, or the observed state; or the call was refused before a request was
    sent, and no guarded call inside of the body has changed anything.
    """
    contract = call.contract
    if isinstance(error, contract.raises) or "clean" in (call.kept or ()):
        return True
    if not isinstance(error, _REFUSALS) and certainty(error, contract.unknown_on) != "not_sent":
        return False
    return not any(
        step.acts and not step.failed_cleanly
        for step in attempt.run.inside("#" + call.event["fingerprint"])
    )


def kept(attempt: Attempt, call: Call, outcome: Outcome) -> Flow:
    """Store the large parts of an outcome beside the log; the outcome refers to them."""
    recorded = orjson.loads(outcome.data)
    for field in ("value", "answer"):
        data = orjson.dumps(recorded.get(field))
        if len(data) < LARGE:
            continue
        digest = sha256(data).hexdigest()
        keep = functools.partial(attempt.store.swap, "blobs", digest, None, data)
        yield functools.partial(asyncio.to_thread, keep) if call.is_async else keep
        recorded[field] = {
            "$rollcage": "blob", "value": None, "sha256": digest, "size": len(data),
        }  # fmt: skip
    return outcome._replace(data=orjson.dumps(recorded))


def _unasked(attempt: Attempt, call: Call) -> list[int]:
    """Return the effects of an earlier attempt in this body that this attempt did not ask for."""
    if not attempt.run.untaken:
        return []
    inner = attempt.run.steps[call.event["step"]].inner
    return [
        step.n
        for step in attempt.run.branches.get(inner, ())
        if step.effect in CHANGES and not step.taken
    ]
