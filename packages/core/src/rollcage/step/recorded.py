"""Recorded steps: given back to a call, compared with what a call gives now, or kept."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

import orjson

from rollcage.contract.contract import Contract
from rollcage.contract.results import given_back
from rollcage.errors import NotReplayable
from rollcage.replay.path import Entry
from rollcage.step.admission import Admission
from rollcage.step.call import OpenStep
from rollcage.step.capture import Setting
from rollcage.step.outcomes import drift_of, refused_output
from rollcage.step.requests import (
    Execute,
    Flow,
    GetBlob,
    KeepBlob,
    Note,
    Raised,
    Request,
    Returned,
    Stop,
)
from rollcage.values.codec import encode_result, same_encoding
from rollcage.values.exceptions import decode_exception, encode_exception
from rollcage.values.hiding import Seal
from rollcage.values.registered import Types

__all__ = ["compared", "give_back", "kept"]

_THEMSELVES: Final = frozenset({str, int, float, bool, type(None)})  # decoded, they are the same


def give_back(contract: Contract, entry: Entry, setting: Setting) -> Flow:
    """Give back what a recorded step gave."""
    try:
        if entry.undo is not None:
            yield from _keep_undo(entry.undo)
        outcome = entry.outcome
        if outcome["status"] == "error":
            types = setting.types_of(contract)
            return Raised(decode_exception(outcome["error"], contract.known_errors, types))
        drifted = refused_output(contract, outcome) if "drift" in outcome else None
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
        # The recorded step is used up: whoever swallows this error must not run it again.
        stop = NotReplayable(f"step {entry.step} of run {entry.run} ({entry.name}): {error}")
        yield Stop(stop)
        return Raised(stop)


def compared(
    admission: Admission, step: OpenStep, entry: Entry, body: Callable[..., Any], setting: Setting
) -> Flow:
    """Run a recorded read or pure call again, report a difference; the recorded value counts."""
    contract, seal = step.call.contract, setting.seal
    types = setting.types_of(contract)
    answer: Returned | Raised = yield Execute(step, body)
    event = admission.event
    assert event is not None
    recorded = yield from give_back(contract, entry, setting)
    if isinstance(answer, Raised):
        if not isinstance(answer.error, Exception) or not answer.began:
            return answer
        fresh: Any = encode_exception(answer.error, seal, contract.known_errors, types)
        same = entry.status == "error" and fresh == entry.outcome.get("error")
        drift = f"it now raises {fresh['type']}: {fresh['message']}"
    else:
        was, now = entry.outcome.get("drift"), drift_of(contract, answer, seal).get("drift")
        drift = "it now gives another value"
        if now != was:
            same = False
            drift = "its output now keeps its contract" if now is None else _now_drifts(now)
        elif isinstance(recorded, Returned):
            same = _same(recorded.value, answer.value, seal, types)
        else:
            same = was is not None  # broken in the same way
    if not same:
        event["drift"] = drift
    yield Note(event)
    return recorded


def _now_drifts(now: dict[str, Any]) -> str:
    return f"its output now breaks its contract ({now['code']} at {now['path']}): {now['reason']}"


def _same(one: Any, other: Any, seal: Seal, types: Types) -> bool:
    """Whether two values would be recorded alike: 1 is not True, and nan is nan."""
    old, new = (encode_result(each, seal, typed=True, types=types) for each in (one, other))
    return not new.flaws and same_encoding(old.value, new.value)


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


def _keep_undo(undo: dict[str, Any]) -> Generator[Request, Any, None]:
    """A replay outlives its source, and so does what it needs to be undone."""
    calls: list[dict[str, Any]] = undo.get("plan") or []
    for values in (undo.get("before") or {}, *(each["args"] for each in calls)):
        yield from _keep_blobs(values.values())


def _keep_blobs(values: Iterable[Any]) -> Generator[Request, Any, None]:
    for value in values:
        if isinstance(value, dict) and value.get("$rollcage") == "blob":
            kept = yield KeepBlob(value["sha256"])
            if isinstance(kept, Raised):
                raise ValueError(str(kept.error))
