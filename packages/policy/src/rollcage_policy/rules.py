"""The rules of a policy: which calls each one matches, and its verdict on them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Final

from rollcage.errors import PolicyProblem
from rollcage.gate import Decision, StepView, Verdict

from rollcage_policy.conditions import Condition
from rollcage_policy.tokens import ConditionInvalid

if TYPE_CHECKING:  # the models of a policy file take 40 ms to build: only loading one needs them
    from rollcage_policy.loading import LoadedPolicy, Placed

__all__ = ["PolicyRule", "rules_of"]

_CODES: Final = {"allow": "allowed", "ask": "approval_required", "deny": "denied"}


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyRule:
    """A rule, ready for use; see `RuleData` for its parts.

    Attributes:
        where: the file of the rule, or of its preset.
        line: its line there (from 1).
        verdict: the verdict on a call for which the rule holds.
        condition: `when`, compiled.
    """

    id: str
    tools: tuple[str, ...]
    agents: tuple[str, ...]
    kinds: tuple[str, ...]
    effects: tuple[str, ...] | None
    when: str | None
    where: str
    line: int
    verdict: Verdict
    condition: Condition | None = dataclasses.field(repr=False)
    _tools: Callable[[str], bool] = dataclasses.field(repr=False)
    _agents: Callable[[str], bool] = dataclasses.field(repr=False)

    @property
    def decision(self) -> Decision:
        """`allow`, `ask` or `deny`."""
        return self.verdict.decision

    def passes_over(self, view: StepView) -> str:
        """Return why the rule does not match a call, for any arguments; empty if it matches."""
        if not self._tools(view.contract.name):
            return "tools"
        if not self._agents(view.agent):
            return "agents"
        if view.kind not in self.kinds:
            return "kinds"
        if self.effects is not None and view.contract.effect not in self.effects:
            return "effects"
        return ""


def rules_of(resolved: LoadedPolicy, problems: list[PolicyProblem]) -> Iterable[PolicyRule]:
    """Return the rules of a policy's files, in order; add the problems of each to `problems`."""
    for placed in resolved.rules:
        data = placed.rule
        yield PolicyRule(
            id=data.id,
            tools=tuple(data.tools),
            agents=tuple(data.agents),
            kinds=tuple(data.kinds),
            effects=None if data.effects is None else tuple(data.effects),
            when=data.when,
            where=placed.document.where,
            line=placed.document.line(placed.path),
            verdict=Verdict(
                data.decision,
                data.reason,
                data.code or _CODES[data.decision],
                data.id,
                data.remedy,
            ),
            condition=_condition(placed, resolved.constants, problems),
            _tools=_matcher(data.tools),
            _agents=_matcher(data.agents),
        )


def _condition(
    placed: Placed, constants: Mapping[str, Any], problems: list[PolicyProblem]
) -> Condition | None:
    if placed.rule.when is None:
        return None
    try:
        return Condition(placed.rule.when, constants)
    except ConditionInvalid as error:
        problems.append(placed.problem(str(error), "when"))
        return None


def _matcher(globs: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a name matches one of the globs."""
    names = frozenset(each for each in globs if not re.search(r"[*?\[]", each))
    patterns = [each for each in globs if each not in names]
    if "*" in patterns:
        return _any_name
    if not patterns:
        return names.__contains__
    match = re.compile("|".join(map(translate, patterns))).match
    return lambda name: name in names or match(name) is not None


def _any_name(_: str) -> bool:
    return True
