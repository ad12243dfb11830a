"""A run out of its trace: the events folded, once, to steps and what became of each.

Whatever shows, compares, audits or judges recorded runs reads these. (A replay asks another
question, which recorded step may stand for a call, over several traces: `replay.generation`.)

The first line says the format: the log of a run (rollcage/2) is folded by `trace.logs`, to the same
classes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from rollcage.errors import TraceCorrupt
from rollcage.trace.constructors import Event, call_refused
from rollcage.trace.reader import check_events, is_log, read_events
from rollcage.trace.step import REPLAYED, STATES, Step, begin, end

__all__ = [
    "AskedApproval",
    "Attempt",
    "RefusedCall",
    "Run",
    "Totals",
    "Traced",
    "fold",
    "read_run",
]


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
        event = call_refused(
            kind=self.kind,
            name=self.name,
            version=self.version,
            args=self.args,
            code=self.code,
            reason=self.reason,
            branch=self.branch,
            turn=self.turn,
            slot=self.slot,
            agent=self.agent,
            call_id=self.call_id,
            parent=self.parent,
        )
        return {**event, "time": self.time}


@dataclasses.dataclass(slots=True)
class Attempt:
    """One session's part of a run: from its beginning until it was left, or died.

    Attributes:
        id: random; of a trace of the format rollcage/1, its run's.
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
        attempts: the sessions that made it, in their order; a trace of rollcage/1 is of one.
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


def read_run(trace: Traced, *, schema: bool = True) -> Run:
    """Read a trace, `Store.read(run)` for example.

    Args:
        trace: its whole lines, and where they are from.
        schema: check each line against the published schema too, not only the chain of hashes.

    Raises:
        TraceCorrupt: a line that breaks the chain or the schema.
    """
    if schema:
        events = enumerate(check_events(trace.data, trace.where), 1)
        return _fold_log(events, trace.where) if is_log(trace.data) else fold(events)
    if is_log(trace.data):
        return _fold_log(read_events(trace.data, trace.where), trace.where)
    line = 0
    folding = _Folding()
    for line, event in read_events(trace.data, trace.where):
        try:
            folding.take(line, event)
        except (LookupError, TypeError, AttributeError) as error:
            message = f"not an event of this format: {error!r}"
            raise TraceCorrupt(trace.where, line, message) from None
    return folding.end()


def fold(events: Iterable[tuple[int, Event]]) -> Run:
    """The run that these events are of, each with its line; they have passed the schema.

    Raises:
        TraceCorrupt: in the log of a run, a line that does not fit those before it.
    """
    rest = iter(events)
    first = next(rest, None)
    if first is None:
        return _Folding().end()
    events = itertools.chain([first], rest)
    if first[1]["event"] == "run":
        return _fold_log(events, "the log")
    folding = _Folding()
    for line, event in events:
        folding.take(line, event)
    return folding.end()


def _fold_log(events: Iterable[tuple[int, Event]], where: str) -> Run:
    from rollcage.trace.logs import fold_log  # it takes the heart, which few readers of old runs do

    return fold_log(events, where)


class _Folding:
    """A run, event by event."""

    def __init__(self) -> None:
        self._run = Run()
        self._steps: dict[int, Step] = {}
        self._first_ran: dict[tuple[str, int], list[Step]] = {}
        self._asked: dict[str, AskedApproval] = {}

    def end(self) -> Run:
        run = self._run
        run.steps = list(self._steps.values())
        run.approvals += self._asked.values()
        if run.started:
            run.attempts = [_only_attempt(run)]
        return run

    def take(self, line: int, event: Event) -> None:  # noqa: C901, PLR0912 - one case an event
        run, kind = self._run, event["event"]
        run.last_time = max(run.last_time, event["time"])
        match kind:
            case "step.started" | "step.replayed" | "step.blocked" | "branch.joined":
                step = self._steps[event["step"]] = begin(event, line)
                own = step.origin or (run.started["run"], step.step)
                self._first_ran.setdefault((own[0], own[1]), []).append(step)
            case "step.finished" | "step.resolved":
                begun = self._steps.get(event["step"])
                if begun is not None:  # else `verify` says so
                    end(begun, event, line)
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


def _only_attempt(run: Run) -> Attempt:
    """The session that made a trace: each made one."""
    finished = run.finished or {}
    replayed = [step.step for step in run.steps if step.state in REPLAYED]
    return Attempt(
        id=run.started["run"],
        begin=run.started["time"],
        end=finished.get("time"),
        status=finished.get("status", ""),
        replay=run.started["mode"],
        on_divergence=run.started["on_divergence"],
        replayed=[(n, n) for n in replayed],
        steps=[step.step for step in run.steps if step.state not in REPLAYED],
        hits=len(replayed),
        error=finished.get("error"),
        waits=finished.get("reason") or "",
    )


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
