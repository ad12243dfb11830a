"""Record runs: their events and logs, how logs are read and checked, and the stores that keep them.

`read_run(trace_of(store, run))` folds a log to a `Run` with its `Step`s.
"""

from typing import TYPE_CHECKING

from rollcage.fingerprint.identity import jcs, key_digest
from rollcage.values.codec import TAG, encode, encode_result
from rollcage.values.decoding import decode
from rollcage.values.exceptions import decode_exception
from rollcage.values.hiding import STAND_IN
from rollcage.values.late import imported_late

if TYPE_CHECKING:
    from rollcage.trace.events import FORMAT, event_adapter, json_schema
    from rollcage.trace.logs import read_run
    from rollcage.trace.reader import check_events, read_events
    from rollcage.trace.runs import AskedApproval, Attempt, RefusedCall, Run
    from rollcage.trace.step import STATES, State, Step

__all__ = [
    "FORMAT",
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

__getattr__ = imported_late(
    __name__,
    {
        "trace.events": ["FORMAT", "event_adapter", "json_schema"],
        "trace.logs": ["read_run"],
        "trace.reader": ["check_events", "read_events"],
        "trace.runs": ["AskedApproval", "Attempt", "RefusedCall", "Run"],
        "trace.step": ["STATES", "State", "Step"],
    },
)
