"""Old runs become logs: the recorded calls of a `rollcage/1` run are repeated, without any body.

In the old format each session wrote a run of its own, and a resumed one copied its replayed steps.
Here each of these generations is an attempt at one run. Its events are a program: the calls are
made in their order, at their places, and end with the recorded outcomes. So positions and
fingerprints are core's own, and a resume finds its steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import orjson
from rollcage import Options
from rollcage.errors import RunInUse, SessionError
from rollcage.session.imports import (
    BAD,
    CHANGES,
    FORMAT,
    KEY,
    Arguments,
    Call,
    Chain,
    Clock,
    Contract,
    Outcome,
    Place,
    Stage,
    Turn,
    Verdict,
    admit,
    arrive,
    begin_block,
    drive,
    end,
    ended,
    enter,
    find_match,
    fold_lines,
    idempotency_key,
    inside,
    jcs,
    leave_block,
    refusal,
    uuid7,
)
from rollcage.trace.chain import parse

from rollcage_import.attempts import ImportedAttempt, put_lines, scratch_store
from rollcage_import.old_store import MODES

if TYPE_CHECKING:
    from rollcage import Store
    from rollcage.session.imports import Branch, Event, Step

ORIGIN: Final = "rollcage.1"
"""The field that names the old runs from which a log, or an attempt, was imported."""

__all__ = ["ORIGIN", "Generation", "ImportRefused", "import_generations", "imported_id"]

_UNDO: Final = ("before", "plan", "reversible", "approval")
_MOST: Final = 1 << 30  # bytes of the large values for one run

Generation = Sequence[Mapping[str, Any]]
"""The events of a run of the old format, in their order, each checked."""


class ImportRefused(SessionError):
    """An old run can't be imported; the message says why."""

    code = "import_refused"


def imported_id(run: str) -> str:
    """Return the id of an old run's log, by the id of its newest generation."""
    return uuid7(int(run[:8] + run[9:13], 16), sha256(f"rollcage/1 {run}".encode()).digest()[:10])


def import_generations(
    store: Store, generations: Sequence[Generation], blob: Callable[[str], bytes]
) -> tuple[str, dict[str, int]]:
    """Write the log of a run from its generations, oldest first.

    It becomes the newest run of its job, unless the store has one.

    Args:
        store: the store of the log.
        generations: the old runs, each of which resumes the one before.
        blob: returns a large value of the old store, by its digest.

    Returns:
        The id of the run, and the parts that could not be imported: how many, by reason.

    Raises:
        ImportRefused: the run is of another kind, or core would make another run of it.
        RunInUse: the log exists already.
        StoreError: the store can't be written.
    """
    first, last = generations[0][0], generations[-1][0]
    for begins, *_ in generations:
        if begins["mode"] not in MODES:
            raise ImportRefused(
                f"run {begins['run']} replays another run for inspection ({begins['mode']})"
            )
        if begins["chain"] != "effects":
            raise ImportRefused(f"run {begins['run']} chains every step, which core does not")
        if begins.get("redacted"):
            raise ImportRefused(
                f"run {begins['run']} was exported without some values: it can only be read"
            )
    run = imported_id(last["run"])
    left_out: dict[str, int] = {}
    steps: dict[tuple[str, int], int] = {}
    with scratch_store() as made:
        for at, events in enumerate(generations):
            log = Chain(made.open(run))
            try:
                if at == 0:
                    log.append(_begins(first, last, run, generations))
                generation = _Generation(store, log, events, steps, left_out, blob)
                try:
                    generation.perform()
                except BAD as error:
                    raise ImportRefused(
                        f"run {events[0]['run']} can't be imported: its {generation.at} does not "
                        f"fit what is before it ({type(error).__name__}: {error})"
                    ) from None
            finally:
                log.close()
        lines = made.read(run)
    fold_lines(parse(lines, f"run {run}"), f"run {run}", {})  # check that core reads it
    is_new = put_lines(store, run, lines)
    key = _job(last)
    if store.get("names", key) is None:  # also after an import that was killed before this
        store.swap("names", key, None, run.encode())
    if not is_new:
        raise RunInUse(f"run {run} is there already: it was imported before")
    return run, left_out


def _begins(
    first: Mapping[str, Any], last: Mapping[str, Any], run: str, generations: Sequence[Generation]
) -> Event:
    line: Event = {
        "event": "run", "format": FORMAT, "run": run, "name": last["name"], "time": first["time"],
    }  # fmt: skip
    given = last.get("input")
    if given is not None:
        if "value" not in given:
            raise ImportRefused(
                f"run {last['run']} had an input that was too large to be recorded, so its "
                f"job is not known"
            )
        line["input"] = given["value"]
    if last.get("actor"):
        line["actor"] = last["actor"]
    runs = [begins["run"] for begins, *_ in generations]
    line[ORIGIN] = runs
    return line


