"""A run as readers see it: its steps, and what became of each.

Whatever shows, compares, audits or judges recorded runs reads these classes; `trace.logs` makes
them of a log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

from rollcage.trace.step import REPLAYED, STATES, Step

__all__ = [
    "AskedApproval",
    "Attempt",
    "RefusedCall",
    "Run",
    "Totals",
    "Traced",
]

Event = dict[str, Any]


@dataclasses.dataclass(slots=True)
class RefusedCall:
    """A call that never became a step: what was asked for, and why nothing ran.

    In the log of a run, what a guard denied is one: `verdict` says what it said, and it has a `key`
    and an `effect`. `attempt` is the number of the attempt in which it was asked for, and `line`
    where the log says so.
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
    """One session's part of a run: from its beginning until it was left, or died.

    Attributes:
        id: random.
        begin: when it began (Unix, µs).
        end: when it was left; None while it is live, or if it died.
        status: as it was left (`ok`, `error`, `halted`, …); empty while it is live, or if it died.
        replay: its mode.
        on_divergence: what a new effect did while recorded effects lay ahead.
        replayed: ranges (first, last) of the steps that answered its calls, as far as it was put on
            record: one that died may have been given more.
        restarted: the steps that a framework started over in it.
        steps: the numbers of the steps that it made.
        calls: how many calls it made; None if it did not say.
        hits: how many of them were answered by recorded steps.
        error: `type` and `message` of what ended it, if anything did.
        waits: what it waits for outside, if it is `paused`.
        gate: what its gate said of itself.
        line: the number of the line with which it began.
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


@dataclasses.dataclass(slots=True)
class AskedApproval:
    """A request for approval.

    Attributes:
        request: its `approval.requested`; empty where only the decision is in this run.
        decision: its `approval.decided`; None where nobody has decided in this run.
        line: of the first of them in the trace.
    """

    request: Event
    decision: Event | None
    line: int


@dataclasses.dataclass(slots=True)
class Totals:
    """Sums over a run: how many steps of each state, what the hits spared, and refused calls."""

    steps: int
    states: dict[str, int]
    seconds_saved: float
    tokens_saved: int
    refused: int = 0


@dataclasses.dataclass(slots=True)
class Run:
    """A run, as far as its trace goes. Events in it are as the published schema has them.

    Attributes:
        started: its `run.started`.
        finished: its `run.finished`; None while it is live, or where it was cut off.
        abandoned: its `run.abandoned`, if somebody has set it aside.
        steps: in the order of the trace.
        refused: the calls that never became steps.
        approvals: the requests for approval, in the order in which they were decided; then those
            that nobody decided.
        undos: each `undo.finished`.
        rewinds: each `run.rewound`: an undo that came to its end.
        policies: each `policy.loaded`.
        stops: each `run.stopped`.
        undone: what became of the undo of a step, by the run and step where it first ran.
        last_time: the latest time that an event has (Unix, µs).
        attempts: the sessions that made it, in their order.
        shut: the line by which nothing may be added to its log: it is a copy that was not claimed,
            it goes on in another store, or it was pruned.
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
        """The run's id."""
        return str(self.started["run"])

    @property
    def status(self) -> str:
        """As it ended, `ok` or `paused`, say; `unfinished` while live, or after a crash.

        Of a run that was set aside: `abandoned`.
        """
        if self.abandoned:
            return "abandoned"
        return str(self.finished["status"]) if self.finished else "unfinished"

    @property
    def totals(self) -> Totals:
        """The sums."""
        by_number = {step.step: step for step in self.steps}
        spared = [by_number[n] for n in self._replayed() if n in by_number]
        once = {step.step for step in spared}
        spared += [s for s in self.steps if s.state in REPLAYED and s.step not in once]
        return Totals(
            steps=len(self.steps),
            states={state: sum(step.state == state for step in self.steps) for state in STATES},
            seconds_saved=sum(step.duration or 0 for step in spared) / 1e6,
            tokens_saved=sum(step.tokens for step in spared),
            refused=len(self.refused),
        )

    def _replayed(self) -> Iterator[int]:
        """The numbers of the steps that answered calls, once for each attempt."""
        for attempt in self.attempts:
            yield from {n for first, last in attempt.replayed for n in range(first, last + 1)}

    @property
    def effects(self) -> list[Step]:
        """The writes that were performed, or may have been, and were not undone."""
        return [step for step in self.steps if step.stays_done]

    def step(self, number: int) -> Step | None:
        """The step of this number."""
        return next((step for step in self.steps if step.step == number), None)


class Traced(Protocol):
    """The whole lines of a trace, and what messages call it: as `Store.read` gives it."""

    @property
    def data(self) -> bytes:
        """The lines."""
        ...

    @property
    def where(self) -> str:
        """Their file, or the like."""
        ...
