"""A run over time: its attempts, their steps, and their waits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from rollcage_views.runs import Run, Step

__all__ = ["Bar", "Timeline", "timeline_of"]

Event = dict[str, Any]
Kind = Literal["attempt", "step", "wait"]


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """Something that took time.

    Attributes:
        kind: `attempt`, a session from its beginning to its end; `step`; or `wait`: for an
            approval, or for the next attempt.
        run: the id of the run.
        title: the tool's name, or the reason for a wait.
        state: the attempt's status, the step's state, or the end of a wait, for example `approved`
            or `resumed`; `waiting` without one.
        start: when it began (Unix, µs).
        length: how long it took (µs); 0 for a replayed step.
        step: its number; None if it is no step.
        parent: the step in whose body it was called.
    """

    kind: Kind
    run: str
    title: str
    state: str
    start: int
    length: int
    step: int | None = None
    parent: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """The attempts at a run over time.

    Attributes:
        start: when the first began (Unix, µs).
        end: the latest time in the last one.
        bars: each attempt, oldest first, followed by its steps and waits.
    """

    start: int
    end: int
    bars: list[Bar]

    @property
    def length(self) -> int:
        """From the first beginning to the last end (µs); at least 1."""
        return max(self.end - self.start, 1)

    def place(self, bar: Bar) -> tuple[float, float]:
        """Return the place and the length of a bar, as parts of the whole: from 0 to 1."""
        start = min(max((bar.start - self.start) / self.length, 0.0), 1.0)
        return start, min(max(bar.length, 0) / self.length, 1.0 - start)

    def as_data(self) -> dict[str, Any]:
        """Return the timeline for machines."""
        bars = [dataclasses.asdict(bar) for bar in self.bars]
        return {"start": self.start, "end": self.end, "bars": bars}


def timeline_of(seen: Run) -> Timeline:
    """Return the attempts at a run over time."""
    waits = _waits(seen)
    if len(seen.attempts) > 1:
        bars = [*_attempts(seen, waits)]
    else:
        begun, title = seen.started["time"], str(seen.started["name"])
        inside = sorted((*map(_step(seen), seen.steps), *waits), key=lambda bar: bar.start)
        bars = [Bar("attempt", seen.id, title, seen.status, begun, seen.last_time - begun), *inside]
    start = min(bar.start for bar in bars)
    return Timeline(start, max(bar.start + bar.length for bar in bars), bars)


def _attempts(seen: Run, waits: Sequence[Bar]) -> Iterator[Bar]:
    """Yield the attempts at a run, each followed by its steps, and by the wait for the next."""
    title, step = str(seen.started["name"]), _step(seen)
    pairs = zip(seen.attempts, [*seen.attempts[1:], None], strict=True)
    for number, (attempt, later) in enumerate(pairs, 1):
        steps = [step(each) for each in seen.steps if each.attempt == number]
        latest = max((bar.start + bar.length for bar in steps), default=attempt.begin)
        end = attempt.end or (latest if later is not None else max(latest, seen.last_time))
        status = attempt.status or ("died" if later is not None else seen.status)
        yield Bar("attempt", seen.id, title, status, attempt.begin, max(end - attempt.begin, 0))
        until = None if later is None else later.begin
        inside = [
            bar
            for bar in waits
            if attempt.begin <= bar.start and (until is None or bar.start < until)
        ]
        yield from sorted((*steps, *inside), key=lambda bar: bar.start)
        if later is not None:
            why = attempt.waits if status == "paused" and attempt.waits else ""
            told = why or f"nothing ran: {status}"
            yield Bar("wait", seen.id, told, "resumed", end, max(later.begin - end, 0))


def _step(seen: Run) -> Callable[[Step], Bar]:
    def bar(step: Step) -> Bar:
        took = 0 if step.state == "hit" else step.duration or 0
        return Bar("step", seen.id, step.name, step.state, step.time, took, step.step, step.parent)

    return bar


def _waits(seen: Run) -> list[Bar]:
    """Return the waits for approvals while the run was live.

    A call that another attempt requests again waits once: from its first request to its decision.
    """
    decisions = [each.decision for each in seen.approvals if each.decision is not None]
    decided = {each["id"]: each for each in decisions if each["id"]}
    asked: set[str] = set()
    found: list[Bar] = []
    for each in seen.approvals:
        if not each.request or each.request["id"] in asked:
            continue
        if each.request["id"]:  # the id is hidden from viewers without values
            asked.add(each.request["id"])
        begun = each.request["time"]
        decision = each.decision or decided.get(each.request["id"], {})
        ended = decision["time"] if decision else seen.last_time
        state = str(decision.get("decision", "waiting"))
        title = f"approval of {each.request['name']}"
        found.append(Bar("wait", seen.id, title, state, begun, max(ended - begun, 0)))
    return found
