"""The decision before a call: rules look at a step and say allow, ask or deny (DESIGN §5).

Each name is imported on first access.
"""

from typing import TYPE_CHECKING

from rollcage.values.late import imported_late

if TYPE_CHECKING:
    from rollcage.contract.compensation import holds_secret
    from rollcage.gate.approval import (
        Approval,
        ApprovalRequest,
        Approver,
        Instead,
        Pending,
        Refusal,
        Response,
        Terms,
        judged,
        not_entitled,
        untimely,
    )
    from rollcage.gate.persons import looks_like, person, same_person
    from rollcage.gate.sealing import Sealing
    from rollcage.gate.verdict import (
        ALLOWED,
        Decision,
        Rule,
        RunView,
        StepView,
        Verdict,
        decide,
        rule_name,
        stronger,
    )

__all__ = [
    "ALLOWED",
    "Approval",
    "ApprovalRequest",
    "Approver",
    "Decision",
    "Instead",
    "Pending",
    "Refusal",
    "Response",
    "Rule",
    "RunView",
    "Sealing",
    "StepView",
    "Terms",
    "Verdict",
    "decide",
    "holds_secret",
    "judged",
    "looks_like",
    "not_entitled",
    "person",
    "rule_name",
    "same_person",
    "stronger",
    "untimely",
]

__getattr__ = imported_late(
    __name__,
    {
        "contract.compensation": ["holds_secret"],
        "gate.approval": [
            "Approval",
            "ApprovalRequest",
            "Approver",
            "Instead",
            "Pending",
            "Refusal",
            "Response",
            "Terms",
            "judged",
            "not_entitled",
            "untimely",
        ],
        "gate.persons": ["looks_like", "person", "same_person"],
        "gate.sealing": ["Sealing"],
        "gate.verdict": [
            "ALLOWED",
            "Decision",
            "Rule",
            "RunView",
            "StepView",
            "Verdict",
            "decide",
            "rule_name",
            "stronger",
        ],
    },
)
