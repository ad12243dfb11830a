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
        Guard,
        QueueApprover,
        Response,
        Rule,
        Settled,
        StepView,
        Verdict,
    )
    from rollcage.heart.declare import CurrentStep, current_step, tool
    from rollcage.replay.fork import Fork
    from rollcage.session.abandon import abandon_run
    from rollcage.session.finished import aplan_undo, aundo_run, plan_undo, undo_run
    from rollcage.session.resolving import Resolved, resolve_step
    from rollcage.session.session import Session
    from rollcage.step.clock import Clock
    from rollcage.step.observing import (
        Instrument,
        Observer,
        RunEvent,
        StepEvent,
        recorded_events,
    )
    from rollcage.step.stats import Stats
    from rollcage.store.url import open_store
    from rollcage.undo.compensation import (
        Compensation,
        DidNotHappen,
        Happened,
        PlannedCall,
        compensate,
    )
    from rollcage.undo.report import PlannedStep, UndoneStep, UndoPlan, UndoReport
    from rollcage.values.registered import register

__all__ = [
    "Approval",
    "ApprovalCorrupt",
    "ApprovalInvalid",
    "ApprovalRequest",
    "ApprovalRequired",
    "Approver",
    "ArgumentsInvalid",
    "Blocked",
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
    "Resolved",
    "Response",
    "RollcageError",
    "Rule",
    "RunAbandoned",
    "RunConflict",
    "RunElsewhere",
    "RunEvent",
    "RunInUse",
    "RunNotFound",
    "RunPruned",
    "RunStopped",
    "RunTooOld",
    "Session",
    "SessionError",
    "SessionHalted",
    "Settled",
    "SourceMissing",
    "Stats",
    "StepEvent",
    "StepNotFound",
    "StepNotUnknown",
    "StepView",
    "StoreError",
    "StoreInvalid",
    "StoreReadOnly",
    "ToolMissing",
    "ToolRefused",
    "TraceCorrupt",
    "TraceUnwritable",
    "UndoIncomplete",
    "UndoPlan",
    "UndoReport",
    "UndoneStep",
    "Unencodable",
    "UnguardedCallWarning",
    "UnknownOutcome",
    "Verdict",
    "abandon_run",
    "aplan_undo",
    "aundo_run",
    "compensate",
    "current_step",
    "open_store",
    "plan_undo",
    "recorded_events",
    "register",
    "resolve_step",
    "tool",
    "undo_run",
]

_LATE: Final = {
    "Contract": "contract.contract",
    "Approval": "gate",
    "ApprovalRequest": "gate",
    "Approver": "gate",
    "ConsoleApprover": "gate",
    "Settled": "gate",
    "Guard": "gate",
    "QueueApprover": "gate",
    "Response": "gate",
    "Rule": "gate",
    "StepView": "gate",
    "Verdict": "gate",
    "Fork": "replay.fork",
    "Resolved": "session.resolving",
    "abandon_run": "session.abandon",
    "resolve_step": "session.resolving",
    "tool": "heart.declare",
    "aplan_undo": "session.finished",
    "aundo_run": "session.finished",
    "plan_undo": "session.finished",
    "undo_run": "session.finished",
    "CurrentStep": "heart.declare",
    "current_step": "heart.declare",
    "Session": "session.session",
    "Stats": "step.stats",
    "Clock": "step.clock",
    "Instrument": "step.observing",
    "Observer": "step.observing",
    "RunEvent": "step.observing",
    "StepEvent": "step.observing",
    "recorded_events": "step.observing",
    "open_store": "store.url",
    "Compensation": "undo.compensation",
    "DidNotHappen": "undo.compensation",
    "Happened": "undo.compensation",
    "PlannedCall": "undo.compensation",
    "compensate": "undo.compensation",
    "PlannedStep": "undo.report",
    "UndoneStep": "undo.report",
    "UndoPlan": "undo.report",
    "UndoReport": "undo.report",
    "register": "values.registered",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found
