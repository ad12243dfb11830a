"""A run out of its trace: the events folded, once, to steps and what became of each.

Whatever shows, compares, audits or judges recorded runs reads these. (A replay asks another
question, which recorded step may stand for a call, over several traces: `replay.generation`.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol, get_args

from rollcage.errors import TraceCorrupt
from rollcage.trace.constructors import Event
from rollcage.trace.reader import check_events, read_events

__all__ = [
    "REPLAYED", "STATES", "AskedApproval", "RefusedCall", "Run", "State", "Step", "Totals",
    "Traced", "fold", "read_run",
]  # fmt: skip

State = Literal[
    "hit", "seen", "ran", "simulated", "failed", "blocked", "unknown", "cut_off", "not_started"
]
"""What became of a step in its run.

`hit`: a recorded outcome was given back; `seen`: the framework's own memory held its result, so it
was not asked for; `ran` and `failed`: it ran; `simulated`: what a fork was given stood for it;
`blocked`: refused; `unknown`: a write that may have
happened or not; `cut_off`: a read, a model call or a scope without an end; `not_started`:
cancelled, or resolved as such.
"""
STATES: Final[tuple[State, ...]] = get_args(State)
REPLAYED: Final = frozenset({"hit", "seen"})
"""The states of steps that were not run: a recorded outcome stands for them."""


@dataclasses.dataclass(slots=True)
class Step:
    """A call at its place in a run, with its verdict and its outcome.

    A branch that came back is one too, of the kind `branch`. What is encoded stays as the trace has
    it: `rollcage.trace.decode` gives the value.

    Attributes:
        step: its number in its run, from 1.
        kind: `tool`, `model` or `branch`.
        name: of the tool, the model or the branch.
        version: of the tool.
        effect: `pure`, `read`, `write` or `scope`.
        args: the arguments, encoded.
        key: the call's content identity.
        turn: the number of the model's message that asked for it.
        slot: its place in that message.
        branch: in which it stands; empty for the first one.
        agent: the agent's name.
        parent: the step whose body made the call.
        time: when it began (Unix, µs).
        state: what became of it.
        outcome: its outcome, as `Outcome` of the schema; None without an end.
        verdict: what the gate said of it, where that is recorded.
        duration: how long its body ran (µs), where it ran first.
        origin: run, step and turn where a hit first ran.
        resolved_by: who said late what became of it.
        undoes: the step (run, step) that it was made to undo.
        undone: what became of its own undo.
        drift: how a fresh execution differed (`verify`).
        undeclared: the permissions that its body would have taken beside those of its tool.
        approval: the request that somebody decided on.
        decided_by: who approved or rejected it.
        supersedes: the recorded step (run, step) in whose place it ran again.
        orphans: the recorded effects (run, step) that it left behind.
        call_id: the framework's id of the call.
        world: of all the effects before it, as a hash; empty where it has no place.
        position: how many batches of writes its branch had behind it.
        occurrence: which of the identical calls in its world it is; empty where it has no place.
        reversible: whether it has a plan that undoes it, or got one when it ended.
        labels: what its result carries.
        simulated: in a fork, the effect of the tool for which something stood in; else None.
        changed: whether it is the step that the fork changes.
        assumed: whether it was recorded in another world than that of the fork.
        line: of its beginning in the trace, from 1.
        ended: when its end was written (Unix, µs), where one was.
        ended_line: of its first end in the trace.
        before: by resource, the state that it changed, encoded; None where nothing observes it.
        after: by resource, the digest of the state behind it, or of each of its fields.
        plan: the calls that undo it; None where it has none.
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
    call_id: str = ""
    world: str = ""
    position: int = 0
    occurrence: tuple[int, ...] = ()
    reversible: bool = False
    labels: tuple[str, ...] = ()
    simulated: str | None = None
    changed: bool = False
    assumed: bool = False
    line: int = 0
    ended: int | None = None
    ended_line: int | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    plan: list[dict[str, Any]] | None = None

    @property
    def tokens(self) -> int:
        """The tokens that its model call used."""
        usage: dict[str, int] = (self.outcome or {}).get("usage") or {}
        return sum(usage.values())

    @property
    def stays_done(self) -> bool:
        """Whether it is a write that was performed, or may have been, and was not undone."""
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

    def _end(self, event: Event, line: int) -> None:
        self.outcome = event["outcome"]
        ended: dict[str, State] = {"ok": "ran", "error": "failed", "not_started": "not_started"}
        self.state = ended.get(event["outcome"]["status"], _without_end(self.kind, self.effect))
        if self.simulated is not None and self.state == "ran":
            self.state = "simulated"
        self.duration = event.get("duration", self.duration)
        self.resolved_by = event.get("by")
        self.undeclared = event.get("undeclared")
        self.labels = tuple(event.get("labels") or self.labels)
        self.after = event.get("after") or self.after
        self.plan = event.get("plan", self.plan)
        self.ended = event["time"]
        self.ended_line = self.ended_line or line


