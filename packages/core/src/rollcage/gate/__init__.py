"""The decision before a call: rules look at a step and say allow, ask or deny (DESIGN §5).

Each name is imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rollcage.contract.compensation import holds_secret
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
        stronger,
    )

__all__ = [
    "ALLOWED",
    "DEFAULT_PORTS",
    "AddressInvalid",
    "Approval",
    "ApprovalRequest",
    "Approver",
    "ConsoleApprover",
    "Credential",
    "Decision",
    "Detecting",
    "Instead",
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
    "ALLOWED": "gate.verdict",
    "DEFAULT_PORTS": "gate.addresses",
    "AddressInvalid": "gate.addresses",
    "Approval": "gate.approval",
    "ApprovalRequest": "gate.approval",
    "Approver": "gate.approval",
    "ConsoleApprover": "gate.console",
    "Credential": "gate.secrets",
    "Decision": "gate.verdict",
    "Detecting": "gate.sealing",
    "Instead": "gate.approval",
    "Pending": "gate.approval",
    "Refusal": "gate.approval",
    "Resolver": "gate.addresses",
    "Response": "gate.approval",
    "Rule": "gate.verdict",
    "RunView": "gate.verdict",
    "Sealing": "gate.sealing",
    "SplitUrl": "gate.addresses",
    "StepView": "gate.verdict",
    "Terms": "gate.approval",
    "Verdict": "gate.verdict",
    "bounded": "gate.addresses",
    "check_characters": "gate.addresses",
    "decide": "gate.verdict",
    "detect": "gate.secrets",
    "hide_secrets": "gate.secrets",
    "holds_secret": "contract.compensation",
    "host_name": "gate.addresses",
    "is_address": "gate.addresses",
    "is_local_name": "gate.addresses",
    "judged": "gate.approval",
    "looks_like": "gate.persons",
    "named_guards": "gate.extras",
    "names_secret": "gate.secrets",
    "not_entitled": "gate.approval",
    "person": "gate.persons",
    "recorded_facade": "gate.extras",
    "rule_name": "gate.verdict",
    "same_person": "gate.persons",
    "split_authority": "gate.addresses",
    "split_url": "gate.addresses",
    "stronger": "gate.verdict",
    "system_resolver": "gate.addresses",
    "untimely": "gate.approval",
    "why_not_public": "gate.addresses",
    "why_not_public_host": "gate.addresses",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"rollcage.{module}"), name)
    globals()[name] = found
    return found
