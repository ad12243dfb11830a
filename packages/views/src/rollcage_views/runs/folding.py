"""Read a run from its log (format rollcage/2): the folded steps, and further facts.

`rollcage.trace.run.Run` gives the meaning of a line; this module adds facts for readers: arguments,
times, verdicts, decisions, attempts. A step is listed once, and `Attempt.replayed` says in which
attempts it answered a call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson
from rollcage.errors import TraceCorrupt
from rollcage.trace import check_events, read_events
from rollcage.trace.lines import BAD, check_line
from rollcage.trace.recorded import LogTrace
from rollcage.trace.run import Run as Fold
from rollcage.trace.run import Step as Recorded

from rollcage_views.runs.run import AskedApproval, Attempt, RefusedCall, Run
from rollcage_views.runs.step import State, Step

__all__ = ["LogFolding", "fold_log", "read_run"]

Event = dict[str, Any]

_GATE: Final = ("policy", "facade", "user_input", "enforce")  # what a gate says of itself
_DONE: Final = ("verified", "compensated", "accepted")
_ENDED: Final[dict[str, State]] = {"ok": "ran", "error": "failed"}
_NOT_STARTED: Final = {"status": "not_started"}


def fold_log(events: Iterable[tuple[int, Event]], where: str) -> Run:
    """Return the run folded from the lines of a log, each with its number.

    Raises:
        TraceCorrupt: a line does not belong to a run, or stands at the wrong place, or there is
            none.
    """
    folding = LogFolding()
    number = 0
    try:
        for number, event in events:
            folding.take(number, event)
        if not number:
            raise TraceCorrupt(where, 1, "the trace is empty")
        return folding.end()
    except BAD as error:
        message = f"the line does not fit a run: {type(error).__name__}: {error}"
        raise TraceCorrupt(where, number, message) from None


def read_run(trace: LogTrace, *, schema: bool = True) -> Run:
    """Read the run from a log: `trace_of(store, run)`, for example.

    Args:
        trace: the whole lines, and their origin.
        schema: check each line against the published schema too, not only the chain of hashes.

    Raises:
        TraceCorrupt: a line breaks the chain or the schema, or does not fit the lines before it.
    """
    if schema:
        return fold_log(enumerate(check_events(trace.data, trace.where), 1), trace.where)
    return fold_log(read_events(trace.data, trace.where), trace.where)


@dataclasses.dataclass(slots=True)
class _Lines:
    """Hold further facts from the lines of a step.

    Attributes:
        begun: the line with which the step began.
        line: the number of that line.
        attempt: the number of the attempt in which the step began; 0: in another run.
        parent: the step whose body or block contains the step.
        path: the names of the blocks around the step.
        ended: the first line with its end; `last`: the latest such line.
        ended_line: the number of the first.
        status: the status at the time of the undo; with the outcome.
        orphans: the effects that the step left behind.
        left_by: the step that left this step behind.
        refused: the line that denied the step while it waited.
    """

    begun: Event
    line: int
    attempt: int
    parent: int | None
    path: str
    ended: Event | None = None
    last: Event | None = None
    ended_line: int | None = None
    status: str = ""
    outcome: bytes | None = None
    orphans: list[list[Any]] | None = None
    left_by: int | None = None
    refused: Event | None = None


class LogFolding:
    """Fold a run for readers, line by line."""

    def __init__(self) -> None:
        self.fold = Fold()
        self._run = Run()
        self._lines: dict[int, _Lines] = {}
        self._asked: dict[str, AskedApproval] = {}
        self._attempt: Attempt | None = None
        self._first: Event = {}
        self._forked: Event | None = None

    def take(self, number: int, event: Event) -> None:
        """Take a line in."""
        run, fold, kind = self._run, self.fold, event["event"]
        check_line(fold, event)
        if kind == "undone":
            self._keep_ends(event["steps"])
        left = [] if "left" not in event else [fold.steps[n] for n in _within(event["left"], fold)]
        acted = [step.n for step in left if step.acts]
        fold.apply(event)
        run.last_time = max(run.last_time, event.get("time", 0))
        attempt = self._attempt
        if attempt is not None:
            spans = event.get("replayed", ())
            attempt.replayed += [(first, last) for first, last in spans]
            attempt.hits += sum(1 for _ in _within(spans, fold))
            attempt.restarted += event.get("restarted", ())
        if kind == "step":
            self._step(number, event, acted)
        elif kind == "outcome":
            self._outcome(number, event)
        else:
            take = _OTHERS.get(kind)
            if take is not None:
                take(self, number, event)
        for n in acted:
            self._lines[n].left_by = event.get("step")

    @property
    def run(self) -> Run:
        """Return the run from the lines so far, without its steps and undecided requests."""
        return self._run

    def step(self, n: int) -> Step:
        """Return a step from the lines so far."""
        spans = (span for each in self._run.attempts for span in each.replayed)
        is_replayed = any(first <= n <= last for first, last in spans)
        return self._made(self.fold.steps[n], self._lines[n], is_replayed=is_replayed)

    def end(self) -> Run:
        """Return the run."""
        run, fold = self._run, self.fold
        run.attempts = run.attempts or ([] if self._attempt is None else [self._attempt])
        run.started = self.started()
        replayed = {n for each in run.attempts for n in _within(each.replayed, fold)}
        for n, lines in self._lines.items():
            recorded = fold.steps[n]
            is_placeholder = "waits" in lines.begun and recorded.gone == "again"
            if is_placeholder or (recorded.borrowed and n not in replayed):
                continue
            run.steps.append(self._made(recorded, lines, is_replayed=n in replayed))
        run.approvals += self._asked.values()
        self._add_decisions()
        return run

    # --- lines -----------------------------------------------------------------------------------

    def _step(self, number: int, event: Event, acted: list[int]) -> None:
        n = event["step"]
        owner = self.fold.owner(event["branch"])
        parent = None if owner is None else owner.n
        path = ""
        if owner is not None:
            around = self._lines[owner.n].path
            inner = owner.name if owner.effect == "branch" else ""
            path = "/".join(filter(None, (around, inner)))
        attempts = len(self._run.attempts)
        lines = self._lines[n] = _Lines(event, number, attempts, parent, path)
        if "outcome" in event:
            lines.ended, lines.last, lines.ended_line = event, event, number
        if acted:
            lines.orphans = [[self.fold.id, each] for each in acted]
        if self._attempt is not None:
            self._attempt.steps.append(n)

    def _outcome(self, number: int, event: Event) -> None:
        lines = self._lines[event["step"]]
        lines.last = event
        if lines.ended is None:
            lines.ended, lines.ended_line = event, number

    def _keep_ends(self, numbers: Iterable[int]) -> None:
        """Keep the outcomes of steps to be undone: their places may wait for another call."""
        for n in numbers:
            step, lines = self.fold.steps[n], self._lines[n]
            lines.status, lines.outcome = step.status, step.outcome

    def _begins(self, number: int, event: Event) -> None:  # noqa: ARG002 - as all of them
        self._first = event

    def _attempts(self, number: int, event: Event) -> None:
        made = Attempt(
            id=event["id"],
            begin=event.get("time", 0),
            replay=event.get("replay", "auto"),
            on_divergence=event.get("on_divergence", "halt"),
            gate=event.get("gate", []),
            line=number,
        )
        self._attempt = made
        self._run.attempts.append(made)
        self._run.finished = None

    def _ends(self, number: int, event: Event) -> None:  # noqa: ARG002 - as all of them
        if event["status"] == "abandoned":
            self._run.abandoned = {
                "event": "run.abandoned", "time": event["time"],
                "by": event.get("by", ""), "reason": event.get("reason", ""),
            }  # fmt: skip
            return
        attempt = self._attempt
        if attempt is None:
            raise ValueError("an attempt ends that has not begun")
        attempt.end, attempt.status = event.get("time"), event["status"]
        attempt.calls, attempt.hits = event["calls"], event["hits"]
        attempt.error, attempt.waits = event.get("error"), event.get("waits", "")
        self._run.finished = {
            "event": "run.finished", "time": event["time"], "status": event["status"],
            "steps": len(self._lines),
            **_given(error=attempt.error, reason=attempt.waits),
        }  # fmt: skip

    def _forks(self, number: int, event: Event) -> None:  # noqa: ARG002 - as all of them
        """Begin the fork: the lines so far belong to another run."""
        self._forked = event
        run = self._run
        self._run = Run(last_time=run.last_time)
        self._attempt = None
        for lines in self._lines.values():
            lines.attempt = 0
            lines.orphans = None
        self._asked.clear()

    def _refuses(self, number: int, event: Event) -> None:
        if "step" in event:
            self._lines[event["step"]].refused = event
            return
        verdict = event["verdict"]
        owner = self.fold.owner(event["branch"])
        self._run.refused.append(
            RefusedCall(
                name=event["name"],
                version=event.get("version", ""),
                args=event.get("args", {}),
                code=verdict["code"],
                reason=verdict["reason"],
                kind=event["kind"],
                branch=self._path(event["branch"]),
                turn=event.get("turn"),
                slot=event.get("slot"),
                agent=event.get("agent", ""),
                call_id=event.get("call_id", ""),
                parent=None if owner is None else owner.n,
                time=event.get("time", 0),
                verdict=verdict,
                attempt=len(self._run.attempts),
                key=event.get("key", ""),
                effect=event.get("effect", ""),
                line=number,
            )
        )

    def _requests(self, number: int, event: Event) -> None:
        begun = self._lines[event["step"]].begun
        step = self.fold.steps[event["step"]]
        request = {
            "event": "approval.requested", "time": event["time"], "step": step.n,
            "id": event["id"], "idempotency_key": self.fold.idempotency_key(step),
            "policy": event["policy"], "kind": "model" if step.effect == "model" else "tool",
            "name": step.name, "version": begun.get("version", ""), "args": begun["args"],
            "key": step.key, "turn": step.turn, "slot": step.slot, "verdict": event["verdict"],
            "requested_by": event["requested_by"], "expires": event["expires"],
            **_given(
                branch=self._path(step.branch),
                agent=begun.get("agent"),
                call_id=begun.get("call_id"),
            ),
        }  # fmt: skip
        self._asked[event["id"]] = AskedApproval(request, None, number)

    def _decides(self, number: int, event: Event) -> None:
        asked = self._asked.pop(event["id"], None) or AskedApproval({}, None, number)
        asked.decision = {
            "event": "approval.decided", "time": event["time"], "step": event["step"],
            "id": event["id"], "idempotency_key": asked.request.get("idempotency_key", ""),
            "policy": asked.request.get("policy", ""), "decision": event["decision"],
            "by": event.get("by", ""),
            **_given(
                reason=event.get("reason"), code=event.get("code"), args=event.get("args")
            ),
        }  # fmt: skip
        self._run.approvals.append(asked)

    def _taken_back(self, number: int, event: Event) -> None:  # noqa: ARG002 - as all of them
        of = self.fold.id, event["step"]
        self._run.undos.append({
            "event": "undo.finished", "time": event["time"], "of": list(of),
            "status": event["status"],
            **_given(reason=event.get("reason"), differs=event.get("differs")),
        })  # fmt: skip
        self._run.undone[of] = event["status"]

    def _loads(self, number: int, event: Event) -> None:  # noqa: ARG002 - as all of them
        error = event.get("error")
        self._run.policies.append({
            "event": "policy.loaded", "time": event["time"],
            **_given(policy=event.get("policy"), error=error and {"type": error}),
        })  # fmt: skip

    def _rewinds(self, number: int, event: Event) -> None:  # noqa: ARG002 - as all of them
        self._run.rewinds.append(event)

    def _shuts(self, number: int, event: Event) -> None:  # noqa: ARG002 - as all of them
        self._run.shut = self.fold.shut

    def _orders(self, number: int, event: Event) -> None:  # noqa: ARG002 - as all of them
        if event["order"] == "stop":
            self._run.stops.append({
                "event": "run.stopped", "time": event["time"], "run": self.fold.id,
                "by": event["by"], "reason": event["reason"], "ordered": event["given"],
            })  # fmt: skip

    # --- what they make --------------------------------------------------------------------------

    def _path(self, branch: str) -> str:
        owner = self.fold.owner(branch)
        if owner is None:
            return ""
        inner = owner.name if owner.effect == "branch" else ""
        return "/".join(filter(None, (self._lines[owner.n].path, inner)))

    def asked(self, request: str) -> AskedApproval:
        """Return an undecided request for approval."""
        return self._asked[request]

    def started(self) -> Event:
        """Return the beginning of the run, in the form of a `run.started`."""
        first, fold, attempts = self._first, self.fold, self._run.attempts
        forked = self._forked
        mode, source = "resume" if len(attempts) > 1 else "record", None
        if fold.imported is not None:
            mode = "imported"
        if forked is not None:
            mode, source = "resume" if fold.continues else "fork", forked["from"]
        gate = [each for attempt in attempts[-1:] for each in attempt.gate]
        started: Event = {
            "event": "run.started", "time": (forked or first)["time"], "format": first["format"],
            "run": fold.id, "name": fold.name, "mode": mode, "source": source,
            "on_divergence": attempts[-1].on_divergence if attempts else "halt",
            "rules": [each["rule"] for each in gate if "rule" in each],
            **_given(
                seed=first.get("seed"),
                actor=first.get("actor"),
                imported=None if forked is not None else fold.imported,
            ),
        }  # fmt: skip
        if "input" in first:
            started["input"] = {"value": first["input"]}
        if first.get("redacted"):
            started["redacted"] = True
        if forked is not None and not fold.continues:
            started["fork"] = {
                "run": source, "step": forked.get("at"), "live": not fold.dry,
                "change": forked.get("change", "code"),
            }  # fmt: skip
            for n in (*fold.fixed, *fold.edits):
                change = "args" if n in fold.edits else _change_of(fold.steps[n])
                started["fork"] |= {"step": n, "change": change}
            if "to" in forked:
                started["fork"]["to"] = forked["to"]
        for each in gate:
            started.update((name, each[name]) for name in _GATE if name in each)
        return started

    def _made(self, step: Recorded, lines: _Lines, *, is_replayed: bool) -> Step:
        begun, last = lines.begun, lines.last or {}
        is_block = step.effect == "branch"
        status, data = step.status, step.outcome
        is_vacant = status == "waiting" and lines.status and not step.gone
        if lines.status and (is_vacant or step.gone == "undone"):
            status, data = lines.status, lines.outcome
        outcome: Event | None = None if data is None else orjson.loads(data)
        state = self._state(step, lines, status, is_replayed=is_replayed)
        if state == "not_started":
            outcome = dict(_NOT_STARTED)
        took = None if lines.ended is None else lines.ended.get("duration")
        ended = last.get("time") if "outcome" not in begun else None
        if ended is None and lines.ended is not None:
            ended = begun.get("time", 0) + (took or 0)
        made = Step(
            step=step.n,
            kind="branch" if is_block else "model" if step.effect == "model" else "tool",
            name=step.name,
            version=begun.get("version", ""),
            effect={"branch": "write", "model": "read"}.get(step.effect, step.effect),
            args={} if is_block else begun["args"],
            key=step.key,
            turn=step.turn,
            slot=step.slot,
            branch=lines.path,
            agent=begun.get("agent", ""),
            parent=lines.parent,
            time=begun.get("time", 0),
            state=state,
            outcome=None if is_block else outcome,
            verdict=begun.get("verdict"),
            duration=took,
            origin=self._origin(step, begun, is_replayed=is_replayed),
            resolved_by=(last["by"] or "operator") if "by" in last else None,
            undoes=self._undoes(step),
            undone=self._undone(step),
            undeclared=last.get("undeclared"),
            approval=begun.get("approval"),
            supersedes=self._superseded(begun),
            orphans=lines.orphans,
            call_id=begun.get("call_id", ""),
            position=step.pos,
            reversible="reversible" in begun,
            labels=tuple(last.get("labels") or begun.get("labels") or ()),
            simulated=step.effect if step.simulated or step.n in self.fold.fixed else None,
            changed=step.n in self.fold.fixed or begun.get("again", step.n) in self.fold.edits,
            assumed="assumed" in begun,
            line=lines.line,
            ended=ended,
            ended_line=lines.ended_line,
            before=begun.get("before"),
            after=last.get("after"),
            plan=last.get("plan", begun.get("plan")),
            attempt=lines.attempt,
            framework=begun.get("framework", ""),
            block=begun.get("kind", "branch") if is_block else "",
            home=step.branch,
            gone=step.gone,
            replacement=step.replacement or None,
            left_by=lines.left_by,
            rolled=step.rolled,
            unclear=step.unclear,
            accepted=step.accepted,
            answered=step.answered,
            happened=None if step.happened is None else orjson.loads(step.happened),
            once=step.once,
        )
        if lines.refused is not None and state == "blocked":
            made.verdict = lines.refused["verdict"]
        return made

    def _state(self, step: Recorded, lines: _Lines, status: str, *, is_replayed: bool) -> State:
        if status == "waiting":
            if lines.refused is not None:
                return "blocked"
            return "not_started" if lines.last is not None else "waiting"
        if step.borrowed and is_replayed:
            return "simulated" if step.n in self.fold.fixed else "hit"
        if (step.once is not None and step.once[0] != "mine") or "from" in lines.begun:
            return "hit"
        if step.simulated and status == "ok":
            return "simulated"
        ended = _ENDED.get(status)
        if ended is not None:
            return ended
        return "unknown" if step.effect == "write" else "cut_off"

    def _origin(self, step: Recorded, begun: Event, *, is_replayed: bool) -> list[Any] | None:
        if "from" in begun:
            return [self.fold.id, begun["from"], self.fold.steps[begun["from"]].turn]
        if step.once is not None and step.once[0] != "mine":
            return [step.once[0], step.once[1], 0]
        if step.borrowed and is_replayed:
            return [self.fold.home(step), step.n, step.turn]
        return None

    def _superseded(self, begun: Event) -> list[Any] | None:
        n = begun.get("again")
        if n is None or "waits" in self._lines[n].begun:
            return None
        return [self.fold.id, n]

    def _undoes(self, step: Recorded) -> list[Any] | None:
        """Return the step that a compensating call, or a call in its body, was made to undo."""
        at: Recorded | None = step
        while at is not None and at.compensates:
            if at.branch[:1] == "-":
                return [self.fold.id, int(at.branch[1:].partition(".")[0])]
            at = self.fold.owner(at.branch)
        return None

    def _undone(self, step: Recorded) -> str | None:
        """Return the result of a step's undo; the plan of a call may cover its body."""
        if step.back:
            return step.back
        owner = self.fold.owner(step.branch)
        while step.effect == "write" and (step.gone == "undone" or step.rolled) and owner:
            if owner.back in _DONE:
                return owner.back
            owner = self.fold.owner(owner.branch)
        return None

    def _add_decisions(self) -> None:
        """Set the deciding person of each decided step."""
        decided = [each.decision for each in self._run.approvals if each.decision is not None]
        by_id = {each["id"]: each for each in decided}
        by_step = {each["step"]: each for each in decided}
        for step in self._run.steps:
            found = by_id.get(step.approval or "")
            if step.state == "blocked":
                found = by_step.get(step.step)
            if found is not None:
                step.approval, step.decided_by = found["id"], found["by"] or None


