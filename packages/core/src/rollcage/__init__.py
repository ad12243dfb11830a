"""Rollcage: every tool and model call fingerprinted, gated, traced and replayable.

::

    from rollcage import Session, tool


    @tool(effect="write")
    def send_mail(to: str, text: str) -> str: ...


    with Session("weekly report", store="./.rollcage"):
        send_mail("ann@example.org", "Hello")

Run it again after a crash: what happened is given back from the trace, the rest runs.
"""

from rollcage.contract import Contract
from rollcage.declare import tool
from rollcage.errors import (
    ApprovalRequired,
    ArgumentsInvalid,
    Blocked,
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
    TraceCorrupt,
    TraceUnwritable,
    Unencodable,
    UnguardedCallWarning,
    UnknownOutcome,
)
from rollcage.gate import Approval, ApprovalRequest, Approver, Rule, StepView, Verdict
from rollcage.scope import CurrentStep, current_step
from rollcage.session import Session
from rollcage.step import Stats

__all__ = [
    "Approval",
    "ApprovalRequest",
    "ApprovalRequired",
    "Approver",
    "ArgumentsInvalid",
    "Blocked",
    "Contract",
    "ContractError",
    "CurrentStep",
    "Diverged",
    "Forked",
    "Halt",
    "NotReplayable",
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
    "TraceCorrupt",
    "TraceUnwritable",
    "Unencodable",
    "UnguardedCallWarning",
    "UnknownOutcome",
    "Verdict",
    "current_step",
    "tool",
]
