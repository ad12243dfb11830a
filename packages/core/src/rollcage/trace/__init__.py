"""Record runs: their events and logs, how logs are checked, and the stores that keep them."""

from typing import TYPE_CHECKING

from rollcage.fingerprint.identity import jcs, key_digest
from rollcage.values.answer import tokens_of
from rollcage.values.codec import TAG, encode, encode_result
from rollcage.values.decoding import decode
from rollcage.values.exceptions import decode_exception
from rollcage.values.hiding import STAND_IN
from rollcage.values.late import imported_late

if TYPE_CHECKING:
    from rollcage.trace.events import FORMAT, event_adapter, json_schema
    from rollcage.trace.reader import check_events, read_events

__all__ = [
    "FORMAT",
    "STAND_IN",
    "TAG",
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
    "tokens_of",
]

__getattr__ = imported_late(
    __name__,
    {
        "trace.events": ["FORMAT", "event_adapter", "json_schema"],
        "trace.reader": ["check_events", "read_events"],
    },
)
