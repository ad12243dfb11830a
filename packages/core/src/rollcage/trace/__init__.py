"""The trace: its events, the encoding of values, and how it is read and checked.

`read_run(store.read(run))` folds a trace to a `Run` with its `Step`s.
"""

from rollcage.fingerprint.identity import jcs, key_digest
from rollcage.trace.constructors import step_resolved
from rollcage.trace.events import (
    CHAIN_START,
    FORMAT,
    LOG_FORMAT,
    event_adapter,
    json_schema,
    seal_line,
)
from rollcage.trace.reader import Tail, check_events, is_log, read_events, split_tail, tail_of
from rollcage.trace.runs import (
    AskedApproval,
    Attempt,
    RefusedCall,
    Run,
    Totals,
    Traced,
    fold,
    read_run,
)
from rollcage.trace.step import REPLAYED, STATES, State, Step
from rollcage.trace.worlds import Worlds
from rollcage.values.codec import TAG, encode, encode_result
from rollcage.values.decoding import decode
from rollcage.values.exceptions import decode_exception, encode_exception
from rollcage.values.hiding import STAND_IN
from rollcage.values.natives import Native, register_native

__all__ = [
    "CHAIN_START",
    "FORMAT",
    "LOG_FORMAT",
    "REPLAYED",
    "STAND_IN",
    "STATES",
    "TAG",
    "AskedApproval",
    "Attempt",
    "Native",
    "RefusedCall",
    "Run",
    "State",
    "Step",
    "Tail",
    "Totals",
    "Traced",
    "Worlds",
    "check_events",
    "decode",
    "decode_exception",
    "encode",
    "encode_exception",
    "encode_result",
    "event_adapter",
    "fold",
    "is_log",
    "jcs",
    "json_schema",
    "key_digest",
    "read_events",
    "read_run",
    "register_native",
    "seal_line",
    "split_tail",
    "step_resolved",
    "tail_of",
]