@dataclasses.dataclass(slots=True)
class RefusedCall:
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
    """A run, as far as its trace tells. Events in it are as the published schema has them.

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
        hits = [step for step in self.steps if step.state in REPLAYED]
        return Totals(
            steps=len(self.steps),
            states={state: sum(step.state == state for step in self.steps) for state in STATES},
            seconds_saved=sum(step.duration or 0 for step in hits) / 1e6,
            tokens_saved=sum(step.tokens for step in hits),
            refused=len(self.refused),
        )

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


def read_run(trace: Traced, *, schema: bool = True) -> Run:
    """Read a trace, `Store.read(run)` for example.

    Args:
        trace: its whole lines, and where they are from.
        schema: check each line against the published schema too, not only the chain of hashes.

    Raises:
        TraceCorrupt: a line that breaks the chain or the schema.
    """
    if schema:
        return fold(enumerate(check_events(trace.data, trace.where), 1))
    line = 0
    folding = _Folding()
    for line, event in read_events(trace.data, trace.where):
        try:
            folding.take(line, event)
        except (LookupError, TypeError, AttributeError) as error:
            said = f"not an event of this format: {error!r}"
            raise TraceCorrupt(trace.where, line, said) from None
    return folding.end()


def fold(events: Iterable[tuple[int, Event]]) -> Run:
    """The run that these events tell of, each with its line; they have passed the schema."""
    folding = _Folding()
    for line, event in events:
        folding.take(line, event)
    return folding.end()


class _Folding:
    """A run, event by event."""

    def __init__(self) -> None:
        self._run = Run()
        self._steps: dict[int, Step] = {}
        self._first_ran: dict[tuple[str, int], list[Step]] = {}
        self._asked: dict[str, AskedApproval] = {}

    def end(self) -> Run:
        self._run.steps = list(self._steps.values())
        self._run.approvals += self._asked.values()
        return self._run

    def take(self, line: int, event: Event) -> None:  # noqa: C901, PLR0912 - one case an event
        run, kind = self._run, event["event"]
        run.last_time = max(run.last_time, event["time"])
        match kind:
            case "step.started" | "step.replayed" | "step.blocked" | "branch.joined":
                step = self._steps[event["step"]] = _begin(event, line)
                own = step.origin or (run.started["run"], step.step)
                self._first_ran.setdefault((own[0], own[1]), []).append(step)
            case "step.finished" | "step.resolved":
                begun = self._steps.get(event["step"])
                if begun is not None:  # else `verify` says so
                    begun._end(event, line)  # noqa: SLF001 - its own module
            case "run.started":
                run.started = event
            case "run.finished":
                run.finished = event
            case "run.abandoned":
                run.abandoned = event
            case "run.stopped":
                run.stops.append(event)
            case "call.refused":
                run.refused.append(_refused(event))
            case "policy.loaded":
                run.policies.append(event)
            case "undo.finished":
                self._undone(event)
            case "run.rewound":
                run.rewinds.append(event)
            case "approval.requested":
                self._asked[event["id"]] = AskedApproval(event, None, line)
            case "approval.decided":
                asked = self._asked.pop(event["id"], None) or AskedApproval({}, None, line)
                asked.decision = event
                run.approvals.append(asked)
            case _:
                pass  # what begins an undo; or an event of a newer format

    def _undone(self, event: Event) -> None:
        """Take in what became of the undo of a step, which may be the replay of another run's."""
        of = event["of"][0], event["of"][1]
        self._run.undos.append(event)
        self._run.undone[of] = event["status"]
        for step in self._first_ran.get(of, ()):
            step.undone = event["status"]


def _refused(event: Event) -> RefusedCall:
    return RefusedCall(
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


def _begin(event: Event, line: int) -> Step:
    joined = event["event"] == "branch.joined"
    kind = "branch" if joined else event["kind"]
    effect = "write" if joined else event["effect"]
    step = Step(
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
        call_id=event.get("call_id", ""),
        world=event.get("world", ""),
        position=event["position"],
        occurrence=tuple(event.get("occurrence", ())),
        reversible=event.get("reversible", False),
        labels=tuple(event.get("labels") or ()),
        simulated=event.get("simulated"),
        changed=event.get("changed", False),
        assumed=event.get("assumed", False),
        line=line,
        before=event.get("before"),
        after=event.get("after"),
        plan=event.get("plan"),
    )
    if joined:
        step.state = _given(event) if step.origin else "ran"
    elif event["event"] == "step.blocked":
        step.state = "blocked"
    elif event["event"] == "step.replayed":
        step.outcome, step.duration = event["outcome"], event["duration"]
        step.state = "unknown" if event["outcome"]["status"] == "unknown" else _given(event)
    return step


def _given(event: Event) -> State:
    """How a recorded step was used up: asked for, or seen in a framework's own memory."""
    return "seen" if event.get("seen") else "hit"


def _without_end(kind: str, effect: str) -> State:
    """What a step is of which only the beginning is recorded."""
    return "unknown" if kind == "tool" and effect == "write" else "cut_off"
