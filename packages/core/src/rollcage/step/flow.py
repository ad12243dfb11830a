"""The flow of a step, written once (DESIGN §3): a generator that yields effects.

Errors of a body travel as data (`Raised`), so that nothing a body raises, StopIteration and
cancellation included, can be mistaken for an event of the flow itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from hashlib import sha256
from typing import Any, Final, assert_never

import orjson

from rollcage.contract.contract import Contract
from rollcage.contract.drift import as_error, raised
from rollcage.errors import ForkEnded, Halt, NotReplayable, SessionHalted
from rollcage.fingerprint.identity import idempotency_key
from rollcage.gate import Verdict
from rollcage.replay.finding import ProbeResult, StandIn
from rollcage.replay.path import UNKNOWN, Entry
from rollcage.step.approving import approved, changed, edited_again, in_place
from rollcage.step.call import Admission, Call, Precondition, Progress, Step
from rollcage.step.capture import (
    LARGE,
    Setting,
    capture,
    keep,
    keep_large,
    keep_request,
    observed,
    plan_late,
    probed,
    revived,
    settled_marks,
)
from rollcage.step.halts import diverged, unknown
from rollcage.step.requests import (
    Admit,
    Consult,
    Effect,
    Execute,
    Flow,
    GetBlob,
    KeepBlob,
    Note,
    Raised,
    Resolve,
    Returned,
    Settle,
    Stop,
    Sync,
    Wait,
)
from rollcage.step.results import given_back, recorded, warn_of
from rollcage.step.unknown_errors import leaves_unknown
from rollcage.undo.compensation import DidNotHappen, Happened, digests_of
from rollcage.values.answer import Answer
from rollcage.values.codec import Hiding, Seal, encode_result, hidden, same_encoding, survey
from rollcage.values.copies import own_copy
from rollcage.values.decoding import decode
from rollcage.values.exceptions import decode_exception, encode_exception, told_of
from rollcage.values.registered import Types

__all__ = ["Read", "happened", "kept", "late_end", "run_step"]

_log: Final = logging.getLogger("rollcage")

_UNKNOWN: Final = orjson.dumps(UNKNOWN)
_THEMSELVES: Final = frozenset({str, int, float, bool, type(None)})  # decoded, they are the same
_QUOTING: Final = ("value", "answer", "drift", "lossy")  # parts of an outcome: a tool's own words
_NOT_STARTED: Final[dict[str, Any]] = {"status": "not_started"}

Read = Callable[[Any], Answer]
"""Reads what a model answered off the framework's own value."""


def run_step(
    progress: Progress,
    verdict: Verdict,
    body: Callable[..., Any],
    setting: Setting,
    *,
    read: Read | None = None,
    waits: bool = False,
    is_async: bool | None = None,
) -> Flow:
    """The flow of one call, from its verdict on.

    `read` reads a model's answer off its value. `waits` says that async functions can be called,
    `is_async` what the body is, where that is not
    what the flow's drive is.
    """
    arguments = progress.call.arguments
    if progress.call.kind == "model":
        progress.shown = progress.compared = yield from keep_request(arguments)
    elif len(arguments.digest_input) >= LARGE:
        progress.shown = progress.compared = yield from keep_large(arguments.canonical)
    admission: Admission = yield Admit(progress, verdict)
    if admission.first is not None:
        admission = yield from _prepared(progress, verdict, admission.first, setting, waits=waits)
    if admission.error is not None:
        return Raised(admission.error)
    step, entry = admission.step, admission.entry
    if step is None:
        assert entry is not None
        return (yield from _recorded(progress.call.contract, entry, setting))
    if entry is not None:
        return (yield from _compared(admission, step, entry, body, setting))
    wait = setting.barrier and step.world_effect
    if wait:
        synced = yield Sync(step)
        if isinstance(synced, Raised):  # cancelled, or no disk: before anything happened
            yield Settle(step, _NOT_STARTED, orjson.dumps(_NOT_STARTED))
            return synced
    answer = yield from _answered(progress, step, body, setting, is_async=is_async)
    if isinstance(answer, Raised) and isinstance(answer.error, ForkEnded):
        yield Settle(step, _NOT_STARTED, orjson.dumps(_NOT_STARTED))
        return answer
    settled = _settled(step, answer, setting, read)
    if step.captured is not None or len(settled.encoded) >= LARGE:
        answer = yield from _whole(settled, answer, setting)
    yield settled
    if wait and isinstance(answer, Returned):
        answer = yield from _synced(answer)
    return _with_word_of(step.call, settled.outcome, answer)


