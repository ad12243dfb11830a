"""The decision before a call: rules look at a step and say allow, ask or deny (DESIGN §5).

Names that only policies and tools need (addresses) are imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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
from rollcage.gate.extras import named_guards, recorded_facade
from rollcage.gate.labels import NO_LABELS, FlowMode, FoundLabels, LabelOrigin, Labels
from rollcage.gate.persons import looks_like, person, same_person
from rollcage.gate.sealing import Detecting, Sealing
from rollcage.gate.secrets import Credential, detect, hide_secrets, names_secret
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
from rollcage.undo.compensation import holds_secret

if TYPE_CHECKING:
    from rollcage.gate.addresses import (
        DEFAULT_PORTS,
        AddressInvalid,
        Resolver,
        SplitUrl,
        bounded,
        check_characters,
        host_name,
        is_address,
        is_local_name,
        split_authority,
        split_url,
        system_resolver,
        why_not_public,
        why_not_public_host,
    )
    from rollcage.gate.labels import LabelSource
    from rollcage.gate.verdict import stronger

__all__ = [
    "ALLOWED",
    "DEFAULT_PORTS",
    "NO_LABELS",
    "AddressInvalid",
    "Approval",
    "ApprovalRequest",
    "Approver",
    "ConsoleApprover",
    "Credential",
    "Decision",
    "Detecting",
    "FlowMode",
    "FoundLabels",
    "Instead",
    "LabelOrigin",
    "LabelSource",
    "Labels",
    "Pending",
    "Refusal",
    "Resolver",
    "Response",
    "Rule",
    "RunView",
    "Sealing",
    "SplitUrl",
    "StepView",
    "Terms",
    "Verdict",
    "bounded",
    "check_characters",
    "decide",
    "detect",
    "hide_secrets",
    "holds_secret",
    "host_name",
    "is_address",
    "is_local_name",
    "judged",
    "looks_like",
    "named_guards",
    "names_secret",
    "not_entitled",
    "person",
    "recorded_facade",
    "rule_name",
    "same_person",
    "split_authority",
    "split_url",
    "stronger",
    "system_resolver",
    "untimely",
    "why_not_public",
    "why_not_public_host",
]

_LATE: Final = {
    "stronger": "verdict",
    "LabelSource": "labels",
    "AddressInvalid": "addresses",
    "DEFAULT_PORTS": "addresses",
    "Resolver": "addresses",
    "SplitUrl": "addresses",
    "bounded": "addresses",
    "check_characters": "addresses",
    "host_name": "addresses",
    "is_address": "addresses",
    "is_local_name": "addresses",
    "split_authority": "addresses",
    "split_url": "addresses",
    "system_resolver": "addresses",
    "why_not_public": "addresses",
    "why_not_public_host": "addresses",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found
