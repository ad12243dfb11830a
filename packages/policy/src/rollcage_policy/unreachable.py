"""Lint for policies: rules that never decide, globs that match no tool."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from rollcage import Contract
from rollcage.gate import StepView

from rollcage_policy.conditions import Sight, failed
from rollcage_policy.policy import Policy
from rollcage_policy.rules import PolicyRule

__all__ = ["Doubt", "doubts"]

_WEIGHTS: Final = {"allow": 0, "ask": 1, "deny": 2}
_EVERY: Final = ("pure", "read", "write", "scope")
_PROBE: Final = Contract(name="probe", parameters={"type": "object"})


@dataclasses.dataclass(frozen=True, slots=True)
class Doubt:
    """A finding: something in a policy that is probably a mistake. The policy stays usable.

    Attributes:
        code: `never_holds`, `shadowed`, `no_such_tool`, `no_such_argument` or `no_rule`.
        id: the id of the rule or limit; the name of the tool, if no rule matches it.
        where: the file.
        line: its line; 0 if the finding concerns no line.
        reason: the explanation.
    """

    code: str
    id: str
    where: str
    line: int
    reason: str

    def __str__(self) -> str:
        place = f"{self.where}, line {self.line}: " if self.line else ""
        return f"{place}{self.id}: {self.reason}"


def doubts(policy: Policy, tools: Sequence[Contract] | None = None) -> list[Doubt]:
    """Return the findings in a policy.

    Args:
        policy: the policy.
        tools: all tools of its agents; None if unknown.
    """
    found = [each for rule in policy.rules for each in _of_rule(policy, rule)]
    if tools is not None:
        found += (doubt for rule in policy.rules for doubt in _of_tools(rule, tools))
        found += _of_limits(policy, tools)
        found += _without_rule(policy, tools)
    return found


def _doubt(rule: PolicyRule, code: str, reason: str) -> Doubt:
    return Doubt(code, rule.id, rule.where, rule.line, reason)


# --- rules among themselves ----------------------------------------------------------------------


def _of_rule(policy: Policy, rule: PolicyRule) -> Iterator[Doubt]:
    if _constant(policy, rule) is False:
        yield _doubt(rule, "never_holds", "its condition can never hold")
        return
    place = policy.rules.index(rule)
    for at, other in enumerate(policy.rules):
        if other is rule or not _always_with(policy, other, rule):
            continue
        stronger = _WEIGHTS[other.decision] - _WEIGHTS[rule.decision]
        if stronger > 0 or (stronger == 0 and at < place):
            how = "comes first" if not stronger else f"goes over {rule.decision}"
            reason = f"it never decides: {other.id} ({other.decision}) matches the same calls, and "
            yield _doubt(rule, "shadowed", f"{reason}{how}")
            return


def _constant(policy: Policy, rule: PolicyRule) -> bool | None:
    """Return a condition's constant result; None if it depends on the call."""
    if rule.condition is None:
        return True
    expression = rule.condition.expression
    if expression.functions or expression.fields.keys() - {"const"}:
        return None
    view = StepView("tool", _PROBE, {})
    try:
        sight = Sight([rule.condition], view, policy.constants)
        holds = sight.evaluate(rule.condition, view)
    except BaseException as error:  # noqa: BLE001 - `failed` lets through what has to
        failed(error)
        return None  # it always fails, which denies
    return holds if isinstance(holds, bool) else None


def _always_with(policy: Policy, other: PolicyRule, rule: PolicyRule) -> bool:
    """Return whether `other` holds wherever `rule` does."""
    same = other.when is not None and other.when == rule.when
    return (
        (same or _constant(policy, other) is True)
        and _covers(other.tools, rule.tools)
        and _covers(other.agents, rule.agents)
        and set(rule.kinds) <= set(other.kinds)
        and set(rule.effects or _EVERY) <= set(other.effects or _EVERY)
    )


def _covers(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Return whether each name that matches `narrow` certainly matches `wide`."""
    return all(any(_holds(outer, inner) for outer in wide) for inner in narrow)


def _holds(outer: str, inner: str) -> bool:
    if outer in ("*", inner):
        return True
    if not set(inner) & set("*?["):
        return fnmatchcase(inner, outer)
    # The wildcards of the narrow glob may only stand at the stars of the wide one.
    plain = not set(outer) & set("?[") and "[" not in inner
    return plain and fnmatchcase(inner, outer)


# --- rules and tools -----------------------------------------------------------------------------


def _of_tools(rule: PolicyRule, tools: Sequence[Contract]) -> Iterator[Doubt]:
    if "tool" not in rule.kinds:
        return
    names = [each.name for each in tools]
    if rule.tools != ("*",):
        yield from (
            _doubt(rule, "no_such_tool", reason) for reason in _unanswered(rule.tools, names)
        )
    about = [
        each
        for each in tools
        if any(fnmatchcase(each.name, glob) for glob in rule.tools)
        and (rule.effects is None or each.effect in rule.effects)
    ]
    named = any(fnmatchcase(name, glob) for name in names for glob in rule.tools)
    if named and not about:
        yield _doubt(rule, "no_such_tool", f"no such tool is {' or '.join(rule.effects or ())}")
    asked = None if rule.condition is None else rule.condition.expression.fields.get("args")
    if not asked or not about or any(each.accepts_more for each in about):
        return
    known = {name for each in about for name in each.parameter_names}
    for name in sorted(asked - known):
        reason = f"none of its tools has an argument {name!r}{_near(name, known)}"
        yield _doubt(rule, "no_such_argument", reason)


def _unanswered(globs: Iterable[str], names: Sequence[str]) -> Iterator[str]:
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            yield f"no tool is called {glob!r}{_near(glob, names)}"


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _of_limits(policy: Policy, tools: Sequence[Contract]) -> Iterator[Doubt]:
    names = [each.name for each in tools]
    for limit in policy.limits.rules:
        if "tool" not in limit.kinds or "*" in limit.tools:
            continue
        for reason in _unanswered(limit.tools, names):
            yield Doubt("no_such_tool", limit.id, "", 0, f"limit: {reason}")


def _without_rule(policy: Policy, tools: Sequence[Contract]) -> Iterator[Doubt]:
    """Yield tools that only the default decides about."""
    for tool in tools:
        concerned = (
            any(fnmatchcase(tool.name, glob) for glob in rule.tools)
            and "tool" in rule.kinds
            and (rule.effects is None or tool.effect in rule.effects)
            for rule in policy.rules
        )
        if not any(concerned):
            reason = f"no rule matches this tool: it gets the default ({policy.default})"
            yield Doubt("no_rule", tool.name, "", 0, reason)