def _with_word_of(
    call: Call, outcome: dict[str, Any], answer: Returned | Raised
) -> Returned | Raised:
    """What the caller gets of a call that is on record: an error where its output is refused."""
    contract = call.contract
    if isinstance(answer, Raised):
        return answer
    drifted = _drifted(contract, outcome) if "drift" in outcome else None
    if drifted is not None or "lossy" not in outcome or call.undoes is not None:
        return drifted or answer  # of what takes a step back, nobody asks for the value
    warning = warn_of(contract, outcome)
    return answer if warning is None else Raised(warning)


def _answered(
    progress: Progress,
    step: Step,
    body: Callable[..., Any],
    setting: Setting,
    *,
    is_async: bool | None,
) -> Flow:
    """What a call gave: by its body, a person, or what a fork was given for it."""
    if progress.stand_in is not None:
        return (yield from _stood_in(progress, progress.stand_in, setting))
    response = progress.consent.response
    if response is not None:
        return Returned(response.value)  # a person's, in place of the tool's
    answer: Returned | Raised = yield Execute(step, _body(progress, body), is_async)
    return answer


def _stood_in(progress: Progress, given: StandIn, setting: Setting) -> Flow:
    """What a fork was given in place of the tool; it ends there where the tool gives no such."""
    call = progress.call
    if given.error is not None:
        return Raised(given.error)
    value = given.given
    if given.is_called:
        words = {name: own_copy(each) for name, each in call.arguments.values.items()}
        what = f"what stands in for {call.contract.name}"
        answer: Returned | Raised = yield Consult(given.given, what, words=words)
        if isinstance(answer, Raised):
            return answer
        value = answer.value
    try:
        return Returned(in_place(call, value, setting))
    except ValueError as error:
        said = f"what the fork was given for {call.contract.name} can't be used: {error}"
        stop = ForkEnded(said, "halted", call.contract.name)
        yield Stop(stop)
        return Raised(stop)


def _body(progress: Progress, body: Callable[..., Any]) -> Callable[..., Any]:
    """What is called: of arguments that an approver has edited, by the adapter's own way."""
    instead = progress.call.instead
    if instead is None or not progress.is_edited:
        return body
    assert instead.edited is not None  # else that was refused
    return instead.edited


def _synced(answer: Returned) -> Flow:
    """What a body gave, once that is on the disk."""
    synced: Returned | Raised = yield Sync()
    return synced if isinstance(synced, Raised) else answer


def _settled(step: Step, answer: Returned | Raised, setting: Setting, read: Read | None) -> Settle:
    """How a step has ended."""
    if isinstance(answer, Raised):
        settled = _failure(step, answer, setting)
    else:
        outcome, encoded = _outcome(step.call.contract, answer, setting, read)
        settled = Settle(step, outcome, encoded)
    if step.watch is not None and step.watch.found:
        settled.marks = {"undeclared": step.watch.found}
    return settled


def _whole(settled: Settle, answer: Returned | Raised, setting: Setting) -> Flow:
    """Keep a large value, and what a step that may have to be undone has changed."""
    step, status = settled.step, settled.outcome["status"]
    if status == "ok" and len(settled.encoded) >= LARGE:
        settled.outcome, settled.encoded = yield from _keep_large_value(settled.outcome)
    if step.captured is not None and status in ("ok", "error"):
        marks, interrupt = yield from settled_marks(step, answer, setting)
        settled.marks = marks | (settled.marks or {})
        if interrupt is not None:
            return Raised(interrupt)
    return answer


# --- before it may run ---------------------------------------------------------------------------


def _prepared(
    progress: Progress, verdict: Verdict, first: Precondition, setting: Setting, *, waits: bool
) -> Generator[Effect, Any, Admission]:
    """Do what has to be done first, then place the call anew: it may run now, or is refused."""
    turn, slot = first.arrival.turn, first.arrival.slot
    try:
        return (yield from _made_ready(progress, verdict, first, setting, waits=waits))
    finally:
        turn.asked(slot)


