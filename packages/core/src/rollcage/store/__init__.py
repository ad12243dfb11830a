"""Where runs are kept: one protocol, and the stores that follow it."""

from rollcage.store.index import Repair
from rollcage.store.jobs import job_name, newest_run, store_option
from rollcage.store.jsonl import JsonlStore, open_trace
from rollcage.store.protocol import (
    Lock,
    Reader,
    RunInfo,
    RunTrace,
    StopOrder,
    Store,
    Writer,
    check_attested,
    is_run_id,
)
from rollcage.store.tracefile import TraceFile

__all__ = [
    "JsonlStore",
    "Lock",
    "Reader",
    "Repair",
    "RunInfo",
    "RunTrace",
    "StopOrder",
    "Store",
    "TraceFile",
    "Writer",
    "check_attested",
    "is_run_id",
    "job_name",
    "newest_run",
    "open_trace",
    "store_option",
]
