"""A trace's events as steps, each with what became of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from rollcage.store import RunTrace
from rollcage.trace import check_events

__all__ = ["REPLAYED", "STATES", "RefusedRow", "RunView", "State", "StepRow", "Totals", "view"]

State = Literal["hit", "seen", "ran", "failed", "blocked", "unknown", "cut_off", "not_started"]
"""What became of a step in its run.

`hit`: a recorded outcome was given back; `seen`: the framework's own memory held its result, so it
was not asked for; `ran` and `failed`: it ran; `blocked`: refused; `unknown`: a write that may have
happened or not; `cut_off`: a read, a model call or a scope without an end; `not_started`:
cancelled, or resolved as such.
"""
STATES: Final[tuple[State, ...]] = get_args(State)
REPLAYED: Final = frozenset({"hit", "seen"})
"""The states of steps that were not run: a recorded outcome stands for them."""


@dataclasses.dataclass(slots=True)
class StepRow:
    """A step. Times are Unix µs, durations µs; `origin` is where a hit first ran.

    `undoes` is the step that it was made to take back; `undone` what became of its own undo.
    `undeclared` are the permissions that its body would have taken beside those of its tool.
    `approval` is the request that somebody decided on, `decided_by` who approved or rejected it.
    `supersedes` is the recorded step in whose place it ran again; `orphans` those it left behind.
    """

    step: int
    kind: str
    name: str
    version: str
    effect: str
    args: dict[str, Any]
    key: str
    turn: int
    slot: int
    branch: str
    agent: str
    parent: int | None
    time: int
    state: State
    outcome: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = None
    duration: int | None = None
    origin: list[Any] | None = None
    resolved_by: str | None = None
    undoes: list[Any] | None = None
    undone: str | None = None
    drift: str | None = None
    undeclared: list[str] | None = None
    approval: str | None = None
    decided_by: str | None = None
    supersedes: list[Any] | None = None
    orphans: list[list[Any]] | None = None

    @property
    def tokens(self) -> int:
        """The tokens that its model call used."""
        usage: dict[str, int] = (self.outcome or {}).get("usage") or {}
        return sum(usage.values())

    @property
    def stays_done(self) -> bool:
        """Whether it is a write that was performed, or may have been, and was not taken back."""
        performed = self.outcome is None or self.outcome["status"] in ("ok", "unknown")
        writes = self.kind == "tool" and self.effect == "write" and self.state != "blocked"
        undone = self.undone in ("verified", "compensated")
        return writes and performed and not undone and self.undoes is None

    @property
    def unreplayable(self) -> str | None:
        """Why what a performed write gave can't be given back; None where it can be."""
        outcome = self.outcome or {}
        raised = "drift" in outcome and not outcome["drift"].get("reported")
        ran = self.state == "ran" and self.stays_done and not raised
        return outcome.get("lossy") if ran else None

    def settle(self, outcome: dict[str, Any]) -> None:
        """Take an outcome in."""
        self.outcome = outcome
        status = outcome["status"]
        ended: dict[str, State] = {"ok": "ran", "error": "failed", "not_started": "not_started"}
        self.state = ended.get(status, _without_end(self.kind, self.effect))


@dataclasses.dataclass(slots=True)
class RefusedRow:
    """A call that never became a step: what was asked for, and why nothing ran."""

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


@dataclasses.dataclass(slots=True)
class Totals:
    """Sums over a run: how many steps of each state, what the hits spared, and refused calls."""

    steps: int
    states: dict[str, int]
    seconds_saved: float
    tokens_saved: int
    refused: int = 0


@dataclasses.dataclass(slots=True)
class RunView:
    """A run, as far as its trace tells."""

    started: dict[str, Any]
    finished: dict[str, Any] | None
    steps: list[StepRow]
    last_time: int
    abandoned: dict[str, Any] | None = None
    undone: dict[tuple[str, int], str] = dataclasses.field(
        default_factory=dict[tuple[str, int], str]
    )  # what became of the undo of a step, by the run and step where it first ran
    refused: list[RefusedRow] = dataclasses.field(default_factory=list[RefusedRow])

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
        hits = [row for row in self.steps if row.state in REPLAYED]
        return Totals(
            steps=len(self.steps),
            states={state: sum(row.state == state for row in self.steps) for state in STATES},
            seconds_saved=sum(row.duration or 0 for row in hits) / 1e6,
            tokens_saved=sum(row.tokens for row in hits),
            refused=len(self.refused),
        )

    @property
    def effects(self) -> list[StepRow]:
        """The writes that were performed, or may have been, and were not taken back."""
        return [row for row in self.steps if row.stays_done]

    def step(self, number: int) -> StepRow | None:
        """The step of this number."""
        return next((row for row in self.steps if row.step == number), None)