def _made_ready(
    progress: Progress, verdict: Verdict, first: Precondition, setting: Setting, *, waits: bool
) -> Generator[Effect, Any, Admission]:
    while True:
        stopped: BaseException | None = None
        match first.what:
            case "approve":
                assert first.asked is not None
                verdict, stopped = yield from approved(progress, verdict, first.asked, setting)
            case "edit":
                assert first.entry is not None
                verdict, stopped = yield from edited_again(progress, verdict, first.entry, setting)
            case "change":
                assert first.args is not None
                verdict, stopped = yield from changed(progress, first.args, setting)
            case "probe":
                assert first.entry is not None
                stopped = yield from _probed(progress, first.entry, setting)
            case "undo":
                left = yield from setting.take_back(first.orphans, waits)
                if left:
                    halt = diverged(
                        first.arrival, first.orphans, setting.run, setting.at, left=left
                    )
                    yield Stop(halt)
                    stopped = halt
            case "capture":
                stopped = yield from capture(progress, first.entry, setting)
            case "wait":
                assert first.until is not None
                answer = yield Wait(first.until)
                stopped = answer.error if isinstance(answer, Raised) else None
            case _:
                assert_never(first.what)
        if stopped is not None:
            return Admission(None, error=stopped)  # nothing happened, nothing is written
        admission: Admission = yield Admit(progress, verdict, first.arrival)
        if admission.first is None:
            return admission
        first = admission.first


def _probed(
    progress: Progress, entry: Entry, setting: Setting
) -> Generator[Effect, Any, BaseException | None]:
    """Find out what became of a recorded step, and let the call know."""
    call = progress.call
    contract, values = call.contract, call.arguments.values
    key = idempotency_key(setting.root, entry.branch, entry.fingerprint)
    said = yield from probed(contract, values, key, entry.undo, setting.seal)
    if isinstance(said, BaseException):
        return said
    if isinstance(said, DidNotHappen):
        result = ProbeResult(False)
    elif isinstance(said, Happened):
        result = yield from happened(contract, values, entry.undo, said, setting)
    else:
        result = ProbeResult(None)
    progress.prepared = progress.prepared._replace(probe=result)
    return None


def happened(
    contract: Contract,
    arguments: dict[str, Any],
    undo: dict[str, Any] | None,
    said: Happened,
    setting: Setting,
) -> Generator[Effect, Any, ProbeResult]:
    """What a probe's word makes of a step of unknown outcome."""
    answer = Returned(said.result)
    outcome, encoded = _outcome(contract, answer, setting, None)
    if len(encoded) >= LARGE:
        outcome, encoded = yield from _keep_large_value(outcome)
    states: dict[str, Any] = {}
    if undo is not None and "before" in undo:
        states = yield from revived(undo["before"])
    before = {resource: decode(state) for resource, state in states.items()}
    undoing = yield from plan_late(contract, arguments, before, said.result, setting)
    if contract.observe is not None:  # from here on, what somebody else changes will show
        now = yield from observed(contract, arguments, setting.seal)
        if not isinstance(now, Raised):
            undoing["after"] = digests_of(now)
    return ProbeResult(True, outcome, sha256(encoded).hexdigest(), undoing)


# --- how a body ended ----------------------------------------------------------------------------


def _outcome(
    contract: Contract, answer: Returned, setting: Setting, read: Read | None
) -> tuple[dict[str, Any], bytes]:
    """The outcome `ok`, and its bytes."""
    value, seal = answer.value, setting.seal
    outcome: dict[str, Any] = {"status": "ok", "value": value}
    encoded: bytes | None = None
    if contract.promise is not None and (drift := _drift(contract, answer, seal)):
        outcome |= drift
    if answer.cut:
        outcome["cut"] = True
    if read is not None:
        try:
            said = read(value)
        except Exception as error:  # noqa: BLE001 - an adapter's own code must not lose the outcome
            _log.error("the answer of %s can't be read: %s", contract.name, told_of(error, seal))
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
        outcome |= recorded(contract, value, setting.seal, setting.types_of(contract))
        encoded = orjson.dumps(outcome)
    shown = (
        _without_secrets(outcome, seal) if isinstance(seal, Hiding) and not seal.idle else outcome
    )
    return (outcome, encoded) if shown is outcome else (shown, orjson.dumps(shown))


