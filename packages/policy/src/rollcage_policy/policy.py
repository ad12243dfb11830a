"""Policies as data: rules with conditions, and their combined verdict on a call (DESIGN §5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from rollcage import Contract
from rollcage.errors import PolicyInvalid, PolicyProblem
from rollcage.gate import Decision, StepView, Verdict
from rollcage.trace import encode, jcs

from rollcage_policy.condition_values import ConditionFailed
from rollcage_policy.conditions import NO_BOOL, Sight, failed
from rollcage_policy.rules import PolicyRule, rules_of

if TYPE_CHECKING:  # the models of a policy file take 40 ms to build: only loading one needs them
    from rollcage_policy.limits import Limits
    from rollcage_policy.loading import LoadedPolicy
    from rollcage_policy.policyfile import ApprovalTerms, Flow, Mode
    from rollcage_policy.prices import Prices
    from rollcage_policy.stage import PolicyStage

__all__ = ["Evaluation", "Policy"]

_MOST_PLANS: Final = 1024  # contracts by agents of a process; beyond that they are selected again
_WEIGHTS: Final = {"allow": 0, "ask": 1, "deny": 2}
_DENY: Final = 2
_DEFAULTS: Final[Mapping[Decision, Verdict]] = {
    "allow": Verdict("allow", "", "no_rule", "default"),
    "ask": Verdict("ask", "no rule of the policy matches this call", "no_rule", "default"),
    "deny": Verdict("deny", "no rule of the policy allows this call", "no_rule", "default"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation of one rule on one call.

    Attributes:
        rule: the rule.
        passed_over: which of `tools`, `agents`, `kinds`, `effects` does not match the call; empty
            if all do.
        holds: whether its condition holds; None if it was not evaluated or failed.
        error: why its condition failed, which denies; otherwise empty.
        decides: whether the verdict is this rule's.
    """

    rule: PolicyRule
    passed_over: str = ""
    holds: bool | None = None
    error: str = ""
    decides: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """The rule's own verdict on the call; None if it has none."""
        if self.error:
            return _failed(self.rule.id, self.error)
        return self.rule.verdict if self.holds else None


