"""Describe a run to readers: its steps, and the outcome of each.

Code that shows, compares, audits or judges recorded runs reads these classes; `read_run`
makes them from a log.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rollcage_views.runs.step import STATES, Step

__all__ = [
    "AskedApproval",
    "Attempt",
    "RefusedCall",
    "Run",
    "Totals",
]

Event = dict[str, Any]


@dataclasses.dataclass(slots=True)
class RefusedCall:
    """Hold a call that never became a step: the requested call, and why nothing ran.

    A call denied by a guard is recorded like this, too: `verdict` has the denial, and `key` and
    `effect` are set. `attempt` is the number of the attempt with the request, and `line` the number
    of the line.
    """

    name: str
    version: str
    args: dict[str, Any]
    code: str
    reason: str
    kind: str
    branch: str
    turn: int | None
    slot: int | None
    agent: str
    call_id: str
    parent: int | None
    time: int
    verdict: dict[str, Any] | None = None
    attempt: int = 1
    key: str = ""
    effect: str = ""
    line: int = 0

    def as_event(self) -> Event:
        """Return it in the form of a `call.refused`."""
        event: Event = {
            "event": "call.refused", "time": self.time, "kind": self.kind, "name": self.name,
            "args": self.args, "code": self.code, "reason": self.reason,
        }  # fmt: skip
        for field in ("version", "branch", "turn", "slot", "agent", "call_id", "parent"):
            if getattr(self, field) not in ("", None):
                event[field] = getattr(self, field)
        return event


@dataclasses.dataclass(slots=True)
class Attempt:
    """Hold one session's part of a run: from its beginning until it was left, or died.

    Attributes:
        id: the random id.
        begin: when the attempt began (Unix, µs).
        end: when the session was left; None while it is live, or if it died.
        status: the status on leaving (`ok`, `error`, `halted`, …); empty while it is live, or if it
            died.
        replay: the replay mode.
        on_divergence: the response to a new effect while recorded effects lay ahead.
        replayed: ranges (first, last) of the steps that answered calls, as far as recorded: an
            attempt that died may have used more.
        restarted: the steps that a framework started over.
        steps: the numbers of the new steps.
        calls: how many calls the attempt made; None if not recorded.
        hits: how many calls recorded steps answered.
        error: `type` and `message` of the error that ended the attempt, if any.
        waits: the outside event for which the attempt is `paused`.
        gate: the descriptions of the gate.
        line: the number of the first line.
    """

    id: str
    begin: int
    end: int | None = None
    status: str = ""
    replay: str = "auto"
    on_divergence: str = "halt"
    replayed: list[tuple[int, int]] = dataclasses.field(default_factory=list[tuple[int, int]])
    restarted: list[int] = dataclasses.field(default_factory=list[int])
    steps: list[int] = dataclasses.field(default_factory=list[int])
    calls: int | None = None
    hits: int = 0
    error: dict[str, Any] | None = None
    waits: str = ""
    gate: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    line: int = 1

    @property
    def answers(self) -> set[int]:
        """Return the numbers of the steps that answered calls."""
        return {n for first, last in self.replayed for n in range(first, last + 1)}


@dataclasses.dataclass(slots=True)
class AskedApproval:
    """Hold a request for approval.

    Attributes:
        request: the request; empty if this run has only the decision.
        decision: the decision; None without one in this run.
        line: the number of the first of their lines.
    """

    request: Event
    decision: Event | None
    line: int


@dataclasses.dataclass(slots=True)
class Totals:
    """Sum up a run: the number of steps of each state, the savings of hits, and refused calls."""

    steps: int
    states: dict[str, int]
    seconds_saved: float
    tokens_saved: int
    refused: int = 0


@dataclasses.dataclass(slots=True)
class Run:
    """Hold a run, as far as its log goes. Events have the form of the published schema.

    Attributes:
        started: the event that began the run.
        finished: the event that ended the run; None while it is live, or if it was cut off.
        abandoned: the event that set the run aside, if any.
        steps: the steps in the order of the log.
        refused: the calls that never became steps.
        approvals: the requests for approval, in the order of the decisions; then the undecided
            requests.
        undos: the result of each undo of a step.
        rewinds: the end of each undo.
        policies: each policy loaded during the run.
        stops: each order to stop that was seen.
        undone: by run and step of the first execution, the result of its undo.
        last_time: the latest time of a line (Unix, µs).
        attempts: the sessions of the run, in order.
        shut: the line that closes the log: an unclaimed copy, a move to another store, a pruning.
    """

    started: Event = dataclasses.field(default_factory=dict[str, Any])
    finished: Event | None = None
    abandoned: Event | None = None
    steps: list[Step] = dataclasses.field(default_factory=list[Step])
    refused: list[RefusedCall] = dataclasses.field(default_factory=list[RefusedCall])
    approvals: list[AskedApproval] = dataclasses.field(default_factory=list[AskedApproval])
    undos: list[Event] = dataclasses.field(default_factory=list[Event])
    rewinds: list[Event] = dataclasses.field(default_factory=list[Event])
    policies: list[Event] = dataclasses.field(default_factory=list[Event])
    stops: list[Event] = dataclasses.field(default_factory=list[Event])
    undone: dict[tuple[str, int], str] = dataclasses.field(
        default_factory=dict[tuple[str, int], str]
    )
    last_time: int = 0
    attempts: list[Attempt] = dataclasses.field(default_factory=list[Attempt])
    shut: Event | None = None

    @property
    def id(self) -> str:
        """Return the run's id."""
        return str(self.started["run"])

    @property
    def status(self) -> str:
        """Return the status, such as `ok` or `paused`; `unfinished` while live, or after a crash.

        A run that was set aside is `abandoned`.
        """
        if self.abandoned:
            return "abandoned"
        return str(self.finished["status"]) if self.finished else "unfinished"

    @property
    def totals(self) -> Totals:
        """Return the sums."""
        by_number = {step.step: step for step in self.steps}
        replayed = (n for attempt in self.attempts for n in attempt.answers)
        spared = [by_number[n] for n in replayed if n in by_number]
        once = {step.step for step in spared}
        spared += [s for s in self.steps if s.state == "hit" and s.step not in once]
        return Totals(
            steps=len(self.steps),
            states={state: sum(step.state == state for step in self.steps) for state in STATES},
            seconds_saved=sum(step.duration or 0 for step in spared) / 1e6,
            tokens_saved=sum(step.tokens for step in spared),
            refused=len(self.refused),
        )

    @property
    def effects(self) -> list[Step]:
        """Return the writes that were performed, or may have been, and were not undone."""
        return [step for step in self.steps if step.stays_done]

    def step(self, number: int) -> Step | None:
        """Return the step of this number; None without one."""
        return next((step for step in self.steps if step.step == number), None)