def _without_secrets(outcome: dict[str, Any], seal: Seal) -> dict[str, Any]:
    """The outcome as the trace may hold it; a value that lost something can't come back."""
    parts = {each: hidden(outcome[each], seal) for each in _QUOTING if each in outcome}
    if not any(each.found for each in parts.values()):
        return outcome
    shown = outcome | {name: each.value for name, each in parts.items()}
    if lost := parts["value"].found:
        shown["lossy"] = "; ".join([*filter(None, [shown.get("lossy")]), *lost[:5]])
        shown.pop("typed", None)
    return shown


def late_end(step: Step, answer: Returned | Raised, setting: Setting) -> Flow:
    """Record the end of a write whose body outlived its cancelled call."""
    marks: dict[str, Any] = {}
    call = step.call
    settled = _settled(step, answer, setting, None)
    outcome, encoded = settled.outcome, settled.encoded
    if outcome["status"] == "unknown":
        return answer  # as it was recorded when its call was cut off
    if isinstance(answer, Returned):
        if len(encoded) >= LARGE:
            outcome, encoded = yield from _keep_large_value(outcome)
        if step.captured is not None:
            marks = yield from plan_late(
                call.contract, call.arguments.values, step.captured.before, answer.value, setting
            )
    if step.watch is not None and step.watch.found:
        marks = {**marks, "undeclared": step.watch.found}
    yield Resolve(step, outcome, encoded, marks)
    return answer


def _drift(contract: Contract, answer: Returned, seal: Seal) -> dict[str, Any]:
    """How an output breaks its contract, as the outcome tells it; a cut stream is none yet."""
    if contract.promise is None or answer.cut:
        return {}
    drift = contract.promise.broken_by(answer.value, seal)
    return {} if drift is None else {"drift": drift.as_data()}


def _drifted(contract: Contract, outcome: dict[str, Any]) -> Raised | None:
    """The error of an output that breaks its contract; None where none does, or it is reported."""
    drift = raised(outcome)
    if drift is None:
        return None
    return Raised(as_error(contract.name, drift, performed=contract.effect == "write"))


def _failure(step: Step, raised: Raised, setting: Setting) -> Settle:
    """How a raise ends: an error, or unknown where a write was cut off."""
    if not raised.began:
        return Settle(step, _NOT_STARTED, orjson.dumps(_NOT_STARTED))
    error = raised.error
    contract = step.call.contract
    stopped = isinstance(error, (Halt, SessionHalted))
    cut_off = not isinstance(error, Exception) or stopped
    if not cut_off and not isinstance(error, contract.raises):
        if step.world_effect:
            cut_off = leaves_unknown(error, contract.unknown_on)
        else:
            cut_off = isinstance(error, (TimeoutError, *contract.unknown_on))
    if cut_off and contract.effect == "scope":
        return Settle(step, UNKNOWN, _UNKNOWN)  # is entered again: never in doubt
    if cut_off and step.world_effect:
        why = f": it was cut off by {type(error).__name__}"
        halt = unknown(step.run, step.number, contract.name, setting.at, why=why)
        return Settle(step, UNKNOWN, _UNKNOWN, halt)
    outcome: dict[str, Any] = {
        "status": "error",
        "error": encode_exception(
            error, setting.seal, contract.known_errors, setting.types_of(contract)
        ),
    }
    return Settle(step, outcome, orjson.dumps(outcome))


# --- a recorded step -----------------------------------------------------------------------------


