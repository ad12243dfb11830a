"""Who looks: what recorded values become for somebody who must not see them.

Whatever is shown to a person or a program goes through a `Viewer` first. Views are made of what it
gives back, so that none of them has to know what a value is.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from rollcage import ApprovalRequest, PlannedStep, UndoPlan
from rollcage.trace import TAG

from rollcage_views.alignment import Change, Pair
from rollcage_views.runs import AskedApproval, Attempt, RefusedCall, Run, Step
from rollcage_views.screen import Screen
from rollcage_views.screened import screened_change, screened_run, screened_step

__all__ = ["HIDDEN", "SEES_ALL", "TO_GIVE_AWAY", "Viewer"]

HIDDEN: Final = {TAG: "redacted"}
"""The placeholder of a hidden value: the same as in an export without values."""

_TEXT: Final = "<redacted>"
_NESTED: Final = re.compile("#[0-9a-f]{64}")  # a fingerprint, in the name of a branch

Event = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Viewer:
    """What somebody may see.

    Without values, no argument, result, message of an error, reason or state is left, and no hash
    of one, since a short value could be guessed from it. Names, states, places, times, decisions,
    rules, codes and tokens stay.

    Attributes:
        values: whether they may see recorded values.
        credentials: whether they may see what looks like a credential in them. Declared secrets
            are in no trace; others are found by `rollcage-views[audit]`, and taken out of what is
            written to be given away. Long values are cut then.
    """

    values: bool = True
    credentials: bool = True

    @property
    def sees_all(self) -> bool:
        """Whether nothing is hidden."""
        return self.values and self.credentials

    def text(self, text: str) -> str:
        """A text that may quote a value."""
        if self.sees_all or not text:
            return text
        return Screen().words_of(text) if self.values else _TEXT

    def value(self, encoded: Any) -> Any:
        """A recorded value."""
        if self.sees_all:
            return encoded
        return Screen().value(encoded) if self.values else HIDDEN

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call: their names stay."""
        if self.sees_all:
            return dict(args)
        return Screen().fields(args) if self.values else dict.fromkeys(args, HIDDEN)

    # --- runs ------------------------------------------------------------------------------------

    def run(self, seen: Run) -> Run:
        """A run."""
        if self.sees_all:
            return seen
        if self.values:
            return screened_run(seen, self.step)
        return dataclasses.replace(
            seen,
            started=_started(seen.started),
            finished=_ended(seen.finished),
            abandoned=_ended(seen.abandoned),
            steps=[self.step(step) for step in seen.steps],
            refused=[_refused(each) for each in seen.refused],
            approvals=[_asked(each) for each in seen.approvals],
            undos=[_ended(each) or {} for each in seen.undos],
            attempts=[_attempt(each) for each in seen.attempts],
            policies=[_ended(each) or {} for each in seen.policies],
            stops=[_ended(each) or {} for each in seen.stops],
        )

    def step(self, step: Step) -> Step:
        """A step."""
        if self.sees_all:
            return step
        if self.values:
            return screened_step(step)
        return dataclasses.replace(
            step,
            args=dict.fromkeys(step.args, HIDDEN),
            key="",
            branch=_NESTED.sub("#…", step.branch),
            outcome=None if step.outcome is None else _outcome(step.outcome),
            verdict=None if step.verdict is None else _verdict(step.verdict),
            undeclared=step.undeclared and [_TEXT],
            approval=None if step.approval is None else "",
            before=None,
            after=None,
            plan=step.plan and [each | {"args": {}} for each in step.plan],
            home="",
            happened=None if step.happened is None else _outcome(step.happened),
            once=step.once and [step.once[0], *([HIDDEN] * (len(step.once) - 1))],
        )

    def pair(self, pair: Pair) -> Pair:
        """A step of each of two runs; of a difference, the part of the call where it is stays."""
        if self.sees_all:
            return pair
        a, b = (None if each is None else self.step(each) for each in (pair.a, pair.b))
        if self.values:
            return Pair(a, b, [screened_change(each) for each in pair.changes])
        changes = {re.split(r"[.\[]", each.path)[0]: each for each in pair.changes}
        return Pair(a, b, [Change(path, HIDDEN, HIDDEN) for path in changes])

    # --- what waits for somebody, and what would be undone ---------------------------------------

    def request(self, request: ApprovalRequest) -> ApprovalRequest:
        """A request for approval; without its id, nobody answers it."""
        if self.values:
            return request
        verdict = dataclasses.replace(request.verdict, reason=_TEXT, remedy="", shadow=None)
        return dataclasses.replace(
            request, args=self.arguments(request.args), verdict=verdict, id="", key="",
            idempotency_key="", branch=_NESTED.sub("#…", request.branch),
        )  # fmt: skip

    def plan(self, plan: UndoPlan) -> UndoPlan:
        """What an undo would do."""
        if self.values:
            return plan
        return dataclasses.replace(plan, steps=tuple(map(self._planned, plan.steps)))

    def _planned(self, step: PlannedStep) -> PlannedStep:
        calls = tuple(each._replace(args=self.arguments(each.args)) for each in step.calls)
        return dataclasses.replace(
            step, args=self.arguments(step.args), reason=self.text(step.reason), calls=calls,
            differs={},
        )  # fmt: skip


