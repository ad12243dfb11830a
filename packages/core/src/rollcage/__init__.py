"""Rollcage: every tool and model call fingerprinted, gated, traced and replayable.

::

    from rollcage import Session, tool


    @tool(effect="write")
    def send_mail(to: str, text: str) -> str: ...


    with Session("weekly report", store="./.rollcage"):
        send_mail("ann@example.org", "Hello")

Run it again after a crash: what happened is given back from the trace, the rest runs.
"""

from rollcage.compensation import Compensation, DidNotHappen, Happened, PlannedCall, compensate
from rollcage.contract import Contract
from rollcage.declare import tool
from rollcage.errors import (
    ApprovalRequired,
    ArgumentsInvalid,
    Blocked,
    CaptureFailed,
    ContractError,
    Diverged,
    Forked,
    Halt,
    NotReplayable,
    ReplayedError,
    ReplayMiss,
    RollcageError,
    RunInUse,
    RunNotFound,
    SessionError,
    SessionHalted,
    SourceMissing,
    StoreError,
    ToolMissing,
    TraceCorrupt,
    TraceUnwritable,
    UndoIncomplete,
    Unencodable,
    UnguardedCallWarning,
    UnknownOutcome,
)
from rollcage.gate import Approval, ApprovalRequest, Approver, Rule, StepView, Verdict
from rollcage.scope import CurrentStep, current_step
from rollcage.session import Session
from rollcage.step import Stats
from rollcage.undo import PlannedStep, UndoneStep, UndoPlan, UndoReport
from rollcage.undoing import aplan_undo, aundo_run, plan_undo, undo_run

__all__ = [
    "Approval",
    "ApprovalRequest",
    "ApprovalRequired",
    "Approver",
    "ArgumentsInvalid",
    "Blocked",
    "CaptureFailed",
    "Compensation",
    "Contract",
    "ContractError",
    "CurrentStep",
    "DidNotHappen",
    "Diverged",
    "Forked",
    "Halt",
    "Happened",
    "NotReplayable",
    "PlannedCall",
    "PlannedStep",
    "ReplayMiss",
    "ReplayedError",
    "RollcageError",
    "Rule",
    "RunInUse",
    "RunNotFound",
    "Session",
    "SessionError",
    "SessionHalted",
    "SourceMissing",
    "Stats",
    "StepView",
    "StoreError",
    "ToolMissing",
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
    "aplan_undo",
    "aundo_run",
    "compensate",
    "current_step",
    "plan_undo",
    "tool",
    "undo_run",
]
