"""Rollcage: every tool and model call fingerprinted, gated, traced and replayable.

::

    from rollcage import Session, tool


    @tool(effect="write")
    def send_mail(to: str, text: str) -> str: ...


    with Session("weekly report", store="./.rollcage"):
        send_mail("ann@example.org", "Hello")

Run it again after a crash: what happened is given back from the trace, the rest runs.
"""

from typing import TYPE_CHECKING

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
    ReplayedCancellation,
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
from rollcage.values.late import imported_late

if TYPE_CHECKING:
    from rollcage.calls.attempt import Stats
    from rollcage.calls.beginning import refuse
    from rollcage.calls.block import BranchHandle, Transaction, TurnHandle
    from rollcage.calls.stage import Guard, Stage
    from rollcage.contract.compensation import (
        Compensation,
        DidNotHappen,
        Happened,
        PlannedCall,
        compensate,
    )
    from rollcage.contract.contract import Contract
    from rollcage.gate import (
        Approval,
        ApprovalRequest,
        Approver,
        Response,
        Rule,
        StepView,
        Verdict,
    )
    from rollcage.session.declare import CurrentStep, current_step, tool
    from rollcage.session.options import Clock, Options
    from rollcage.session.session import Session
    from rollcage.session.undoing import aplan_undo, aundo_run, plan_undo, undo_run
    from rollcage.stages.observing import recorded_events
    from rollcage.stages.orders import lift_order, order_of, pause_run, stop_run
    from rollcage.stages.queue import ApprovalQueue, QueueApprover
    from rollcage.stages.secrets import Secrets
    from rollcage.trace.listing import RunInfo, all_runs, list_runs, newest_run, run_info
    from rollcage.trace.resolution import abandon_run, leave_behind, resolve_step
    from rollcage.trace.store import Store, open_store
    from rollcage.trace.told import Instrument, Observer, RunEvent, StepEvent
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
    "Contract",
    "ContractError",
    "ControlLost",
    "CurrentStep",
    "DetectorMissing",
    "DidNotHappen",
    "Diverged",
    "FacadeMissing",
    "Fenced",
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
    "ReplayedCancellation",
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
    "refuse",
    "register",
    "register_native",
    "resolve_step",
    "run_info",
    "stop_run",
    "tool",
    "undo_run",
]

__getattr__ = imported_late(
    __name__,
    {
        "calls.attempt": ["Stats"],
        "calls.block": ["BranchHandle", "Transaction", "TurnHandle"],
        "calls.beginning": ["refuse"],
        "calls.stage": ["Guard", "Stage"],
        "contract.compensation": [
            "Compensation",
            "DidNotHappen",
            "Happened",
            "PlannedCall",
            "compensate",
        ],
        "contract.contract": ["Contract"],
        "gate": [
            "Approval",
            "ApprovalRequest",
            "Approver",
            "Response",
            "Rule",
            "StepView",
            "Verdict",
        ],
        "session.declare": ["CurrentStep", "current_step", "tool"],
        "session.options": ["Clock", "Options"],
        "session.session": ["Session"],
        "session.undoing": ["aplan_undo", "aundo_run", "plan_undo", "undo_run"],
        "stages.observing": ["recorded_events"],
        "stages.orders": ["lift_order", "order_of", "pause_run", "stop_run"],
        "stages.queue": ["ApprovalQueue", "QueueApprover"],
        "stages.secrets": ["Secrets"],
        "trace.listing": ["RunInfo", "all_runs", "list_runs", "newest_run", "run_info"],
        "trace.resolution": ["abandon_run", "leave_behind", "resolve_step"],
        "trace.store": ["Store", "open_store"],
        "trace.told": ["Instrument", "Observer", "RunEvent", "StepEvent"],
        "undo.report": ["PlannedStep", "UndoPlan", "UndoReport", "UndoneStep"],
        "values.natives": ["register_native"],
        "values.registered": ["register"],
    },
)
