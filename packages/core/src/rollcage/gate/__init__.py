"""The decision before a call: rules look at a step and say allow, ask or deny (DESIGN §5)."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, cast

from rollcage.contract import Contract

__all__ = [
    "Approval",
    "ApprovalRequest",
    "Approver",
    "Ask",
    "Decision",
    "Rule",
    "StepView",
    "Verdict",
    "decide",
]

Decision = Literal["allow", "ask", "deny"]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule says of a step.

    Attributes:
        decision: `deny` overrides `ask`, which overrides `allow`.
        reason: short and factual; a model reads it to go on.
        code: machine-readable.
        rule: the id of the rule; the rule's own name where it is left empty.
    """

    decision: Decision
    reason: str = ""
    code: str = ""
    rule: str = ""

    @classmethod
    def allow(cls, reason: str = "", *, code: str = "allowed") -> Verdict:
        """The call may go on."""
        return cls("allow", reason, code)

    @classmethod
    def ask(cls, reason: str, *, code: str = "approval_required") -> Verdict:
        """Somebody has to approve it."""
        return cls("ask", reason, code)

    @classmethod
    def deny(cls, reason: str, *, code: str = "denied") -> Verdict:
        """The call must not run."""
        return cls("deny", reason, code)

    def as_data(self) -> dict[str, str]:
        """The form in which the trace holds it."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class StepView:
    """What a rule is told of a call, before anything of it happens.

    Attributes:
        kind: `tool` or `model`.
        contract: what is declared of it.
        args: the validated arguments, as the body will get them.
        agent: the agent's name, where the framework tells; else empty.
        branch: the branch of the run; empty for the main one.
        calls: how many calls the run has placed so far.
    """

    kind: str
    contract: Contract
    args: Mapping[str, Any]
    agent: str
    branch: str
    calls: int

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.contract.name

    @property
    def effect(self) -> str:
        """The tool's declared effect."""
        return self.contract.effect


Rule = Callable[[StepView], Verdict | None]
"""Looks at a step and decides, or abstains with None. One that raises denies."""

# --- approval ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that a rule wants to be approved, before anything of it happens.

    Attributes:
        kind: `tool` or `model`.
        name: the tool's name.
        args: the canonical arguments, as the trace shows them: secrets are no part.
        agent: the agent's name, where the framework tells; else empty.
        call_id: the framework's id of the call; empty where it has none.
        key: the call's content identity (64 hex digits).
        verdict: what the rule said.
    """

    kind: str
    name: str
    args: Mapping[str, Any]
    agent: str
    call_id: str
    key: str
    verdict: Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Approval:
    """What an approver says of one call.

    Attributes:
        approved: whether it may run, this once.
        by: who says so.
        reason: why; on a rejection, a model reads it to go on.
    """

    approved: bool
    by: str = ""
    reason: str = ""


Approver = Callable[[ApprovalRequest], Approval | Awaitable[Approval]]
"""Decides on a call that a rule asks about. An async one serves async calls only.

One that raises, or gives back something else than an approval, denies.
"""


class Ask(NamedTuple):
    """Who is asked; `pauses` are the exceptions by which a framework goes away to ask elsewhere."""

    approver: Approver
    pauses: tuple[type[BaseException], ...] = ()


def approval_of(answer: object) -> Approval:
    """What an approver gave back, where that is an approval; else a rejection that says so."""
    if isinstance(answer, Approval) and type(answer.approved) is bool:
        return answer
    return Approval(False, reason="the approver gave back no approval")


ALLOWED: Final = Verdict("allow")
_INVALID: Final = "rule_invalid"
_WEIGHT: Final = {"allow": 0, "ask": 1, "deny": 2}


def rule_name(rule: Rule) -> str:
    """The name under which a rule's verdicts are recorded."""
    return str(getattr(rule, "__qualname__", None) or type(rule).__qualname__)


def decide(view: StepView, rules: Iterable[Rule]) -> Verdict:
    """The verdict of all the rules: deny over ask over allow, the first of equals.

    A rule that raises, or gives back something else than a verdict, denies.
    """
    verdict = ALLOWED
    for rule in rules:
        found = _ask(rule, view)
        if found is not None and (
            verdict is ALLOWED or _WEIGHT[found.decision] > _WEIGHT[verdict.decision]
        ):
            verdict = found if found.rule else dataclasses.replace(found, rule=rule_name(rule))
    return verdict


def _ask(rule: Rule, view: StepView) -> Verdict | None:
    try:
        found = cast("object", rule(view))  # what it says, whatever its type says
        if found is None:
            return None
        if isinstance(found, Verdict) and _is_whole(found):
            return found
        if inspect.iscoroutine(found):
            found.close()
            return Verdict(
                "deny", "a rule is async: rules are asked before anything waits", _INVALID
            )
    except Exception as error:  # noqa: BLE001 - whatever a rule raises, the call must not run
        return Verdict("deny", f"a rule failed: {type(error).__name__}", "rule_error")
    return Verdict("deny", "a rule gave back no verdict", _INVALID)


def _is_whole(verdict: Verdict) -> bool:
    """Whether the trace can hold it."""
    texts = (verdict.reason, verdict.code, verdict.rule)
    return verdict.decision in _WEIGHT and all(type(each) is str for each in texts)
