"""Encode how a call ended, and give back the recorded value or error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from rollcage.contract.contract import Contract
from rollcage.contract.drift import as_error, raised
from rollcage.contract.results import given_back, recorded
from rollcage.contract.unknown_errors import leaves_unknown
from rollcage.errors import Halt, NotReplayable, OutputDrift, SessionHalted, TraceCorrupt
from rollcage.trace.run import Outcome, Step
from rollcage.values.answer import Answer
from rollcage.values.exceptions import decode_exception, describe_error, encode_exception
from rollcage.values.hiding import Hiding, Seal
from rollcage.values.registered import Types
from rollcage.values.survey import survey

__all__ = ["LARGE", "Read", "answered", "failure", "given", "refused", "says_lost", "success"]

_log: Final = logging.getLogger("rollcage")
_tuple: Final = tuple.__new__  # makes a named tuple without a call of Python's

_NOTHING: Final[Mapping[str, Any]] = {}

LARGE: Final = 64 * 1024  # bytes from which a value is kept beside the log

Keep = Callable[[bytes], dict[str, Any]]
"""Keeps large bytes beside the log; returns the reference."""

Read = Callable[[Any], Answer]
"""Extracts a model's answer from the framework's own value."""


def success(
    contract: Contract, value: Any, seal: Seal, types: Types, more: Mapping[str, Any] = _NOTHING
) -> Outcome:
    """Return the outcome of a call that returned a value. `more`: further fields."""
    outcome: dict[str, Any] = {"status": "ok", "value": value}
    promise = contract.promise
    hides = isinstance(seal, Hiding) and not seal.idle
    if type(value) is str and not hides and (promise is None or promise.is_of_text):
        if more:
            outcome.update(more)
        try:
            return _tuple(Outcome, ("ok", orjson.dumps(outcome), False, False))
        except TypeError:  # a lone surrogate
            pass
    if promise is not None and "cut" not in more:
        drift = promise.broken_by(value, seal)
        if drift is not None:
            outcome["drift"] = drift.as_data()
    if more:
        outcome.update(more)
    try:
        if not hides and survey(value):
            return Outcome("ok", orjson.dumps(outcome), flawed="drift" in outcome or "cut" in more)
    except (TypeError, RecursionError):  # a lone surrogate, or too deep for JSON: encoded below
        pass
    outcome.update(recorded(contract, value, seal, _types_of(contract, types)))
    if isinstance(seal, Hiding) and not seal.idle:  # to encode it may have shown a secret first
        kept = seal.hide(outcome["value"])
        if kept.found:
            flaws = filter(None, (outcome.get("lossy"), *kept.found[:5]))
            outcome.update(value=kept.value, lossy="; ".join(flaws))
    flawed = "drift" in outcome or "lossy" in outcome or "cut" in more
    return Outcome("ok", orjson.dumps(outcome), flawed=flawed)


def answered(contract: Contract, read: Read, value: Any, seal: Seal) -> dict[str, Any]:
    """Return a model's answer, as fields of its outcome: `answer`, and `usage` if counted.

    Any framework and reader understands these; the value is the framework's own.
    """
    try:
        answer = read(value)
        fields: dict[str, Any] = {"answer": answer.as_data()}
        if answer.usage:
            fields["usage"] = dict(answer.usage)
    except Exception as error:  # noqa: BLE001 - an adapter's own code must not lose the outcome
        said = describe_error(error, seal)
        _log.error("the answer of %s can't be read: %s", contract.name, said)
        return {}
    return fields


def failure(
    contract: Contract, error: BaseException, seal: Seal, types: Types, *, unclear: bool
) -> Outcome:
    """Return the outcome of a call that raised; `unclear`: its effect may have happened in part."""
    encoded = encode_exception(error, seal, contract.known_errors, _types_of(contract, types))
    outcome: dict[str, Any] = {"status": "error", "error": encoded}
    if unclear:
        outcome["unclear"] = True
    return Outcome("error", orjson.dumps(outcome), unclear)


def _types_of(contract: Contract, types: Types) -> Types:
    """Return the types for restoring values of a call, the types in its contract included."""
    return Types((), contract.types, types)


def says_lost(contract: Contract, error: BaseException) -> bool:
    """Tell whether an error leaves open if the effect of a write happened.

    The write was cut off, or its answer got lost: see `rollcage.contract.unknown_errors`.
    """
    if isinstance(error, contract.raises):
        return False
    if not isinstance(error, Exception) or isinstance(error, (Halt, SessionHalted)):
        return True
    return leaves_unknown(error, contract.unknown_on)


def given(contract: Contract, step: Step, types: Types, fetch: Callable[[str], bytes]) -> Any:
    """Return the recorded value of a step, or raise its error.

    Args:
        contract: the contract of the answered call.
        step: the recorded step.
        types: the application's types for restoring values.
        fetch: gets bytes kept beside the log, by digest.

    Raises:
        NotReplayable: the result can't be restored.
        Exception: the recorded error.
    """
    outcome = step.result
    if outcome["status"] == "error":
        types = _types_of(contract, types)
        try:
            error = decode_exception(outcome["error"], contract.known_errors, types)
        except (KeyError, ValueError, TypeError) as bad:
            raise TraceCorrupt(f"step {step.n}", 0, f"its error can't be read: {bad}") from None
        raise error
    drift = refused(contract, outcome) if step.flawed else None
    if drift is not None:
        raise drift
    if "lossy" in outcome:
        raise NotReplayable(
            f"step {step.n} ({step.name}) was performed, but its result can't be given back: "
            f"{outcome['lossy']}"
        )
    try:
        encoded = outcome["value"]
        if type(encoded) is str and not contract.streams:
            return encoded
        if type(encoded) is dict and encoded.get("$rollcage") == "blob":
            encoded = orjson.loads(fetch(encoded["sha256"]))
        if contract.streams and not isinstance(encoded, list):
            raise NotReplayable(f"step {step.n} ({step.name}) is a stream: its result is a list")
        if survey(encoded):
            return encoded
        return given_back(contract, outcome, encoded, _types_of(contract, types))
    except NotReplayable:
        raise
    except Exception as error:
        raise NotReplayable(
            f"step {step.n} ({step.name}) can't be given back: {type(error).__name__}: {error}"
        ) from error


def refused(contract: Contract, outcome: dict[str, Any]) -> OutputDrift | None:
    """Return the error of an output that breaks its contract; None if the output is passed on."""
    drift = raised(outcome) if "drift" in outcome else None
    if drift is None:
        return None
    return as_error(contract.name, drift, performed=contract.effect == "write")
