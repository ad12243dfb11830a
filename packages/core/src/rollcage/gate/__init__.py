"""The decision before a call: rules look at a step and say allow, ask or deny (DESIGN §5)."""

from rollcage.gate.approval import Approval, ApprovalRequest, Approver, Ask, approval_of
from rollcage.gate.verdict import (
    ALLOWED,
    Decision,
    Rule,
    RunView,
    StepView,
    Verdict,
    decide,
    rule_name,
)

__all__ = [
    "ALLOWED",
    "Approval",
    "ApprovalRequest",
    "Approver",
    "Ask",
    "Decision",
    "Rule",
    "RunView",
    "StepView",
    "Verdict",
    "approval_of",
    "decide",
    "rule_name",
]
