"""The decisions of policies: the calls that a rule hit, and the decisions in shadow mode."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rollcage_views.runs import RefusedCall, Run, Step

__all__ = ["Hit", "RuleCount", "denial_of", "hits_of", "rule_counts"]

_NOT_MADE: Final = ("arguments_invalid", "refused", "tool_missing")
"""Codes of calls that no guard decided about: invalid arguments, or an unknown tool."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A call that a rule decided about.

    Attributes:
        run: the id of the run.
        job: its name.
        step: its number; None if an approval was requested, and no step followed so far.
        name: the tool's name, or the model's.
        time: when it was requested (Unix, µs).
        state: its state; `waiting` without one.
        decision: `allow`, `ask` or `deny`.
        rule: the rule that decided; empty if no rule matched.
        code: the code of the verdict.
        reason: the reason of the verdict.
        shadow: the verdict of a policy in shadow mode; None if it agrees.
    """

    run: str
    job: str
    step: int | None
    name: str
    time: int
    state: str
    decision: str
    rule: str
    code: str
    reason: str
    shadow: dict[str, Any] | None = None

    def as_data(self) -> dict[str, Any]:
        """Return the hit for machines."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class RuleCount:
    """How often a rule decided.

    Attributes:
        rule: its id.
        shadow: whether it is in shadow mode.
        decisions: how often it made each decision.
        blocked: how many of these calls did not run.
    """

    rule: str
    shadow: bool
    decisions: dict[str, int]
    blocked: int

    def as_data(self) -> dict[str, Any]:
        """Return the counts for machines."""
        return dataclasses.asdict(self)


def hits_of(seen: Run) -> list[Hit]:
    """Return the calls of a run that a rule decided about, or would have in shadow mode."""
    found = [*_of_steps(seen), *_of_refused(seen), *_of_approvals(seen)]
    return sorted(found, key=lambda hit: hit.time)


def rule_counts(hits: Iterable[Hit]) -> list[RuleCount]:
    """Return the rules that decided, those with the most hits first; shadow mode apart."""
    counts: dict[tuple[str, bool], Counter[str]] = {}
    blocked: Counter[tuple[str, bool]] = Counter()
    for hit in hits:
        shadow = hit.shadow or {}
        for rule, decision, tried in (
            (hit.rule, hit.decision, False),
            (str(shadow.get("rule", "")), str(shadow.get("decision", "")), True),
        ):
            if decision and (rule or decision != "allow"):
                counts.setdefault((rule, tried), Counter())[decision] += 1
                blocked[rule, tried] += hit.state == "blocked" and not tried
    order = sorted(counts, key=lambda at: (at[1], -counts[at].total(), at[0]))
    return [RuleCount(rule, tried, dict(counts[rule, tried]), blocked[rule, tried])
            for rule, tried in order]  # fmt: skip


def _of_steps(seen: Run) -> Iterator[Hit]:
    for step in seen.steps:
        if step.verdict is not None and _says(step.verdict):
            yield _hit(seen, step.verdict, step=step, time=step.time)


def denial_of(row: RefusedCall) -> Mapping[str, Any] | None:
    """Return the verdict that denied a call; None if the call was invalid."""
    return None if row.code in _NOT_MADE else row.verdict


def _of_refused(seen: Run) -> Iterator[Hit]:
    for row in seen.refused:
        verdict = denial_of(row)
        if verdict is not None:
            yield dataclasses.replace(
                _hit(seen, verdict, name=row.name, time=row.time), state="blocked"
            )


def _of_approvals(seen: Run) -> Iterator[Hit]:
    """Yield the requests that led to no step in this run."""
    for asked in seen.approvals:
        if asked.request and asked.decision is None:
            verdict: Mapping[str, Any] = asked.request.get("verdict") or {}
            name = str(asked.request["name"])
            yield _hit(seen, verdict, name=name, time=asked.request["time"])


def _says(verdict: Mapping[str, Any]) -> bool:
    decides = verdict.get("decision") != "allow" or bool(verdict.get("rule"))
    return decides or bool(verdict.get("shadow"))


def _hit(
    seen: Run, verdict: Mapping[str, Any], *, time: int, step: Step | None = None, name: str = ""
) -> Hit:
    return Hit(
        run=seen.id,
        job=str(seen.started["name"]),
        step=None if step is None else step.step,
        name=name if step is None else step.name,
        time=time,
        state="waiting" if step is None else step.state,
        decision=str(verdict.get("decision", "")),
        rule=str(verdict.get("rule", "")),
        code=str(verdict.get("code", "")),
        reason=str(verdict.get("reason", "")),
        shadow=dict(verdict["shadow"]) if verdict.get("shadow") else None,
    )
