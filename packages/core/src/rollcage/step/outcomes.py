"""How the body of a step has ended: what is recorded of it, and what its caller gets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Any, Final

import orjson

from rollcage.contract.contract import Contract
from rollcage.contract.drift import as_error, raised
from rollcage.contract.results import recorded, warn_of
from rollcage.contract.unknown_errors import leaves_unknown
from rollcage.errors import Halt, SessionHalted
from rollcage.replay.path import UNKNOWN
from rollcage.step.call import Call, OpenStep
from rollcage.step.capture import LARGE, Setting, keep, plan_late, settled_marks
from rollcage.step.halts import unknown
from rollcage.step.requests import Flow, Raised, Request, Resolve, Returned, Settle
from rollcage.values.answer import Answer
from rollcage.values.exceptions import describe_error, encode_exception
from rollcage.values.hiding import Hiding, Seal, hidden
from rollcage.values.survey import survey

__all__ = [
    "NOT_STARTED", "Read", "answer_on_record", "drift_of", "ended", "keep_large_value",
    "kept_whole", "late_end", "outcome_of", "refused_output",
]  # fmt: skip

_log: Final = logging.getLogger("rollcage")

NOT_STARTED: Final[dict[str, Any]] = {"status": "not_started"}
_UNKNOWN: Final = orjson.dumps(UNKNOWN)
_QUOTING: Final = ("value", "answer", "drift", "lossy")  # parts of an outcome: a tool's own words

Read = Callable[[Any], Answer]
"""Reads what a model answered off the framework's own value."""


def ended(step: OpenStep, answer: Returned | Raised, setting: Setting, read: Read | None) -> Settle:
    """How a step has ended."""
    if isinstance(answer, Raised):
        settled = _failure(step, answer, setting)
    else:
        outcome, encoded = outcome_of(step.call.contract, answer, setting, read)
        settled = Settle(step, outcome, encoded)
    if step.watch is not None and step.watch.found:
        settled.marks = {"undeclared": step.watch.found}
    return settled


def outcome_of(
    contract: Contract, answer: Returned, setting: Setting, read: Read | None
) -> tuple[dict[str, Any], bytes]:
    """The outcome `ok`, and its bytes."""
    value, seal = answer.value, setting.seal
    outcome: dict[str, Any] = {"status": "ok", "value": value}
    encoded: bytes | None = None
    if contract.promise is not None and not answer.cut:
        drift = contract.promise.broken_by(value, seal)
        if drift is not None:
            outcome["drift"] = drift.as_data()
    if answer.cut:
        outcome["cut"] = True
    if read is not None:
        try:
            answered = read(value)
        except Exception as error:  # noqa: BLE001 - an adapter's own code must not lose the outcome
            _log.error(
                "the answer of %s can't be read: %s", contract.name, describe_error(error, seal)
            )
        else:
            outcome["answer"] = answered.as_data()
            if answered.usage:
                outcome["usage"] = dict(answered.usage)
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


def _failure(step: OpenStep, raised: Raised, setting: Setting) -> Settle:
    """How a step ends that raised: with an error, or unknown if a write was cut off."""
    if not raised.began:
        return Settle(step, NOT_STARTED, orjson.dumps(NOT_STARTED))
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
        return Settle(step, UNKNOWN, _UNKNOWN)  # is entered again: its outcome is never unknown
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


def _without_secrets(outcome: dict[str, Any], seal: Seal) -> dict[str, Any]:
    """The outcome as the trace may hold it; a value that lost a secret can't be replayed."""
    parts = {each: hidden(outcome[each], seal) for each in _QUOTING if each in outcome}
    if not any(each.found for each in parts.values()):
        return outcome
    shown = outcome | {name: each.value for name, each in parts.items()}
    if lost := parts["value"].found:
        shown["lossy"] = "; ".join([*filter(None, [shown.get("lossy")]), *lost[:5]])
        shown.pop("typed", None)
    return shown


def drift_of(contract: Contract, answer: Returned, seal: Seal) -> dict[str, Any]:
    """How an output breaks its contract, as the outcome has it; of a cut stream, nothing."""
    if contract.promise is None or answer.cut:
        return {}
    drift = contract.promise.broken_by(answer.value, seal)
    return {} if drift is None else {"drift": drift.as_data()}


def refused_output(contract: Contract, outcome: dict[str, Any]) -> Raised | None:
    """The error of an output that breaks its contract; None if it does not, or is only reported."""
    drift = raised(outcome)
    if drift is None:
        return None
    return Raised(as_error(contract.name, drift, performed=contract.effect == "write"))


def kept_whole(settled: Settle, answer: Returned | Raised, setting: Setting) -> Flow:
    """Keep a large value, and what a step that may have to be undone has changed."""
    step, status = settled.step, settled.outcome["status"]
    if status == "ok" and len(settled.encoded) >= LARGE:
        settled.outcome, settled.encoded = yield from keep_large_value(settled.outcome)
    if step.captured is not None and status in ("ok", "error"):
        marks, interrupt = yield from settled_marks(step, answer, setting)
        settled.marks = marks | (settled.marks or {})
        if interrupt is not None:
            return Raised(interrupt)
    return answer


def keep_large_value(
    outcome: dict[str, Any],
) -> Generator[Request, Any, tuple[dict[str, Any], bytes]]:
    """An outcome, and its bytes, whose large parts are kept as blobs."""
    for field in ("value", "answer"):
        data = orjson.dumps(outcome.get(field))
        if len(data) >= LARGE:
            outcome[field] = yield from keep(data)
    return outcome, orjson.dumps(outcome)


def answer_on_record(
    call: Call, outcome: dict[str, Any], answer: Returned | Raised
) -> Returned | Raised:
    """What the caller gets of a recorded call: an error if its output is refused."""
    contract = call.contract
    if isinstance(answer, Raised):
        return answer
    drifted = refused_output(contract, outcome) if "drift" in outcome else None
    if drifted is not None or "lossy" not in outcome or call.undoes is not None:
        return drifted or answer  # nobody asks for the value of a compensating call
    warning = warn_of(contract, outcome)
    return answer if warning is None else Raised(warning)


def late_end(step: OpenStep, answer: Returned | Raised, setting: Setting) -> Flow:
    """Record the end of a write whose body outlived its cancelled call."""
    marks: dict[str, Any] = {}
    call = step.call
    settled = ended(step, answer, setting, None)
    outcome, encoded = settled.outcome, settled.encoded
    if outcome["status"] == "unknown":
        return answer  # as it was recorded when its call was cut off
    if isinstance(answer, Returned):
        if len(encoded) >= LARGE:
            outcome, encoded = yield from keep_large_value(outcome)
        if step.captured is not None:
            marks = yield from plan_late(
                call.contract, call.arguments.values, step.captured.before, answer.value, setting
            )
    if step.watch is not None and step.watch.found:
        marks = {**marks, "undeclared": step.watch.found}
    yield Resolve(step, outcome, encoded, marks)
    return answer
