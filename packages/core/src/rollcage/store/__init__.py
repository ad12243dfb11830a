"""Where runs are kept: one protocol, and the stores that follow it."""

from rollcage.store.at_once import look
from rollcage.store.jobs import job_name, newest_run, store_option, without_password
from rollcage.store.jsonl import JsonlStore, open_trace
from rollcage.store.layout import DEFAULT_NAME, is_database, is_linked, is_store, is_store_file
from rollcage.store.pausing import pause_run, paused_by, unpause_run
from rollcage.store.protocol import (
    Line,
    Lock,
    Log,
    OrderKind,
    Pruned,
    Reader,
    Repair,
    RunInfo,
    RunTrace,
    StopOrder,
    Store,
    Writer,
    check_attested,
    is_run_id,
)
from rollcage.store.stopping import lift_stop, stop_run, stopped_by
from rollcage.store.tracefile import TraceFile
from rollcage.store.url import open_store

__all__ = [
    "DEFAULT_NAME",
    "JsonlStore",
    "Line",
    "Lock",
    "Log",
    "OrderKind",
    "Pruned",
    "Reader",
    "Repair",
    "RunInfo",
    "RunTrace",
    "StopOrder",
    "Store",
    "TraceFile",
    "Writer",
    "check_attested",
    "is_database",
    "is_linked",
    "is_run_id",
    "is_store",
    "is_store_file",
    "job_name",
    "lift_stop",
    "look",
    "newest_run",
    "open_store",
    "open_trace",
    "pause_run",
    "paused_by",
    "stop_run",
    "stopped_by",
    "store_option",
    "unpause_run",
    "without_password",
]