def _recorded(contract: Contract, entry: Entry, setting: Setting) -> Flow:
    """Give back what a recorded step gave."""
    try:
        if entry.undo is not None:
            yield from _keep_undo(entry.undo)
        outcome = entry.outcome
        if outcome["status"] == "error":
            types = setting.types_of(contract)
            return Raised(decode_exception(outcome["error"], contract.known_errors, types))
        drifted = _drifted(contract, outcome) if "drift" in outcome else None
        encoded = outcome["value"]
        if drifted is not None:
            yield from _keep_blobs([encoded])
            return drifted
        if type(encoded) in _THEMSELVES:
            return Returned(encoded, cut="cut" in outcome)
        if type(encoded) is dict and encoded.get("$rollcage") == "blob":
            blob: bytes | Raised = yield GetBlob(encoded["sha256"])
            if isinstance(blob, Raised):
                raise ValueError(str(blob.error))
            encoded = orjson.loads(blob)
        value = given_back(contract, outcome, encoded, setting.types_of(contract))
        return Returned(value, cut="cut" in outcome)
    except Exception as error:  # noqa: BLE001 - hostile data, and validators of the user's own
        # The recorded step is used up by now: whoever swallows this must not get to run it again.
        stop = NotReplayable(f"step {entry.step} of run {entry.run} ({entry.name}): {error}")
        yield Stop(stop)
        return Raised(stop)


def kept(entry: Entry) -> Flow:
    """See that what a seen step gave outlives its source; nobody needs its value."""
    try:
        if entry.undo is not None:
            yield from _keep_undo(entry.undo)
        yield from _keep_blobs(entry.outcome.get(field) for field in ("value", "answer"))
    except ValueError as error:
        stop = NotReplayable(f"step {entry.step} of run {entry.run} ({entry.name}): {error}")
        yield Stop(stop)
        return Raised(stop)
    return Returned(None)


def _keep_undo(undo: dict[str, Any]) -> Generator[Effect, Any, None]:
    """A replay outlives its source, and so does what it needs to be undone."""
    calls: list[dict[str, Any]] = undo.get("plan") or []
    for values in (undo.get("before") or {}, *(each["args"] for each in calls)):
        yield from _keep_blobs(values.values())


def _keep_blobs(values: Iterable[Any]) -> Generator[Effect, Any, None]:
    for value in values:
        if isinstance(value, dict) and value.get("$rollcage") == "blob":
            kept = yield KeepBlob(value["sha256"])
            if isinstance(kept, Raised):
                raise ValueError(str(kept.error))


def _compared(
    admission: Admission, step: Step, entry: Entry, body: Callable[..., Any], setting: Setting
) -> Flow:
    """Run a recorded read or pure call again and tell the difference; the recorded value counts."""
    contract, seal = step.call.contract, setting.seal
    types = setting.types_of(contract)
    answer: Returned | Raised = yield Execute(step, body)
    event = admission.event
    assert event is not None
    recorded = yield from _recorded(contract, entry, setting)
    if isinstance(answer, Raised):
        if not isinstance(answer.error, Exception) or not answer.began:
            return answer
        fresh: Any = encode_exception(answer.error, seal, contract.known_errors, types)
        same = entry.status == "error" and fresh == entry.outcome.get("error")
        said = f"it now raises {fresh['type']}: {fresh['message']}"
    else:
        was, now = entry.outcome.get("drift"), _drift(contract, answer, seal).get("drift")
        said = "it now gives another value"
        if now != was:
            same = False
            said = "its output now keeps its contract" if now is None else _now_drifts(now)
        elif isinstance(recorded, Returned):
            same = _same(recorded.value, answer.value, seal, types)
        else:
            same = was is not None  # broken in the same way
    if not same:
        event["drift"] = said
    yield Note(event)
    return recorded


def _now_drifts(now: dict[str, Any]) -> str:
    return f"its output now breaks its contract ({now['code']} at {now['path']}): {now['reason']}"


def _same(one: Any, other: Any, seal: Seal, types: Types) -> bool:
    """Whether two values would be recorded alike: 1 is not True, and nan is nan."""
    old, new = (encode_result(each, seal, typed=True, types=types) for each in (one, other))
    return not new.flaws and same_encoding(old.value, new.value)


# --- large values --------------------------------------------------------------------------------


def _keep_large_value(
    outcome: dict[str, Any],
) -> Generator[Effect, Any, tuple[dict[str, Any], bytes]]:
    for field in ("value", "answer"):
        data = orjson.dumps(outcome.get(field))
        if len(data) >= LARGE:
            outcome[field] = yield from keep(data)
    return outcome, orjson.dumps(outcome)
