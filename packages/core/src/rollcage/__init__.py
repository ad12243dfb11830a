"""Rollcage: every tool and model call fingerprinted, gated, traced and replayable.

::

    from rollcage import Session, tool


    @tool(effect="write")
    def send_mail(to: str, text: str) -> str: ...


    with Session("weekly report", store="./.rollcage"):
        send_mail("ann@example.org", "Hello")

Run it again after a crash: what happened is given back from the trace, the rest runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rollcage.errors import (
    ApprovalCorrupt,
    ApprovalInvalid,
    ApprovalRequired,
    ArgumentsInvalid,
    Blocked,
    CaptureFailed,
    ContractError,
    ControlLost,
    DetectorMissing,
    Diverged,
    FacadeMissing,
    Fenced,
    Forked,
    ForkEnded,
    GovernanceError,
    Halt,
    NotReplayable,
    NotReplayableWarning,
    OrderRefused,
    OutputDrift,
    PackageMissing,
    PermissionUndeclared,
    PlanChanged,
    PolicyInvalid,
    RegistryCorrupt,
    ReplayedError,
    ReplayMiss,
    RollcageError,
    RunAbandoned,
    RunConflict,
    RunElsewhere,
    RunInUse,
    RunNotFound,
    RunPruned,
    RunStopped,
    RunTooOld,
    SessionError,
    SessionHalted,
    SourceMissing,
    StepNotFound,
    StepNotUnknown,
    StoreError,
    StoreInvalid,
    StoreReadOnly,
    ToolMissing,
    ToolRefused,
    TraceCorrupt,
    TraceUnwritable,
    UndoIncomplete,
    Unencodable,
    UnguardedCallWarning,
    UnknownOutcome,
)

if TYPE_CHECKING:
    from rollcage.contract.contract import Contract
    from rollcage.gate import (
        Approval,
        ApprovalRequest,
        Approver,
        ConsoleApprover,
        Response,
        Rule,
        StepView,
        Verdict,
    )
    from rollcage.heart.attempt import Stats
    from rollcage.heart.block import BranchHandle, Transaction, TurnHandle
    from rollcage.heart.clock import Clock
    from rollcage.heart.declare import CurrentStep, current_step, tool
    from rollcage.heart.finished import aplan_undo, aundo_run, plan_undo, undo_run
    from rollcage.heart.fork import Fork
    from rollcage.heart.listing import RunInfo, all_runs, list_runs, newest_run, run_info
    from rollcage.heart.options import Options
    from rollcage.heart.resolving import abandon_run, leave_behind, resolve_step
    from rollcage.heart.session import Session
    from rollcage.heart.stage import Guard, Stage
    from rollcage.heart.stages.observing import recorded_events
    from rollcage.heart.stages.orders import lift_order, order_of, pause_run, stop_run
    from rollcage.heart.stages.queue import ApprovalQueue, QueueApprover
    from rollcage.heart.stages.secrets import Secrets
    from rollcage.heart.store import Store, open_store
    from rollcage.trace.told import Instrument, Observer, RunEvent, StepEvent
    from rollcage.undo.compensation import (
        Compensation,
        DidNotHappen,
        Happened,
        PlannedCall,
        compensate,
    )
    from rollcage.undo.report import PlannedStep, UndoneStep, UndoPlan, UndoReport
    from rollcage.values.natives import register_native
    from rollcage.values.registered import register

__all__ = [
    "Approval",
    "ApprovalCorrupt",
    "ApprovalInvalid",
    "ApprovalQueue",
    "ApprovalRequest",
    "ApprovalRequired",
    "Approver",
    "ArgumentsInvalid",
    "Blocked",
    "BranchHandle",
    "CaptureFailed",
    "Clock",
    "Compensation",
    "ConsoleApprover",
    "Contract",
    "ContractError",
    "ControlLost",
    "CurrentStep",
    "DetectorMissing",
    "DidNotHappen",
    "Diverged",
    "FacadeMissing",
    "Fenced",
    "Fork",
    "ForkEnded",
    "Forked",
    "GovernanceError",
    "Guard",
    "Halt",
    "Happened",
    "Instrument",
    "NotReplayable",
    "NotReplayableWarning",
    "Observer",
    "Options",
    "OrderRefused",
    "OutputDrift",
    "PackageMissing",
    "PermissionUndeclared",
    "PlanChanged",
    "PlannedCall",
    "PlannedStep",
    "PolicyInvalid",
    "QueueApprover",
    "RegistryCorrupt",
    "ReplayMiss",
    "ReplayedError",
    "Response",
    "RollcageError",
    "Rule",
    "RunAbandoned",
    "RunConflict",
    "RunElsewhere",
    "RunEvent",
    "RunInUse",
    "RunInfo",
    "RunNotFound",
    "RunPruned",
    "RunStopped",
    "RunTooOld",
    "Secrets",
    "Session",
    "SessionError",
    "SessionHalted",
    "SourceMissing",
    "Stage",
    "Stats",
    "StepEvent",
    "StepNotFound",
    "StepNotUnknown",
    "StepView",
    "Store",
    "StoreError",
    "StoreInvalid",
    "StoreReadOnly",
    "ToolMissing",
    "ToolRefused",
    "TraceCorrupt",
    "TraceUnwritable",
    "Transaction",
    "TurnHandle",
    "UndoIncomplete",
    "UndoPlan",
    "UndoReport",
    "UndoneStep",
    "Unencodable",
    "UnguardedCallWarning",
    "UnknownOutcome",
    "Verdict",
    "abandon_run",
    "all_runs",
    "aplan_undo",
    "aundo_run",
    "compensate",
    "current_step",
    "leave_behind",
    "lift_order",
    "list_runs",
    "newest_run",
    "open_store",
    "order_of",
    "pause_run",
    "plan_undo",
    "recorded_events",
    "register",
    "register_native",
    "resolve_step",
    "run_info",
    "stop_run",
    "tool",
    "undo_run",
]

_LATE: Final = {
    "Contract": "contract.contract",
    "Approval": "gate",
    "ApprovalRequest": "gate",
    "Approver": "gate",
    "ConsoleApprover": "gate",
    "Response": "gate",
    "Rule": "gate",
    "StepView": "gate",
    "Verdict": "gate",
    "Stats": "heart.attempt",
    "BranchHandle": "heart.block",
    "Transaction": "heart.block",
    "TurnHandle": "heart.block",
    "CurrentStep": "heart.declare",
    "current_step": "heart.declare",
    "tool": "heart.declare",
    "aplan_undo": "heart.finished",
    "aundo_run": "heart.finished",
    "plan_undo": "heart.finished",
    "undo_run": "heart.finished",
    "Fork": "heart.fork",
    "RunInfo": "heart.listing",
    "all_runs": "heart.listing",
    "list_runs": "heart.listing",
    "newest_run": "heart.listing",
    "run_info": "heart.listing",
    "Options": "heart.options",
    "abandon_run": "heart.resolving",
    "leave_behind": "heart.resolving",
    "resolve_step": "heart.resolving",
    "Session": "heart.session",
    "Guard": "heart.stage",
    "Stage": "heart.stage",
    "recorded_events": "heart.stages.observing",
    "lift_order": "heart.stages.orders",
    "order_of": "heart.stages.orders",
    "pause_run": "heart.stages.orders",
    "stop_run": "heart.stages.orders",
    "Secrets": "heart.stages.secrets",
    "ApprovalQueue": "heart.stages.queue",
    "QueueApprover": "heart.stages.queue",
    "Store": "heart.store",
    "open_store": "heart.store",
    "Clock": "heart.clock",
    "Instrument": "trace.told",
    "Observer": "trace.told",
    "RunEvent": "trace.told",
    "StepEvent": "trace.told",
    "Compensation": "undo.compensation",
    "DidNotHappen": "undo.compensation",
    "Happened": "undo.compensation",
    "PlannedCall": "undo.compensation",
    "compensate": "undo.compensation",
    "PlannedStep": "undo.report",
    "UndoPlan": "undo.report",
    "UndoReport": "undo.report",
    "UndoneStep": "undo.report",
    "register": "values.registered",
    "register_native": "values.natives",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found
