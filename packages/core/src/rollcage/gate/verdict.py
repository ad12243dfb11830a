"""Decide on a call: the view that rules get, a rule's verdict, and the combined verdict."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, cast

from rollcage.contract.contract import Contract
from rollcage.values.copies import own_copy

__all__ = [
    "ALLOWED",
    "UNTRACKED",
    "Decision",
    "LabelsUntracked",
    "Rule",
    "RunView",
    "StepView",
    "Verdict",
    "decide",
    "rule_name",
    "stronger",
]

Decision = Literal["allow", "ask", "deny"]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Hold a rule's decision on a step.

    Attributes:
        decision: `deny` overrides `ask`, which overrides `allow`.
        reason: short and factual; a model reads it to continue.
        code: a code for machines.
        rule: the id of the rule; if left empty, the rule's own name.
        remedy: an alternative for the model; it follows the reason.
        shadow: the verdict of a policy in shadow mode; it has no effect.
    """

    decision: Decision
    reason: str = ""
    code: str = ""
    rule: str = ""
    remedy: str = ""
    shadow: Verdict | None = None

    @classmethod
    def allow(cls, reason: str = "", *, code: str = "allowed") -> Verdict:
        """Let the call run."""
        return cls("allow", reason, code)

    @classmethod
    def ask(cls, reason: str, *, code: str = "approval_required") -> Verdict:
        """Require an approval of the call."""
        return cls("ask", reason, code)

    @classmethod
    def deny(cls, reason: str, *, code: str = "denied") -> Verdict:
        """Keep the call from running."""
        return cls("deny", reason, code)

    @property
    def message(self) -> str:
        """Return the text for a model: the reason, and the remedy."""
        return f"{self.reason.rstrip('.')}. {self.remedy}" if self.remedy else self.reason

    @property
    def is_whole(self) -> bool:
        """Tell whether the trace can hold the verdict: rules are anybody's code."""
        texts = (self.reason, self.code, self.rule, self.remedy)
        if not all(type(each) is str and is_writable(each) for each in texts):
            return False
        shadow: object = self.shadow
        is_shadow_whole = shadow is None or (isinstance(shadow, Verdict) and shadow.is_whole)
        return self.decision in _WEIGHT and is_shadow_whole

    def as_data(self) -> dict[str, Any]:
        """Return the form in the trace."""
        data: dict[str, Any] = {
            "decision": self.decision,
            "reason": self.reason,
            "code": self.code,
            "rule": self.rule,
        }
        if self.remedy:
            data["remedy"] = self.remedy
        if self.shadow is not None:
            data["shadow"] = self.shadow.as_data()
        return data


class RunView(Protocol):
    """Show the run so far to a rule; each value is computed when it is read."""

    @property
    def id(self) -> str:
        """Return the run's id."""
        ...

    @property
    def name(self) -> str:
        """Return the name of the job."""
        ...

    @property
    def calls(self) -> int:
        """Return how many calls the run has made, replayed ones included."""
        ...

    @property
    def tokens(self) -> int:
        """Return the tokens of the model calls, recorded ones included."""
        ...

    @property
    def cost(self) -> float:
        """Return the cost of the calls so far, by the policy's prices, in their currency."""
        ...

    @property
    def elapsed(self) -> float:
        """Return how long the session has been open (seconds)."""
        ...


class LabelsUntracked(Exception):
    """Report a rule that read the labels of a call in a session without labels."""


class _Untracked:
    """Raise at every access of a rule: it is no set, so no operation of a set passes by."""

    __slots__ = ()

    def _refuse(self, *_: object) -> Any:
        raise LabelsUntracked(
            "labels are not tracked in this session: put Labelling() of rollcage_policy into its "
            "stages=, or a policy into its gate= (pip install 'rollcage[policy]')"
        )

    __contains__ = __iter__ = __len__ = __and__ = __rand__ = __or__ = __ror__ = _refuse
    __sub__ = __rsub__ = __xor__ = __rxor__ = __le__ = __lt__ = __ge__ = __gt__ = _refuse
    __eq__ = __ne__ = __getattr__ = _refuse
    __hash__ = None  # type: ignore[assignment] # pyright: ignore[reportAssignmentType] # as of any class with an equality of its own


