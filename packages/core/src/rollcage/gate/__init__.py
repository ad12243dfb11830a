"""The decision before a call: rules look at a step and say allow, ask or deny (DESIGN §5).

Each name is imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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
    from rollcage.gate.console import ConsoleApprover
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
    "ConsoleApprover",
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

_LATE: Final = {
    "ALLOWED": "gate.verdict",
    "Approval": "gate.approval",
    "ApprovalRequest": "gate.approval",
    "Approver": "gate.approval",
    "ConsoleApprover": "gate.console",
    "Decision": "gate.verdict",
    "Instead": "gate.approval",
    "Pending": "gate.approval",
    "Refusal": "gate.approval",
    "Response": "gate.approval",
    "Rule": "gate.verdict",
    "RunView": "gate.verdict",
    "Sealing": "gate.sealing",
    "StepView": "gate.verdict",
    "Terms": "gate.approval",
    "Verdict": "gate.verdict",
    "decide": "gate.verdict",
    "holds_secret": "contract.compensation",
    "judged": "gate.approval",
    "looks_like": "gate.persons",
    "not_entitled": "gate.approval",
    "person": "gate.persons",
    "rule_name": "gate.verdict",
    "same_person": "gate.persons",
    "stronger": "gate.verdict",
    "untimely": "gate.approval",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"rollcage.{module}"), name)
    globals()[name] = found
    return found
