"""A policy's verdict on a call with unknown parts: nothing is guessed.

A condition that uses something unknown is not evaluated: it may hold, or not, or fail, which
denies. So a policy's decision is known if no rule uses an unknown, or if another rule denies.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Final

from rollcage import Contract
from rollcage.gate import StepView, Verdict

from rollcage_policy.addresses import Resolver, system_resolver
from rollcage_policy.functions import surroundings
from rollcage_policy.named import Named
from rollcage_policy.policy import Evaluation, Policy
from rollcage_policy.recorded import Unknown
from rollcage_policy.rules import PolicyRule

__all__ = ["NOTHING_UNKNOWN", "Explained", "Trial", "Tried", "fixed_resolver"]

NOTHING_UNKNOWN: Final[Unknown] = {}
_MOST_KEPT: Final = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Explained:
    """The evaluation of one rule on a call.

    Attributes:
        evaluation: see `Evaluation`; without result if something is `unknown`.
        unknown: unknown values that its condition uses: `tool.risk`, `args.password`, ….
    """

    evaluation: Evaluation
    unknown: tuple[str, ...] = ()

    @property
    def rule(self) -> PolicyRule:
        """The rule."""
        return self.evaluation.rule


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """A policy's verdict on a call.

    Attributes:
        verdict: the verdict; None if it depends on something unknown.
        unknown: unknown values that the rules use.
        rules: the evaluation of each rule; empty unless requested.
    """

    verdict: Verdict | None
    unknown: tuple[str, ...] = ()
    rules: tuple[Explained, ...] = ()


def fixed_resolver(addresses: Mapping[str, Sequence[str]]) -> Resolver:
    """Return a resolver that knows these names only, and queries nothing."""

    def resolve(host: str, port: int) -> Sequence[str]:
        if host not in addresses:
            raise OSError(f"{host} is none of the names that were given ({port=})")
        return addresses[host]

    return resolve


class _Quiet:
    """A resolver that looks up nothing, and notes each requested name."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked = True
        raise OSError(f"{host}:{port} is not looked up here")


class Trial:
    """Tries a policy out. Not thread-safe.

    Args:
        policy: the policy.
        user_input: one text or several; without it, `named(…)` is unknown.
        resolver: gives the addresses of names; without it nothing is looked up, and whether a host
            is public is unknown. `True` asks the system.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        user_input: str | Iterable[str] | None = None,
        resolver: Resolver | bool = False,
    ) -> None:
        self.policy = policy
        self._user_input = None if user_input is None else Named(user_input)
        self._resolver = system_resolver if resolver is True else resolver or None
        self._quiet = _Quiet()
        self._plans: dict[
            tuple[int, str, str], tuple[Contract, dict[str, frozenset[str] | None]]
        ] = {}

    def decide(self, view: StepView, unknown: Unknown = NOTHING_UNKNOWN) -> Tried:
        """Return the policy's verdict on a call with unknown parts."""
        asked = self._asked_of(view)
        if not self._missing(asked, unknown):
            with self._around() as quiet:
                verdict = self.policy.decide(view)
            if not quiet.asked:
                return Tried(verdict)
        return dataclasses.replace(self.explain(view, unknown), rules=())

    def explain(self, view: StepView, unknown: Unknown = NOTHING_UNKNOWN) -> Tried:
        """Return the verdict with the evaluation of each rule."""
        found: list[Explained] = []
        with self._around() as quiet:
            for each in self.policy.explain(view):
                missing: tuple[str, ...] = ()
                if not each.passed_over and each.rule.condition is not None:
                    missing = self._missing(_asked(each.rule), unknown, looked_up=quiet.asked)
                found.append(Explained(_without_result(each) if missing else each, missing))
            names = tuple(dict.fromkeys(name for each in found for name in each.unknown))
            if not names:
                return Tried(self.policy.decide(view), (), tuple(found))
        return _in_part(found, names)

    @contextlib.contextmanager
    def _around(self) -> Generator[_Quiet]:
        self._quiet.asked = False
        with surroundings(user_input=self._user_input, resolver=self._resolver or self._quiet):
            yield self._quiet

    def _asked_of(self, view: StepView) -> Mapping[str, frozenset[str] | None]:
        """Return the values that the rules for a contract, an agent and a kind use."""
        at = id(view.contract), view.agent, view.kind
        plan = self._plans.get(at)
        if plan is None or plan[0] is not view.contract:
            if len(self._plans) >= _MOST_KEPT:
                self._plans.clear()
            asked: dict[str, frozenset[str] | None] = {}
            for rule in self.policy.rules:
                if rule.condition is None or rule.passes_over(view):
                    continue
                for root, fields in _asked(rule).items():
                    known = asked.get(root, frozenset())
                    asked[root] = None if known is None or fields is None else known | fields
            plan = self._plans[at] = view.contract, asked
        return plan[1]

    def _missing(
        self,
        asked: Mapping[str, frozenset[str] | None],
        unknown: Unknown,
        *,
        looked_up: bool = False,
    ) -> tuple[str, ...]:
        """Return the used values that are unknown."""
        found: list[str] = []
        for root, fields in unknown.items():
            wanted = asked.get(root, frozenset())
            names = fields if wanted is None else fields & wanted
            found += (f"{root}.{name}" if name else root for name in sorted(names))
        functions = asked.get("()") or frozenset()
        if "named" in functions and self._user_input is None:
            found.append("named()")
        if looked_up and "public_host" in functions:
            found.append("public_host()")
        return tuple(found)


def _asked(rule: PolicyRule) -> dict[str, frozenset[str] | None]:
    """Return the values that a rule's condition uses; its functions under `()`."""
    assert rule.condition is not None
    expression = rule.condition.expression
    return {**expression.fields, "()": expression.functions}


def _without_result(evaluation: Evaluation) -> Evaluation:
    return Evaluation(evaluation.rule)


def _in_part(found: list[Explained], names: tuple[str, ...]) -> Tried:
    """Return the verdict that holds for all values of the unknowns: a rule that denies."""
    verdict: Verdict | None = None
    rules: list[Explained] = []
    for each in found:
        verdict_of_rule = each.evaluation.verdict
        decides = (
            verdict is None and verdict_of_rule is not None and verdict_of_rule.decision == "deny"
        )
        if decides:
            verdict = verdict_of_rule
        evaluation = dataclasses.replace(each.evaluation, decides=decides)
        rules.append(dataclasses.replace(each, evaluation=evaluation))
    return Tried(verdict, names, tuple(rules))