def _job(begins: Mapping[str, Any]) -> str:
    given = begins.get("input")
    if given is None:
        return str(begins["name"])
    return f"{begins['name']}\n{sha256(jcs(given['value'])).hexdigest()}"


class _Marks(Stage):
    """Adds fields to the lines of imported steps that only the old trace knows."""

    def __init__(self) -> None:
        self.begins: Event = {}
        self.ends: Event = {}

    def marks(self, call: Call) -> Event:  # noqa: ARG002 - the seam's
        return self.begins

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> Event | None:  # noqa: ARG002 - the seam's
        return self.ends if step is None else None


class _Generation:
    """One old run, as an attempt."""

    def __init__(
        self,
        store: Store,
        log: Chain,
        events: Generation,
        steps: dict[tuple[str, int], int],
        left_out: dict[str, int],
        blob: Callable[[str], bytes],
    ) -> None:
        self._store, self._log, self._events, self._blob = store, log, events, blob
        self._of, self._left_out = steps, left_out
        self._run = events[0]["run"]
        self._root = events[0]["root"]
        self._now = events[0]["time"]
        clock = Clock(wall=lambda: self._now * 1000)
        options = Options(clock=clock, retry_failed=False, seed=events[0]["seed"])
        self._session = ImportedAttempt(events[0]["name"], store, options)
        self._marks = _Marks()
        self._turns: dict[int, Turn] = {}
        self._places: dict[str, Place] = {}
        self._blocks: dict[str, Branch] = {}  # by the old name of a branch
        self._calls: dict[int, Call] = {}
        self._skipped: set[int] = set()
        self._undoing = False
        self._contracts: dict[tuple[Any, ...], Contract] = {}
        self._left = _MOST
        self.at = "first line"  # the current place

    def perform(self) -> None:
        """Make its calls, in their order."""
        line: Event = {
            "event": "attempt", "id": sha256(self._run.encode()).hexdigest()[:24],
            "time": self._now, ORIGIN: self._run,
        }  # fmt: skip
        session = self._session
        session.begin(self._log, line, (self._marks,))
        try:
            self._make()
        except BaseException:
            session.end(None)
            raise

    def _make(self) -> None:
        session = self._session
        self._places[""] = session.place_here()
        ends: Event | None = None
        for number, event in enumerate(self._events[1:], 2):
            self._now, self.at = event["time"], f"line {number}"
            kind = event["event"].replace(".", "_")
            if kind in ("run_finished", "run_abandoned"):
                status = event["status"] if kind == "run_finished" else "abandoned"
                ends = {"event": "ended", "status": status, "calls": 0, "hits": 0}
                ends |= {"time": self._now}
                if event.get("error"):
                    error = event["error"]
                    ends["error"] = {"type": error["type"], "message": error.get("message", "")}
                continue
            performed = getattr(self, f"_{kind}", None)
            if performed is None:
                self._leave_out(event["event"])
            else:
                performed(event)
        if self._undoing:
            raise ImportRefused(
                f"an undo in run {self._run} was cut off: let it be finished first, by a session "
                f"of the job or by rollcage undo {self._run}"
            )
        if ends is not None and session.undone_at == session.attempt.run.last:
            ends["status"] = "undone" if ends["status"] != "abandoned" else "abandoned"
        session.end(ends)

    def _leave_out(self, what: str) -> None:
        self._left_out[what] = self._left_out.get(what, 0) + 1

    # --- calls -----------------------------------------------------------------------------------

    def _step_started(self, event: Mapping[str, Any]) -> None:
        if event.get("undoes") or event.get("parent") in self._skipped:
            self._skip(event)
            return
        call = self._begin(event, replayed=False)
        if call.recorded is not None and call.effect != "pure":
            raise ImportRefused(
                f"step {event['step']} of run {self._run} ran anew, and core would replay it"
            )
        self._calls[event["step"]] = call
        step = call.recorded
        self._of[self._run, event["step"]] = call.event["step"] if step is None else step.n

    def _skip(self, event: Mapping[str, Any]) -> None:
        """Leave out a compensating call: the undo itself names the undone step."""
        self._skipped.add(event["step"])
        self._leave_out("a compensating call")

    def _step_finished(self, event: Mapping[str, Any]) -> None:
        if event["step"] in self._skipped:
            return
        call = self._calls[event["step"]]
        self._end(call, event)

    def _step_resolved(self, event: Mapping[str, Any]) -> None:
        if event["step"] in self._skipped:
            return
        call = self._calls[event["step"]]
        if call.event["step"] in self._session.attempt.run.steps and event["by"] == "operator":
            n = call.event["step"]
            outcome = self._outcome(event["outcome"])
            line: Event = {"event": "outcome", "step": n, "by": "operator"}
            line |= {name: event[name] for name in ("plan", "after") if name in event}
            if outcome is None:
                line["outcome"] = None
            self._session.attempt.note(line, outcome)
            if call.effect in CHANGES:
                ended(self._session.attempt, call.branch, self._session.attempt.run.steps[n])
            return
        self._end(call, event)

    def _end(self, call: Call, event: Mapping[str, Any]) -> None:
        if call.recorded is not None:
            return
        attempt = self._session.attempt
        outcome = self._outcome(event["outcome"])
        call.took = event.get("duration", 0) * 1000
        self._marks.ends = {n: event[n] for n in ("plan", "after", "labels") if n in event}
        if outcome is not None:
            end(attempt, call, outcome)
        elif event["outcome"]["status"] == "not_started" and call.effect in CHANGES:
            attempt.note({"event": "outcome", "step": call.event["step"], "outcome": None})
            ended(attempt, call.branch, None)
        self._marks.ends = {}

    def _step_replayed(self, event: Mapping[str, Any]) -> None:
        if event.get("undoes") or event.get("parent") in self._skipped:
            self._skip(event)
            return
        call = self._begin(event, replayed=True)
        self._calls[event["step"]] = call
        outcome = self._outcome(event["outcome"])
        if call.recorded is not None:
            self._of[self._run, event["step"]] = call.recorded.n
            if outcome is None or _same(orjson.loads(outcome.data), call.recorded.result):
                return
            raise ImportRefused(
                f"step {event['step']} of run {self._run} was returned in another form than core's"
            )
        self._of[self._run, event["step"]] = call.event["step"]
        if outcome is not None:
            self._end(call, event)

    def _begin(self, event: Mapping[str, Any], *, replayed: bool) -> Call:
        """Let a call arrive at its recorded place, and begin."""
        attempt = self._session.attempt
        contract = self._contract(event)
        canonical = self._whole(event["args"])
        place = self._place(event)
        bound = Arguments({}, canonical, orjson.dumps(canonical, option=orjson.OPT_SORT_KEYS))
        call = Call(place, contract, bound, _no_body, event["kind"], is_async=False)
        call.key = event["key"]
        self._marks.begins = {name: event[name] for name in _UNDO if name in event}
        if call.effect == "write":
            key = idempotency_key(self._root, event.get("branch", ""), event["fingerprint"])
            self._marks.begins[KEY] = key
        if event.get("verdict"):
            self._marks.begins["verdict"] = event["verdict"]
        attempt.options = dataclasses.replace(attempt.options, retry_failed=not replayed)
        if not replayed and call.effect not in CHANGES:
            arrive(attempt, call)
            match = find_match(attempt, call)
            if match.kind == "hit" and match.step is not None:
                self._make_again(call, match.step)
        drive(admit(call, enter(call)))
        self._marks.begins = {}
        if call.recorded is None:
            self._places["#" + event["fingerprint"]] = inside(attempt, call)
        else:
            self._places["#" + event["fingerprint"]] = dataclasses.replace(
                place, branch=call.recorded.inner, turn=None, slot=None
            )
        return call

    @staticmethod
    def _make_again(call: Call, step: Step) -> None:
        """Keep the recorded step from answering a call that was made again."""
        if step.branch == call.place.branch:
            step.status = "unknown"  # so that its new line says `again`
        elif call.effect == "model":
            step.taken = True  # it answers another asker; a pure step answers all

    def _contract(self, event: Mapping[str, Any]) -> Contract:
        key = event["kind"], event["name"], event["version"], event["effect"]
        found = self._contracts.get(key)
        if found is None:
            found = self._contracts[key] = Contract(
                name=event["name"], version=event["version"], effect=event["effect"],
                parameters={"type": "object"}, idempotent=True, on_miss="live",
            )  # fmt: skip
        return found

    def _place(self, event: Mapping[str, Any]) -> Place:
        turn = event.get("turn")
        found = self._places[event.get("branch", "")]
        if turn is not None:
            found = dataclasses.replace(found, turn=self._turns.setdefault(turn, Turn()))
        return dataclasses.replace(
            found,
            slot=event.get("slot"),
            agent=event.get("agent", ""),
            call_id=event.get("call_id", ""),
        )  # fmt: skip

    # --- refused calls ---------------------------------------------------------------------------

    def _step_blocked(self, event: Mapping[str, Any]) -> None:
        contract = self._contract(event)
        given = event["verdict"]
        verdict = Verdict(
            "deny", given.get("reason", ""), given.get("code", ""), given.get("rule", "")
        )
        place = self._place(event)
        line = refusal(contract, event["kind"], self._whole(event["args"]), verdict, place)
        self._session.attempt.note({**line, "key": event["key"]})

    def _call_refused(self, event: Mapping[str, Any]) -> None:
        contract = Contract(name=event["name"], parameters={"type": "object"})
        verdict = Verdict("deny", event["reason"], event["code"])
        place = self._places.get(event.get("branch", ""), self._places[""])
        line = refusal(contract, event["kind"], self._whole(event["args"]), verdict, place)
        self._session.attempt.note(line)

    # --- branches --------------------------------------------------------------------------------

    def _branch_forked(self, event: Mapping[str, Any]) -> None:
        name: str = event["name"]
        for before in event.get("after", ()):
            self._leave(before)
        after = [self._blocks[before] for before in event.get("after", ())]
        turn = self._turns.setdefault(event["turn"], Turn())
        place = dataclasses.replace(self._places[event.get("branch", "")], turn=turn, slot=None)
        plain = name.rpartition("/")[2].partition("#")[0]
        inner = begin_block(place, plain, after=after)
        self._blocks[name] = inner
        self._places[name] = dataclasses.replace(place, branch=inner.name, turn=None)

    def _branch_joined(self, event: Mapping[str, Any]) -> None:
        self._leave(event["name"])

    def _leave(self, name: str, *, ok: bool = True) -> None:
        branch = self._blocks.get(name)
        if branch is not None and not branch.exited:
            leave_block(self._session.attempt, branch, ok=ok)

    # --- undo ------------------------------------------------------------------------------------

    def _undo_started(self, event: Mapping[str, Any]) -> None:  # noqa: ARG002 - it is told by its end
        self._undoing = True

    def _undo_finished(self, event: Mapping[str, Any]) -> None:
        n = self._of.get((event["of"][0], event["of"][1]))
        if n is None:
            raise ImportRefused(f"step {event['of']} was undone in run {self._run}, and is unknown")
        if event["status"] in ("verified", "compensated", "failed"):
            self._session.attempt.note({"event": "back", "step": n, "status": event["status"]})
        else:
            self._leave_out(f"the undo of a step, which ended {event['status']}")

    def _run_rewound(self, event: Mapping[str, Any]) -> None:
        self._undoing = False
        if event.get("incomplete"):
            self._leave_out("an undo that was not completed")
            return
        attempt = self._session.attempt
        run, branch = attempt.run, event.get("branch", "")
        mine = {
            n for (of, step), n in self._of.items() if of != self._run or step > event["to"]
        } - {n for (of, step), n in self._of.items() if of == self._run and step <= event["to"]}
        held = {n for n in mine if not run.steps[n].gone}
        block = self._blocks.get(branch)
        if block is not None and not block.exited:
            inner = block.name
            numbers = sorted(step.n for step in run.inside(inner) if step.n in held)
            if numbers:
                attempt.note({"event": "rolled", "branch": inner, "steps": numbers})
            self._leave(branch, ok=False)
            return
        if branch:
            held = {n for n in held if self._is_below(run.steps[n], branch)}
        reopens = run.reopened(held)
        line: Event = {"event": "undone", "why": "undo", "steps": sorted(held - reopens)}
        if reopens:
            line["reopens"] = sorted(reopens)
        attempt.note(line)
        attempt.rewind(run.steps[n] for n in reopens)
        self._session.undone_at = run.last

    def _is_below(self, step: Step, branch: str) -> bool:
        block = self._blocks.get(branch)
        return block is None or self._session.attempt.run.within(step, block.name)

    # --- values ----------------------------------------------------------------------------------

    def _outcome(self, recorded: Mapping[str, Any]) -> Outcome | None:
        """Return an outcome in core's form; None: it is unknown, or the call did not begin."""
        if recorded["status"] not in ("ok", "error"):
            return None
        for value in _blobs(recorded):
            digest = value["sha256"]
            if self._store.get("blobs", digest) is None:
                self._store.swap("blobs", digest, None, self._blob(digest))
        return Outcome.of(dict(recorded))

    def _whole(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments with their large values, which the old trace keeps separately."""
        found: dict[str, Any] = self._restored(args)
        return found

    def _restored(self, value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("$rollcage") == "blob":
                data = self._blob(value["sha256"])
                self._left -= len(data)
                if self._left < 0:
                    raise ImportRefused(
                        f"run {self._run} names more than {_MOST:,} bytes of values"
                    )
                return orjson.loads(data)
            return {name: self._restored(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._restored(each) for each in value]
        return value


def _blobs(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        if value.get("$rollcage") == "blob":
            yield value
            return
        for each in value.values():
            yield from _blobs(each)
    elif isinstance(value, list):
        for each in value:
            yield from _blobs(each)


def _same(one: Any, other: Any) -> bool:
    keys = ("status", "value", "error")
    return all(one.get(key) == other.get(key) for key in keys)


def _no_body(**_: Any) -> Any:
    raise SessionError("a call of an imported run has no body")
