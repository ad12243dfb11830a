"""The flow of a step, written once (DESIGN §3): a generator that yields effects.

Errors of a body travel as data (`Raised`), so that nothing a body raises, StopIteration and
cancellation included, can be mistaken for an event of the flow itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from hashlib import sha256
from typing import Any, Final

import orjson

from rollcage._effects import (
    Admit,
    Approve,
    Effect,
    Execute,
    Flow,
    GetBlob,
    Note,
    PutBlob,
    Raised,
    Resolve,
    Returned,
    Settle,
    Stop,
    Sync,
)
from rollcage.answer import Answer
from rollcage.contract import Contract
from rollcage.errors import Halt, NotReplayable, SessionHalted, UnknownOutcome
from rollcage.gate import Approval, ApprovalRequest, Verdict, approval_of
from rollcage.replay import UNKNOWN, Entry
from rollcage.step import Admission, Arrival, Call, Step
from rollcage.trace.codec import Seal, encode_result, same_encoding, survey, tagged
from rollcage.trace.decoding import decode
from rollcage.trace.exceptions import decode_exception, encode_exception

__all__ = ["run_step"]

_log: Final = logging.getLogger("rollcage")

LARGE: Final = 64 * 1024  # bytes of JSON from which a value is kept as a blob
_UNKNOWN: Final = orjson.dumps(UNKNOWN)
_NOT_STARTED: Final[dict[str, Any]] = {"status": "not_started"}

Read = Callable[[Any], Answer]
"""Reads what a model answered off the framework's own value."""


def run_step(
    call: Call,
    verdict: Verdict,
    body: Callable[..., Any],
    seal: Seal,
    *,
    durable: bool,
    read: Read | None = None,
) -> Flow:
    """The flow of one call, from its verdict on.

    `durable` waits for the disk before a write runs and before its outcome counts. `read` reads
    a model's answer off its value.
    """
    if len(call.arguments.digest_input) >= LARGE:
        yield from _keep_large_arguments(call)
    admission: Admission = yield Admit(call, verdict)
    if admission.asks is not None:
        admission = yield from _approved(call, verdict, admission.asks)
    if admission.error is not None:
        return Raised(admission.error)
    step, entry = admission.step, admission.entry
    if step is None:
        assert entry is not None
        return (yield from _recorded(call.contract, entry))
    if entry is not None:
        return (yield from _compared(admission, step, entry, body, seal))
    wait = durable and step.world_effect
    if wait:
        synced = yield Sync()
        if isinstance(synced, Raised):  # cancelled, or no disk: before anything happened
            yield Settle(step, _NOT_STARTED, orjson.dumps(_NOT_STARTED))
            return synced
    answer: Returned | Raised = yield Execute(step, body, lambda end: _late(step, end, seal, read))
    if isinstance(answer, Raised):
        yield _failure(step, answer, seal)
        return answer
    outcome, encoded = _outcome(call.contract, answer, seal, read)
    if len(encoded) >= LARGE:
        outcome, encoded = yield from _keep_large_value(outcome)
    yield Settle(step, outcome, encoded)
    if wait:
        synced = yield Sync()
        if isinstance(synced, Raised):
            return synced
    return answer


def _approved(call: Call, verdict: Verdict, arrival: Arrival) -> Generator[Effect, Any, Admission]:
    """Ask, then place the call anew: it may run now, or is refused."""
    assert call.ask is not None
    request = ApprovalRequest(
        call.kind,
        call.contract.name,
        call.compared,
        call.agent,
        call.call_id,
        call.key.hex(),
        verdict,
    )
    answer: Returned | Raised = yield Approve(call.ask, request)
    if isinstance(answer, Returned):
        approval = approval_of(answer.value)
    elif isinstance(answer.error, call.ask.pauses) or not isinstance(answer.error, Exception):
        return Admission(None, error=answer.error)  # nothing happened, nothing is written
    else:
        approval = Approval(False, reason=f"the approver failed: {type(answer.error).__name__}")
    if approval.approved:
        call.approved = approval
    else:
        reason = approval.reason or "the call was not approved"
        verdict = Verdict("deny", reason, "approval_rejected", verdict.rule)
    admission: Admission = yield Admit(call, verdict, arrival)
    return admission


# --- how a body ended ----------------------------------------------------------------------------


def _outcome(
    contract: Contract, answer: Returned, seal: Seal, read: Read | None
) -> tuple[dict[str, Any], bytes]:
    """The outcome `ok`, and its bytes."""
    value = answer.value
    outcome: dict[str, Any] = {"status": "ok", "value": value}
    encoded: bytes | None = None
    if answer.cut:
        outcome["cut"] = True
    if read is not None:
        try:
            said = read(value)
        except Exception:  # noqa: BLE001 - an adapter's own code must not lose the outcome
            _log.exception("the answer of %s can't be read", contract.name)
        else:
            outcome["answer"] = said.as_data()
            if said.usage:
                outcome["usage"] = dict(said.usage)
    try:
        if survey(value):
            encoded = orjson.dumps(outcome)
    except (TypeError, RecursionError):  # a lone surrogate, or too deep for JSON: encoded below
        encoded = None
    if encoded is None:
        result = encode_result(value, seal, typed=contract.typed)
        outcome["value"] = result.value
        if result.needs_type and not result.flaws:
            outcome["typed"] = True
            result.flaws.extend(_check_round_trip(contract, result.value, seal))
        if result.flaws:
            outcome["lossy"] = "; ".join(result.flaws[:5])
            outcome.pop("typed", None)
        encoded = orjson.dumps(outcome)
    return outcome, encoded