UNTRACKED: Final = cast("frozenset[str]", _Untracked())
"""The labels of a call in a session without labels: no rule may take them for an empty set."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepView:
    """Show a call to a rule, before anything of it happens.

    Attributes:
        kind: `tool` or `model`.
        contract: the declaration of the tool.
        args: a copy of the validated arguments, as the body will receive them.
        agent: the agent's name; empty if the framework does not provide it.
        branch: the branch of the run; empty for the main one.
        calls: how many calls the run has made so far.
        data: the canonical arguments, as the trace shows them: JSON, secrets sealed.
        key: the call's content identity (64 hex digits).
        run: the run so far; None without one (a policy under test).
        labels: the labels of the values in the arguments (`untrusted`, `secret`, your own). In a
            session without labels, reading them raises: the rule is denied.
    """

    kind: str
    contract: Contract
    args: Mapping[str, Any]
    agent: str = ""
    branch: str = ""
    calls: int = 0
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    key: str = ""
    run: RunView | None = None
    labels: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Return the tool's name."""
        return self.contract.name

    @property
    def effect(self) -> str:
        """Return the tool's declared effect."""
        return self.contract.effect


Rule = Callable[[StepView], Verdict | None]
"""Decides on a step, or abstains with None. A rule that raises denies."""

ALLOWED: Final = Verdict("allow")
_INVALID: Final = "rule_invalid"
_WEIGHT: Final = {"allow": 0, "ask": 1, "deny": 2}


def rule_name(rule: Rule) -> str:
    """Return the name under which a rule's verdicts are recorded."""
    return str(getattr(rule, "__qualname__", None) or type(rule).__qualname__)


def decide(view: StepView, rules: Iterable[Rule]) -> Verdict:
    """Return the combined verdict of all rules: deny over ask over allow, the first of equals.

    A rule that raises, or returns anything but a verdict or None, denies.
    """
    verdict = ALLOWED
    for rule in rules:
        found = _ask(rule, view)
        if found is not None and (
            verdict is ALLOWED or _WEIGHT[found.decision] > _WEIGHT[verdict.decision]
        ):
            verdict = found if found.rule else dataclasses.replace(found, rule=rule_name(rule))
    return verdict


def stronger(one: Verdict, other: Verdict) -> Verdict:
    """Return the combined verdict of two: deny over ask over allow, the first of equals."""
    if _WEIGHT[other.decision] > _WEIGHT[one.decision] or one is ALLOWED:
        return dataclasses.replace(other, shadow=one.shadow) if one.shadow else other
    return dataclasses.replace(one, shadow=other.shadow) if other.shadow and not one.shadow else one


def _ask(rule: Rule, view: StepView) -> Verdict | None:
    try:
        found = cast("object", rule(_shown(view)))  # not trusted to have its declared type
        if found is None:
            return None
        if isinstance(found, Verdict) and found.is_whole:
            return found
        if inspect.iscoroutine(found):
            found.close()
            return Verdict("deny", "a rule is async: make it a plain function", _INVALID)
    except LabelsUntracked as error:
        return Verdict("deny", str(error), "labels_untracked")
    except Exception as error:  # noqa: BLE001 - whatever a rule raises, the call must not run
        return Verdict("deny", f"a rule failed: {type(error).__name__}", "rule_error")
    return Verdict("deny", "a rule returned no verdict", _INVALID)


def _shown(view: StepView) -> StepView:
    """Copy the view for one rule: changes to the copy affect neither the call nor other rules."""
    return dataclasses.replace(
        view,
        args=MappingProxyType({name: own_copy(each) for name, each in view.args.items()}),
        data={name: own_copy(each) for name, each in view.data.items()},
    )


def is_writable(text: str) -> bool:
    """Tell whether UTF-8 can encode a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
