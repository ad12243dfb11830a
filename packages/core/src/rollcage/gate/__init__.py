"""The decision before a call: rules look at a step and say allow, ask or deny (DESIGN §5).

What only some sessions need (policies, limits, ...) is imported when it is first
asked for: whoever has no policy does not wait for one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rollcage.gate.approval import (
    Approval,
    ApprovalRequest,
    Approver,
    Ask,
    Asked,
    Instead,
    Pending,
    Refusal,
    Response,
    Terms,
    judged,
    not_entitled,
    untimely,
)
from rollcage.gate.console import ConsoleApprover, os_user
from rollcage.gate.extras import all_given, policy_of, recorded_facade
from rollcage.gate.guard import (
    Decides,
    FacadeGuard,
    Given,
    Guard,
    Guards,
    NamedFacade,
    PolicyGuard,
    Screens,
    Settled,
    Settles,
    Spent,
    TakenOfLimits,
    WithLimits,
    guards_of,
    said_here,
    screened,
)
from rollcage.gate.labels import NO_LABELS, FlowMode, Found, Labels, Origin
from rollcage.gate.named import Named
from rollcage.gate.persons import person, same_person
from rollcage.gate.queue import ApprovalQueue, QueueApprover, Queued, QueueState
from rollcage.gate.sealing import Detecting, Sealing
from rollcage.gate.secrets import Finding, detect, hide_secrets, names_secret
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
    from rollcage.gate.cases import Case, CaseResult, Cases, deciders, view_of
    from rollcage.gate.functions import FUNCTIONS, surroundings
    from rollcage.gate.limits import Limit, Limits, Loops, Rate
    from rollcage.gate.meter import Meter, Ticket
    from rollcage.gate.policy import Evaluation, Policy, PolicyRule
    from rollcage.gate.presets import PRESETS
    from rollcage.gate.prices import ModelPrice, Prices
    from rollcage.gate.recorded import Figures
    from rollcage.gate.rerun import Judged, Rerun
    from rollcage.gate.trial import Explained, Trial, Tried, fixed_resolver
    from rollcage.gate.unreachable import Doubt, doubts

__all__ = [
    "ALLOWED",
    "DEFAULT_PORTS",
    "FUNCTIONS",
    "NO_LABELS",
    "PRESETS",
    "AddressInvalid",
    "Approval",
    "ApprovalQueue",
    "ApprovalRequest",
    "Approver",
    "Ask",
    "Asked",
    "Case",
    "CaseResult",
    "Cases",
    "ConsoleApprover",
    "Decides",
    "Decision",
    "Detecting",
    "Doubt",
    "Evaluation",
    "Explained",
    "FacadeGuard",
    "Figures",
    "Finding",
    "FlowMode",
    "Found",
    "Given",
    "Guard",
    "Guards",
    "Instead",
    "Judged",
    "Labels",
    "Limit",
    "Limits",
    "Loops",
    "Meter",
    "ModelPrice",
    "Named",
    "NamedFacade",
    "Origin",
    "Pending",
    "Policy",
    "PolicyGuard",
    "PolicyRule",
    "Prices",
    "QueueApprover",
    "QueueState",
    "Queued",
    "Rate",
    "Refusal",
    "Rerun",
    "Resolver",
    "Response",
    "Rule",
    "RunView",
    "Screens",
    "Sealing",
    "Settled",
    "Settles",
    "Spent",
    "SplitUrl",
    "StepView",
    "TakenOfLimits",
    "Terms",
    "Ticket",
    "Trial",
    "Tried",
    "Verdict",
    "WithLimits",
    "all_given",
    "bounded",
    "check_characters",
    "decide",
    "deciders",
    "detect",
    "doubts",
    "fixed_resolver",
    "guards_of",
    "hide_secrets",
    "host_name",
    "is_address",
    "is_local_name",
    "judged",
    "names_secret",
    "not_entitled",
    "os_user",
    "person",
    "policy_of",
    "recorded_facade",
    "rule_name",
    "said_here",
    "same_person",
    "screened",
    "split_authority",
    "split_url",
    "surroundings",
    "system_resolver",
    "untimely",
    "view_of",
    "why_not_public",
    "why_not_public_host",
]

_LATE: Final = {
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
    "FUNCTIONS": "functions",
    "surroundings": "functions",
    "Limit": "limits",
    "Limits": "limits",
    "Loops": "limits",
    "Rate": "limits",
    "Meter": "meter",
    "Ticket": "meter",
    "Evaluation": "policy",
    "Policy": "policy",
    "PolicyRule": "policy",
    "PRESETS": "presets",
    "ModelPrice": "prices",
    "Prices": "prices",
    "Case": "cases",
    "CaseResult": "cases",
    "Cases": "cases",
    "deciders": "cases",
    "view_of": "cases",
    "Figures": "recorded",
    "Judged": "rerun",
    "Rerun": "rerun",
    "Explained": "trial",
    "Trial": "trial",
    "Tried": "trial",
    "fixed_resolver": "trial",
    "Doubt": "unreachable",
    "doubts": "unreachable",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found