_BEGINNINGS: Final = frozenset({"step.started", "step.replayed", "step.blocked", "branch.joined"})


def view(trace: RunTrace) -> RunView:
    """Read a trace.

    Raises:
        TraceCorrupt: a line that breaks the chain or the schema, or refers to no step.
    """
    return from_events(check_events(trace.data, trace.where))


def from_events(events: Iterable[dict[str, Any]]) -> RunView:
    """The run that these events tell of; they have passed the schema."""
    rows: dict[int, StepRow] = {}
    started: dict[str, Any] = {}
    finished: dict[str, Any] | None = None
    abandoned: dict[str, Any] | None = None
    undone: dict[tuple[str, int], str] = {}
    refused: list[RefusedRow] = []
    last = 0
    for event in events:
        last = max(last, event["time"])
        kind = event["event"]
        if kind == "run.started":
            started = event
        elif kind == "run.finished":
            finished = event
        elif kind == "run.abandoned":
            abandoned = event
        elif kind in ("step.finished", "step.resolved"):
            row = rows.get(event["step"])
            if row is not None:  # else `verify` says so
                _end(row, event)
        elif kind == "call.refused":
            refused.append(_refused(event))
        elif kind == "undo.finished":
            undone[event["of"][0], event["of"][1]] = event["status"]
            _undo(event, rows, started)
        elif kind in _BEGINNINGS:
            rows[event["step"]] = _begin(event)
    return RunView(started, finished, list(rows.values()), last, abandoned, undone, refused)


def _refused(event: dict[str, Any]) -> RefusedRow:
    return RefusedRow(
        name=event["name"],
        version=event.get("version", ""),
        args=event["args"],
        code=event["code"],
        reason=event["reason"],
        kind=event["kind"],
        branch=event.get("branch", ""),
        turn=event.get("turn"),
        slot=event.get("slot"),
        agent=event.get("agent", ""),
        call_id=event.get("call_id", ""),
        parent=event.get("parent"),
        time=event["time"],
    )


def _undo(event: dict[str, Any], rows: dict[int, StepRow], started: dict[str, Any]) -> None:
    """Take in what became of the undo of a step, which may be the replay of another run's."""
    of: list[Any] = event["of"]
    for row in rows.values():
        own = row.origin[:2] if row.origin else [started.get("run"), row.step]
        if own == of:
            row.undone = event["status"]


def _begin(event: dict[str, Any]) -> StepRow:
    joined = event["event"] == "branch.joined"
    kind = "branch" if joined else event["kind"]
    effect = "write" if joined else event["effect"]
    row = StepRow(
        step=event["step"],
        kind=kind,
        name=event["name"],
        version=event.get("version", ""),
        effect=effect,
        args=event.get("args", {}),
        key=event["key"],
        turn=event["turn"],
        slot=event["slot"],
        branch=event.get("branch", ""),
        agent=event.get("agent", ""),
        parent=event.get("parent"),
        time=event["time"],
        state=_without_end(kind, effect),
        verdict=event.get("verdict"),
        origin=event.get("origin"),
        undoes=event.get("undoes"),
        drift=event.get("drift"),
        approval=event.get("approval"),
        decided_by=event.get("approved_by") or event.get("rejected_by"),
        supersedes=event.get("supersedes"),
        orphans=event.get("orphans"),
    )
    if joined:
        row.state = _given(event) if row.origin else "ran"
    elif event["event"] == "step.blocked":
        row.state = "blocked"
    elif event["event"] == "step.replayed":
        row.outcome, row.duration = event["outcome"], event["duration"]
        row.state = "unknown" if event["outcome"]["status"] == "unknown" else _given(event)
    return row


def _given(event: dict[str, Any]) -> State:
    """How a recorded step was used up: asked for, or seen in a framework's own memory."""
    return "seen" if event.get("seen") else "hit"


def _end(row: StepRow, event: dict[str, Any]) -> None:
    row.settle(event["outcome"])
    row.duration = event.get("duration", row.duration)
    row.resolved_by = event.get("by")
    row.undeclared = event.get("undeclared")


def _without_end(kind: str, effect: str) -> State:
    """What a step is of which only the beginning is recorded."""
    return "unknown" if kind == "tool" and effect == "write" else "cut_off"