def _late(step: Step, answer: Returned | Raised, seal: Seal, read: Read | None) -> Flow:
    """Record the end of a body that outlived its cancelled call."""
    if isinstance(answer, Raised):
        settled = _failure(step, answer, seal)
        outcome, encoded = settled.outcome, settled.encoded
    else:
        outcome, encoded = _outcome(step.call.contract, answer, seal, read)
        if len(encoded) >= LARGE:
            outcome, encoded = yield from _keep_large_value(outcome)
    yield Resolve(step, outcome, encoded)
    return answer


def _check_round_trip(contract: Contract, encoded: Any, seal: Seal) -> list[str]:
    """Show, rather than hope, that a typed value comes back through the return type."""
    try:
        again = encode_result(
            contract.revive(decode(encoded, framework=contract.framework)), seal, typed=True
        )
    except Exception as error:  # noqa: BLE001 - validators are the user's own
        return [f"$: its declared return type refuses it: {type(error).__name__}"]
    if not again.flaws and same_encoding(again.value, encoded):
        return []
    return ["$: it does not come back equal through its declared return type"]


def _failure(step: Step, raised: Raised, seal: Seal) -> Settle:
    """How a raise ends: an error, or unknown where a write was cut off."""
    if not raised.began:
        return Settle(step, _NOT_STARTED, orjson.dumps(_NOT_STARTED))
    error = raised.error
    contract = step.call.contract
    stopped = isinstance(error, (Halt, SessionHalted))
    timed_out = isinstance(error, TimeoutError) and not isinstance(error, contract.raises)
    cut_off = not isinstance(error, Exception) or stopped or timed_out
    if cut_off and contract.effect == "scope":
        return Settle(step, UNKNOWN, _UNKNOWN)  # is entered again: never in doubt
    if cut_off and step.world_effect:
        name = type(error).__name__
        halt = UnknownOutcome(
            f"step {step.number} of run {step.run} ({contract.name}) was cut off by {name}: nobody "
            f"can tell whether it happened. Find out, then say so: rollcage resolve {step.run} "
            f"{step.number} --happened [--result JSON] | --did-not-happen",
            step.run,
            step.number,
        )
        return Settle(step, UNKNOWN, _UNKNOWN, halt)
    outcome: dict[str, Any] = {
        "status": "error",
        "error": encode_exception(error, seal, contract.raises),
    }
    return Settle(step, outcome, orjson.dumps(outcome))


# --- a recorded step -----------------------------------------------------------------------------


def _recorded(contract: Contract, entry: Entry) -> Flow:
    """Give back what a recorded step gave."""
    try:
        if entry.status == "error":
            error = decode_exception(entry.outcome["error"], contract.raises)
            return Raised(error)
        outcome = entry.outcome
        encoded = outcome["value"]
        if type(encoded) is dict and encoded.get("$rollcage") == "blob":
            blob: bytes | Raised = yield GetBlob(encoded["sha256"])
            if isinstance(blob, Raised):
                raise ValueError(str(blob.error))
            encoded = orjson.loads(blob)
        value = decode(encoded, framework=contract.framework)
        if outcome.get("typed"):
            value = contract.revive(value)
        return Returned(value, cut="cut" in outcome)
    except Exception as error:  # noqa: BLE001 - hostile data, and validators of the user's own
        # The recorded step is used up by now: whoever swallows this must not get to run it again.
        stop = NotReplayable(f"step {entry.step} of run {entry.run} ({entry.name}): {error}")
        yield Stop(stop)
        return Raised(stop)


def _compared(
    admission: Admission, step: Step, entry: Entry, body: Callable[..., Any], seal: Seal
) -> Flow:
    """Run a recorded read or pure call again and tell the difference; the recorded value counts."""
    answer: Returned | Raised = yield Execute(step, body, lambda end: _late(step, end, seal, None))
    event = admission.event
    assert event is not None
    recorded = yield from _recorded(step.call.contract, entry)
    if isinstance(answer, Raised):
        if not isinstance(answer.error, Exception) or not answer.began:
            return answer
        fresh: Any = encode_exception(answer.error, seal, step.call.contract.raises)
        same = entry.status == "error" and fresh == entry.outcome.get("error")
        said = f"it now raises {fresh['type']}: {fresh['message']}"
    else:
        same = isinstance(recorded, Returned) and _same(recorded.value, answer.value, seal)
        said = "it now gives another value"
    if not same:
        event["drift"] = said
    yield Note(event)
    return recorded


def _same(one: Any, other: Any, seal: Seal) -> bool:
    """Whether two values would be recorded alike: 1 is not True, and nan is nan."""
    old, new = encode_result(one, seal, typed=True), encode_result(other, seal, typed=True)
    return not new.flaws and same_encoding(old.value, new.value)


# --- large values --------------------------------------------------------------------------------


def _keep(data: bytes) -> Generator[Effect, Any, dict[str, Any]]:
    digest = sha256(data).hexdigest()
    yield PutBlob(digest, data)
    return {**tagged("blob", None), "sha256": digest, "size": len(data)}


def _keep_large_value(
    outcome: dict[str, Any],
) -> Generator[Effect, Any, tuple[dict[str, Any], bytes]]:
    for field in ("value", "answer"):
        data = orjson.dumps(outcome.get(field))
        if len(data) >= LARGE:
            outcome[field] = yield from _keep(data)
    return outcome, orjson.dumps(outcome)


def _keep_large_arguments(call: Call) -> Generator[Effect, Any, None]:
    shown = dict(call.arguments.canonical)
    for name, value in shown.items():
        data = orjson.dumps(value)
        if len(data) >= LARGE:
            shown[name] = yield from _keep(data)
    call.shown = call.compared = shown