SEES_ALL: Final = Viewer()
"""Somebody who may see what is recorded."""

TO_GIVE_AWAY: Final = Viewer(credentials=False)
"""Whoever a report is given to."""


def _verdict(verdict: Mapping[str, Any]) -> Event:
    kept = {name: verdict[name] for name in ("decision", "code", "rule") if name in verdict}
    shadow = verdict.get("shadow")
    return kept | {"reason": _TEXT} | ({"shadow": _verdict(shadow)} if shadow else {})


def _outcome(outcome: Mapping[str, Any]) -> Event:
    names = ("status", "cut", "typed", "usage")
    kept: Event = {name: outcome[name] for name in names if name in outcome}
    if outcome.get("status") == "ok":
        kept["value"] = HIDDEN
    if outcome.get("error"):
        kept["error"] = _error(outcome["error"])
    if outcome.get("drift"):
        drift = outcome["drift"]
        kept["drift"] = {"code": drift["code"], "path": "$", "reason": _TEXT,
                         "reported": drift.get("reported", False)}  # fmt: skip
    if outcome.get("lossy"):
        kept["lossy"] = _TEXT
    return kept


def _error(error: Any) -> Event:
    """Of an error, its type."""
    named = isinstance(error, dict) and "type" in error
    return {"type": error["type"] if named else "", "message": _TEXT}


def _started(event: Event) -> Event:
    kept = {
        name: value for name, value in event.items() if name not in ("input", "user_input", "hash")
    }
    if event.get("input"):
        kept["input"] = {"digest": "", "value": HIDDEN}
    return kept


def _ended(event: Event | None) -> Event | None:
    """What came to an end, and in words why: a run, an undo, a stop, the loading of a policy."""
    if event is None:
        return None
    kept = {name: value for name, value in event.items() if name not in ("differs", "hash")}
    if kept.get("reason"):
        kept["reason"] = _TEXT
    if kept.get("error"):
        kept["error"] = _error(kept["error"])
    return kept


def _refused(call: RefusedCall) -> RefusedCall:
    """A call that never became a step; the names of its arguments are a model's own, too."""
    args = {"…": HIDDEN} if call.args else {}
    branch = _NESTED.sub("#…", call.branch)
    verdict = None if call.verdict is None else _verdict(call.verdict)
    return dataclasses.replace(call, args=args, reason=_TEXT, branch=branch, verdict=verdict)


def _attempt(attempt: Attempt) -> Attempt:
    """A session's part of a run: of what it waited for, and what ended it, that it did."""
    return dataclasses.replace(
        attempt,
        error=attempt.error and _error(attempt.error),
        waits=attempt.waits and _TEXT,
        gate=[{name: each[name] for name in ("rule",) if name in each} for each in attempt.gate],
    )


def _asked(asked: AskedApproval) -> AskedApproval:
    decision = None if asked.decision is None else _approval(asked.decision)
    return AskedApproval(_approval(asked.request), decision, asked.line)


def _approval(event: Event) -> Event:
    hashes = ("key", "idempotency_key", "hash")
    kept = {name: value for name, value in event.items() if name not in hashes}
    if not kept:
        return kept
    kept["id"] = ""
    if kept.get("args"):
        kept["args"] = dict.fromkeys(kept["args"], HIDDEN)
    if kept.get("reason"):
        kept["reason"] = _TEXT
    if kept.get("verdict"):
        kept["verdict"] = _verdict(kept["verdict"])
    if kept.get("branch"):
        kept["branch"] = _NESTED.sub("#…", kept["branch"])
    return kept
