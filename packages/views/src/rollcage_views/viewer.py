"""The viewer: the form of recorded values for a person without the right to see them.

Every value for a person or a program goes through a `Viewer` first. Views are made from its
results, so that no view has to know where values are.
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
    """The rights of a viewer.

    Without values, no argument, result, message of an error, reason or state is left, and no hash
    of one, because a short value could be guessed from it. Names, states, places, times, decisions,
    rules, codes and tokens stay.

    Attributes:
        values: whether the viewer may see recorded values.
        credentials: whether the viewer may see possible credentials in them. Declared secrets
            are in no trace; `rollcage-views[audit]` finds others, and removes them from
            output for others. Long values are cut then.
    """

    values: bool = True
    credentials: bool = True

    @property
    def sees_all(self) -> bool:
        """Whether nothing is hidden."""
        return self.values and self.credentials

    def text(self, text: str) -> str:
        """Return a text that may quote a value."""
        if self.sees_all or not text:
            return text
        return Screen().words_of(text) if self.values else _TEXT

    def value(self, encoded: Any) -> Any:
        """Return a recorded value."""
        if self.sees_all:
            return encoded
        return Screen().value(encoded) if self.values else HIDDEN

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call: their names stay."""
        if self.sees_all:
            return dict(args)
        return Screen().fields(args) if self.values else dict.fromkeys(args, HIDDEN)

    # --- runs ------------------------------------------------------------------------------------

    def run(self, seen: Run) -> Run:
        """Return a run."""
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
        """Return a step."""
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
        """Return a step of each of two runs; the names of differing parts of a call stay."""
        if self.sees_all:
            return pair
        a, b = (None if each is None else self.step(each) for each in (pair.a, pair.b))
        if self.values:
            return Pair(a, b, [screened_change(each) for each in pair.changes])
        changes = {re.split(r"[.\[]", each.path)[0]: each for each in pair.changes}
        return Pair(a, b, [Change(path, HIDDEN, HIDDEN) for path in changes])

    # --- requests and undos ----------------------------------------------------------------------

    def request(self, request: ApprovalRequest) -> ApprovalRequest:
        """Return a request for approval; a hidden request has no id, so it can't be answered."""
        if self.values:
            return request
        verdict = dataclasses.replace(request.verdict, reason=_TEXT, remedy="", shadow=None)
        return dataclasses.replace(
            request, args=self.arguments(request.args), verdict=verdict, id="", key="",
            idempotency_key="", branch=_NESTED.sub("#…", request.branch),
        )  # fmt: skip

    def plan(self, plan: UndoPlan) -> UndoPlan:
        """Return the plan of an undo."""
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
"""A viewer who may see recorded values."""

TO_GIVE_AWAY: Final = Viewer(credentials=False)
"""The reader of a report."""


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
    """Return an error's type only."""
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
    """Return the end of a run, an undo, a stop or the loading of a policy, without the reason."""
    if event is None:
        return None
    kept = {name: value for name, value in event.items() if name not in ("differs", "hash")}
    if kept.get("reason"):
        kept["reason"] = _TEXT
    if kept.get("error"):
        kept["error"] = _error(kept["error"])
    return kept


def _refused(call: RefusedCall) -> RefusedCall:
    """Return a refused call; the names of its arguments are the model's own, and hidden, too."""
    args = {"…": HIDDEN} if call.args else {}
    branch = _NESTED.sub("#…", call.branch)
    verdict = None if call.verdict is None else _verdict(call.verdict)
    return dataclasses.replace(call, args=args, reason=_TEXT, branch=branch, verdict=verdict)


def _attempt(attempt: Attempt) -> Attempt:
    """Return an attempt, without the reasons for its waits and its end."""
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
