"""Record runs: their events and logs, how logs are read and checked, and the stores that keep them.

`read_run(trace_of(store, run))` folds a log to a `Run` with its `Step`s.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rollcage.fingerprint.identity import jcs, key_digest
from rollcage.values.codec import TAG, encode, encode_result
from rollcage.values.decoding import decode
from rollcage.values.exceptions import decode_exception
from rollcage.values.hiding import STAND_IN

if TYPE_CHECKING:
    from rollcage.trace.events import FORMAT, event_adapter, json_schema
    from rollcage.trace.logs import read_run
    from rollcage.trace.reader import check_events, read_events
    from rollcage.trace.runs import AskedApproval, Attempt, RefusedCall, Run
    from rollcage.trace.step import REPLAYED, STATES, State, Step

__all__ = [
    "FORMAT",
    "REPLAYED",
    "STAND_IN",
    "STATES",
    "TAG",
    "AskedApproval",
    "Attempt",
    "RefusedCall",
    "Run",
    "State",
    "Step",
    "check_events",
    "decode",
    "decode_exception",
    "encode",
    "encode_result",
    "event_adapter",
    "jcs",
    "json_schema",
    "key_digest",
    "read_events",
    "read_run",
]

_LATE: Final = {
    "FORMAT": "events",
    "event_adapter": "events",
    "json_schema": "events",
    "read_run": "logs",
    "check_events": "reader",
    "read_events": "reader",
    "AskedApproval": "runs",
    "Attempt": "runs",
    "RefusedCall": "runs",
    "Run": "runs",
    "REPLAYED": "step",
    "STATES": "step",
    "State": "step",
    "Step": "step",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found
