"""Policies for Rollcage: rules as data with conditions in CEL, limits, and a workbench to try them.

::

    from rollcage import Session
    from rollcage_policy import Policy

    with Session("weekly report", gate=[Policy.load("policy.toml")]):
        ...

Each name is imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rollcage_policy.cases import Case, CaseResult, Cases, deciders, view_of
    from rollcage_policy.console import ConsoleApprover
    from rollcage_policy.conversation import Conversation
    from rollcage_policy.detecting import DetectedSecrets
    from rollcage_policy.functions import FUNCTIONS, surroundings
    from rollcage_policy.labelling import Labelling
    from rollcage_policy.limits import Limit, Limits, Loops, Rate
    from rollcage_policy.meter import Meter, Ticket
    from rollcage_policy.named import Named
    from rollcage_policy.permissions import Permissions
    from rollcage_policy.policy import Evaluation, Policy
    from rollcage_policy.presets import PRESETS
    from rollcage_policy.prices import ModelPrice, Prices
    from rollcage_policy.recorded import Figures
    from rollcage_policy.rerun import Judged, Rerun
    from rollcage_policy.rules import PolicyRule
    from rollcage_policy.stage import UserInput, reload_policy, spent
    from rollcage_policy.trial import Explained, Trial, Tried, fixed_resolver
    from rollcage_policy.unreachable import Doubt, doubts

__all__ = [
    "FUNCTIONS",
    "PRESETS",
    "Case",
    "CaseResult",
    "Cases",
    "ConsoleApprover",
    "Conversation",
    "DetectedSecrets",
    "Doubt",
    "Evaluation",
    "Explained",
    "Figures",
    "Judged",
    "Labelling",
    "Limit",
    "Limits",
    "Loops",
    "Meter",
    "ModelPrice",
    "Named",
    "Permissions",
    "Policy",
    "PolicyRule",
    "Prices",
    "Rate",
    "Rerun",
    "Ticket",
    "Trial",
    "Tried",
    "UserInput",
    "deciders",
    "doubts",
    "fixed_resolver",
    "reload_policy",
    "spent",
    "surroundings",
    "view_of",
]

_LATE: Final = {
    "FUNCTIONS": "functions",
    "PRESETS": "presets",
    "Case": "cases",
    "CaseResult": "cases",
    "Cases": "cases",
    "ConsoleApprover": "console",
    "Conversation": "conversation",
    "DetectedSecrets": "detecting",
    "Doubt": "unreachable",
    "Evaluation": "policy",
    "Explained": "trial",
    "Figures": "recorded",
    "Judged": "rerun",
    "Labelling": "labelling",
    "Limit": "limits",
    "Limits": "limits",
    "Loops": "limits",
    "Meter": "meter",
    "ModelPrice": "prices",
    "Named": "named",
    "Permissions": "permissions",
    "Policy": "policy",
    "PolicyRule": "rules",
    "Prices": "prices",
    "Rate": "limits",
    "Rerun": "rerun",
    "Ticket": "meter",
    "Trial": "trial",
    "Tried": "trial",
    "UserInput": "stage",
    "deciders": "cases",
    "doubts": "unreachable",
    "fixed_resolver": "trial",
    "reload_policy": "stage",
    "spent": "stage",
    "surroundings": "functions",
    "view_of": "cases",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found
