"""The heart: a run is the fold of its log.

Read it in this order: `run` (the fold), `walk` (where an attempt stands, and which step answers a
call), `attempt` (a call begins, its body runs, it ends), `session` (the public face), `undo`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rollcage.heart.block import BranchHandle, Transaction, TurnHandle
from rollcage.heart.declare import CurrentStep, current_step, tool
from rollcage.heart.finished import aplan_undo, aundo_run, plan_undo, undo_run
from rollcage.heart.fork import Fork
from rollcage.heart.options import Options
from rollcage.heart.resolving import abandon_run, leave_behind, resolve_step
from rollcage.heart.session import Session
from rollcage.heart.stage import Guard, Stage
from rollcage.heart.store import Log, Store, drop, every_key, open_store, store_option
from rollcage.trace.told import Instrument, Observer, RunEvent, StepEvent
from rollcage.undo.compensation import compensate

if TYPE_CHECKING:
    from rollcage.heart.attempt import Attempt, Stats
    from rollcage.heart.beginning import refuse
    from rollcage.heart.call import Call, Match, Place, here
    from rollcage.heart.declared import contract_of
    from rollcage.heart.gate import RunSoFar
    from rollcage.heart.listing import RunInfo, all_runs, list_runs, newest_run, run_info
    from rollcage.heart.log import parse
    from rollcage.heart.matching import find_match
    from rollcage.heart.opening import OVER
    from rollcage.heart.places import (
        DEFAULT_NAME,
        is_database,
        is_linked,
        is_store,
        is_store_file,
    )
    from rollcage.heart.reading import fold_log
    from rollcage.heart.run import CHANGES, Event, Outcome, Run, Step, fold_lines
    from rollcage.heart.seal import StoreSeal
    from rollcage.heart.session import BODY_CALLERS
    from rollcage.heart.stage import Work
    from rollcage.heart.stages.observing import recorded_events
    from rollcage.heart.stages.orders import Order, lift_order, order_of, pause_run, stop_run
    from rollcage.heart.stages.queue import ApprovalQueue, Decision, QueueApprover
    from rollcage.heart.trace import LogTrace, trace_of

__all__ = [
    "BODY_CALLERS",
    "CHANGES",
    "DEFAULT_NAME",
    "OVER",
    "ApprovalQueue",
    "Attempt",
    "BranchHandle",
    "Call",
    "CurrentStep",
    "Decision",
    "Event",
    "Fork",
    "Guard",
    "Instrument",
    "Log",
    "LogTrace",
    "Match",
    "Observer",
    "Options",
    "Order",
    "Outcome",
    "Place",
    "QueueApprover",
    "Run",
    "RunEvent",
    "RunInfo",
    "RunSoFar",
    "Session",
    "Stage",
    "Stats",
    "Step",
    "StepEvent",
    "Store",
    "StoreSeal",
    "Transaction",
    "TurnHandle",
    "Work",
    "abandon_run",
    "all_runs",
    "aplan_undo",
    "aundo_run",
    "compensate",
    "contract_of",
    "current_step",
    "drop",
    "every_key",
    "find_match",
    "fold_lines",
    "fold_log",
    "here",
    "is_database",
    "is_linked",
    "is_store",
    "is_store_file",
    "leave_behind",
    "lift_order",
    "list_runs",
    "newest_run",
    "open_store",
    "order_of",
    "parse",
    "pause_run",
    "plan_undo",
    "recorded_events",
    "refuse",
    "resolve_step",
    "run_info",
    "stop_run",
    "store_option",
    "tool",
    "trace_of",
    "undo_run",
]  # fmt: skip

_LATE: Final = {
    "BODY_CALLERS": "session",
    "fold_log": "reading",
    "OVER": "opening",
    "RunSoFar": "gate",
    "refuse": "beginning",
    "find_match": "matching",
    "Work": "stage",
    "Outcome": "run",
    "Event": "run",
    "here": "call",
    "CHANGES": "run",
    "DEFAULT_NAME": "places",
    "is_database": "places",
    "is_linked": "places",
    "is_store": "places",
    "is_store_file": "places",
    "contract_of": "declared",
    "Match": "call",
    "Place": "call",
    "Stats": "attempt",
    "Call": "call",
    "Attempt": "attempt",
    "ApprovalQueue": "stages.queue",
    "Decision": "stages.queue",
    "LogTrace": "trace",
    "Order": "stages.orders",
    "QueueApprover": "stages.queue",
    "Run": "run",
    "RunInfo": "listing",
    "Step": "run",
    "StoreSeal": "seal",
    "all_runs": "listing",
    "fold_lines": "run",
    "lift_order": "stages.orders",
    "list_runs": "listing",
    "newest_run": "listing",
    "order_of": "stages.orders",
    "parse": "log",
    "pause_run": "stages.orders",
    "recorded_events": "stages.observing",
    "run_info": "listing",
    "stop_run": "stages.orders",
    "trace_of": "trace",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found