def _within(spans: Iterable[Iterable[int]], fold: Fold) -> Iterator[int]:
    """Yield the numbers in ranges, which can't be longer than the run."""
    for first, last in spans:
        if not 1 <= first <= last <= fold.last:
            raise ValueError(f"{first} to {last} is not a range of its steps")
        yield from range(first, last + 1)


def _given(**fields: Any) -> Event:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}


def _change_of(step: Recorded) -> str:
    return "error" if step.status == "error" else "result"


_OTHERS: Final = {
    "run": LogFolding._begins,  # noqa: SLF001 - its own table
    "attempt": LogFolding._attempts,  # noqa: SLF001 - its own table
    "ended": LogFolding._ends,  # noqa: SLF001 - its own table
    "forked": LogFolding._forks,  # noqa: SLF001 - its own table
    "refused": LogFolding._refuses,  # noqa: SLF001 - its own table
    "requested": LogFolding._requests,  # noqa: SLF001 - its own table
    "decided": LogFolding._decides,  # noqa: SLF001 - its own table
    "policy": LogFolding._loads,  # noqa: SLF001 - its own table
    "back": LogFolding._taken_back,  # noqa: SLF001 - its own table
    "undone": LogFolding._rewinds,  # noqa: SLF001 - its own table
    "rolled": LogFolding._rewinds,  # noqa: SLF001 - its own table
    "ordered": LogFolding._orders,  # noqa: SLF001 - its own table
    "held": LogFolding._shuts,  # noqa: SLF001 - its own table
    "gone": LogFolding._shuts,  # noqa: SLF001 - its own table
    "pruned": LogFolding._shuts,  # noqa: SLF001 - its own table
    "claimed": LogFolding._shuts,  # noqa: SLF001 - its own table
}