class Policy:
    """Rules, limits and settings, from one file and its included files. A policy never changes.

    Any number of sessions and threads may use it at once. `Policy.load` and `Policy.parse`
    make one.

    Attributes:
        name: its name, from its file.
        default: the decision on calls that no rule matches.
        strict: whether arguments that would have to be coerced are refused (`"3"` for an int).
        mode: `shadow` decides and records, but blocks nothing.
        flow: how labels follow values.
        rules: all rules, in order: rules of included files first, presets before a file's own.
        constants: the values of `const` in conditions.
        limits: budgets and loop detection.
        labels: by globs over tools' names, the labels of their results.
        approval: who may approve, and how long an approval counts.
        prices: the prices of calls.
        digest: the identity of the policy (64 hex digits). Comments, the order of keys and the
            distribution over files do not change it.
    """

    __slots__ = ("_default", "_plans", "approval", "constants", "default", "digest", "flow",
                 "labels", "limits", "mode", "name", "prices", "rules", "strict")  # fmt: skip

    name: str
    default: Decision
    mode: Mode
    strict: bool
    flow: Flow
    rules: tuple[PolicyRule, ...]
    constants: Mapping[str, Any]
    limits: Limits
    labels: Mapping[str, tuple[str, ...]]
    approval: ApprovalTerms
    prices: Prices
    digest: str
    _default: Verdict
    _plans: dict[tuple[int, str, str], _Plan]

    def __init__(self, resolved: LoadedPolicy) -> None:
        problems: list[PolicyProblem] = []
        attributes: dict[str, Any] = {
            "name": resolved.name,
            "default": resolved.default,
            "mode": resolved.mode,
            "strict": resolved.strict,
            "flow": resolved.flow,
            "rules": tuple(rules_of(resolved, problems)),
            "constants": MappingProxyType(dict(resolved.constants)),
            "limits": resolved.limits,
            "labels": MappingProxyType(dict(resolved.labels)),
            "approval": resolved.approval,
            "prices": resolved.prices,
            "digest": _digest(resolved),
            "_default": _DEFAULTS[resolved.default],
            "_plans": {},
        }
        if problems:
            raise PolicyInvalid(problems)
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a policy never changes: load another one ({name}=)")

    def __repr__(self) -> str:
        return f"<Policy {self.name!r}: {len(self.rules)} rules, {self.digest[:12]}>"

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Load the policy in a file: `.toml`, `.yaml` or `.yml`.

        Raises:
            PolicyInvalid: the policy can't be used; the message names file and line of each
                problem.
        """
        from rollcage_policy.loading import read_policy

        return cls(read_policy(Path(path)))

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        form: Literal["toml", "yaml"] = "toml",
        where: str = "policy",
        base: str | Path | None = None,
    ) -> Policy:
        """Parse the policy in a text.

        Args:
            text: the policy.
            form: its format.
            where: its name in error messages.
            base: the folder that it includes files from; without it, includes are refused.

        Raises:
            PolicyInvalid: the policy can't be used; the message names the line of each problem.
        """
        from rollcage_policy.loading import resolve

        return cls(resolve(text, form, where, None if base is None else Path(base)))

    def decide(self, view: StepView) -> Verdict:
        """Return the verdict on a call, or the default if no rule matches.

        Deny comes before ask, and ask before allow; of equals, the first counts.

        A rule whose condition fails denies (`rule_error`); a failure never counts as "not met".
        """
        contract = view.contract
        plan = self._plans.get((id(contract), view.agent, view.kind))
        if plan is None or plan.contract is not contract:
            plan = self._select(view)
        if plan.foregone is not None:
            return plan.foregone
        verdict, most, context, by_name = self._default, -1, None, False
        for programs, weight, decision in plan.steps:
            if programs is not None:
                try:
                    if context is None:
                        context, by_name = plan.sight.of(view)
                    holds = programs[by_name](context)
                except BaseException as error:  # noqa: BLE001 - `failed` raises what must not be caught
                    verdict = _failed(decision.rule, failed(error))
                    break
                if holds is False:
                    continue
                if holds is not True:
                    verdict = _failed(decision.rule, NO_BOOL)
                    break
            if weight > most:
                verdict, most = decision, weight
                if most == _DENY:
                    break
        if context is not None:
            plan.sight.give_back(context, by_name=by_name)
        return verdict

    def foregone(self, contract: Contract, kind: str, agent: str) -> Verdict | None:
        """Return the verdict on all such calls, for any arguments; None: only `decide` knows.

        It is known from the second call of a tool on.
        """
        plan = self._plans.get((id(contract), agent, kind))
        return None if plan is None or plan.contract is not contract else plan.foregone

    def of_session(self) -> PolicyStage:
        """Return the stage that decides in one session, and keeps count."""
        from rollcage_policy.stage import MeteredStage, PolicyStage

        counts = bool(self.limits or self.prices.calls or self.prices.models)
        if counts or any(_looks_at_spending(rule) for rule in self.rules):
            return MeteredStage(self)
        return PolicyStage(self)

    @property
    def approval_terms(self) -> tuple[float, frozenset[str] | None]:
        """Return how many seconds an approval counts, and who may approve.

        Without a list, anybody except the requester may approve (None).
        """
        approvers = self.approval.approvers
        return self.approval.seconds, None if approvers is None else frozenset(approvers)

    def differs(self, other: Policy) -> str:
        """Return the part of another policy that needs a new session; empty if none does."""
        fields = ("limits", "prices", "labels", "flow")
        return next((f for f in fields if getattr(self, f) != getattr(other, f, None)), "")

    def explain(self, view: StepView) -> list[Evaluation]:
        """Return the evaluation of each rule on a call, in order, including unmatched rules."""
        plan = self._select(view)
        tried = {id(rule): plan.try_out(rule, view) for rule in plan.rules}
        found = [
            tried.get(id(rule)) or Evaluation(rule, passed_over=rule.passes_over(view))
            for rule in self.rules
        ]
        weights = [
            _DENY if each.error else _WEIGHTS[each.rule.decision] if each.holds else -1
            for each in found
        ]
        if (most := max(weights, default=-1)) >= 0:
            at = weights.index(most)
            found[at] = dataclasses.replace(found[at], decides=True)
        return found

    def _select(self, view: StepView) -> _Plan:
        """Return the rules for a contract, an agent and a kind; cached for the next call."""
        rules = [rule for rule in self.rules if not rule.passes_over(view)]
        plan = _Plan(view, rules, self.constants, self._default)
        if len(self._plans) >= _MOST_PLANS:
            object.__setattr__(self, "_plans", {})
        self._plans[id(view.contract), view.agent, view.kind] = plan
        return plan


class _Plan:
    """The rules for the calls of one contract by one agent.

    It keeps the contract alive, so that no other contract can have the same `id`.
    """

    __slots__ = ("contract", "foregone", "rules", "sight", "steps")

    def __init__(
        self,
        view: StepView,
        rules: list[PolicyRule],
        constants: Mapping[str, Any],
        default: Verdict,
    ) -> None:
        self.contract: Contract = view.contract
        self.rules = rules
        conditions = [rule.condition for rule in rules if rule.condition is not None]
        self.sight = Sight(conditions, view, constants)
        self.steps = [
            (
                self.sight.programs(rule.condition) if rule.condition else None,
                _WEIGHTS[rule.decision],
                rule.verdict,
            )
            for rule in rules
        ]
        # The verdict on all of these calls, if no rule has a condition.
        self.foregone: Verdict | None = None
        if not conditions:
            verdicts = [rule.verdict for rule in rules]
            self.foregone = max(verdicts, key=lambda each: _WEIGHTS[each.decision], default=default)

    def try_out(self, rule: PolicyRule, view: StepView) -> Evaluation:
        """Evaluate one rule on a call."""
        if rule.condition is None:
            return Evaluation(rule, holds=True)
        try:
            holds = self.sight.evaluate(rule.condition, view)
        except BaseException as error:  # noqa: BLE001 - `failed` lets through what has to
            return Evaluation(rule, error=str(failed(error)))
        if not isinstance(holds, bool):
            return Evaluation(rule, error=str(NO_BOOL))
        return Evaluation(rule, holds=holds)


def _looks_at_spending(rule: PolicyRule) -> bool:
    """Return whether a rule's condition uses the run's spending."""
    if rule.condition is None:
        return False
    fields = rule.condition.expression.fields.get("run", frozenset())
    return fields is None or not fields.isdisjoint(("cost", "tokens"))


def _failed(rule: str, error: ConditionFailed | str) -> Verdict:
    return Verdict(
        "deny",
        f"rule {rule!r} could not be evaluated, so the call is denied: {error}",
        "rule_error",
        rule,
    )


def _digest(resolved: LoadedPolicy) -> str:
    """Return the identity of a resolved policy: of its content, not its spelling."""
    content = {
        "format": "rollcage-policy/1",
        "name": resolved.name,
        "default": resolved.default,
        "mode": resolved.mode,
        "flow": resolved.flow,
        "constants": dict(resolved.constants),
        "rules": [placed.rule.model_dump(mode="json") for placed in resolved.rules],
        "limits": resolved.limits.model_dump(mode="json"),
        "labels": {glob: list(labels) for glob, labels in resolved.labels.items()},
        "approval": resolved.approval.model_dump(mode="json"),
        "prices": resolved.prices.model_dump(mode="json"),
        **({"strict": True} if resolved.strict else {}),
    }
    # Tagged, because 1 and 1.0 differ in conditions but not in JCS.
    return sha256(jcs(encode(content, _no_secrets))).hexdigest()


def _no_secrets(_: str) -> str:
    raise AssertionError("a policy holds no secrets")
