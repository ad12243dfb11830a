"""What a session knows of its run: it places each call, matches it, and says what is written.

A `Ledger` is plain state and decisions: no I/O, clock or lock. Whoever drives it holds the
session's lock around each call, and appends the events that it gives back before going on. What is
recorded of a call is found in `replay.finding`; here it is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Final, Literal

from rollcage.contract.drift import raised
from rollcage.errors import (
    ApprovalRequired,
    Blocked,
    Halt,
    NotReplayable,
    RollcageError,
    SessionHalted,
    TraceUnwritable,
)
from rollcage.fingerprint.identity import key_digest, link
from rollcage.gate import Verdict, untimely
from rollcage.replay.ahead import Ahead, Histories, Standing, family
from rollcage.replay.ahead import Place as Spot
from rollcage.replay.branches import Branches
from rollcage.replay.finding import Finder, Match
from rollcage.replay.path import UNKNOWN_DIGEST, Entry
from rollcage.replay.recording import Recording
from rollcage.replay.world import Branch, Place, Turn, union
from rollcage.step import halts, journal
from rollcage.step.call import Admission, Arrival, Call, Precondition, Stats, Step
from rollcage.step.seeing import Seeing
from rollcage.trace.constructors import Event, branch_forked

__all__ = ["Ledger", "Mode", "OnDivergence"]

Mode = Literal["record", "resume", "offline", "verify"]
OnDivergence = Literal["halt", "warn", "undo"]

_NOT_COMPARABLE: Final = "not comparable: recorded writes came after this read"


class _Refused(Exception):
    """A call that may not run, with the error to raise."""

    def __init__(self, error: RollcageError, *, halts: bool = True) -> None:
        super().__init__(error)
        self.error = error
        self.halts = halts


class Ledger:
    """The state of one run while its session is open.

    Attributes:
        stats: what the session has done so far.
        halted: the error that halted it; None while it may go on.
        paused: what the run waits for, as the session was told.
        branches: those that are open, and the turns.
        ahead: what is recorded and nobody has asked for.
    """

    def __init__(
        self,
        *,
        run: str,
        mode: Mode,
        recording: Recording | None,
        chain: Literal["effects", "all"],
        on_divergence: OnDivergence,
        seed: str,
        steps: int = 0,
        turns: int = 0,
        at: str = "",
    ) -> None:
        self.stats = Stats()
        self.halted: BaseException | None = None
        self.paused = ""
        self._waited = "" if recording is None or mode != "resume" else recording.waits
        self._run = run
        self._at = at  # what a command line needs to find the store
        self._mode: Mode = mode
        self._live = mode in ("record", "resume")  # what is not recorded may run
        self._recording = recording
        self._strict = strict = chain == "all"
        self._on_divergence: OnDivergence = on_divergence
        self._steps = steps  # how many the run has already
        self._open: dict[int, Step] = {}
        self._asking: set[str] = set()  # requests for approval that nobody has decided
        self.branches = Branches(recording, seed, strict=strict, turns=turns)
        self._by_name = self.branches.by_name
        self._finder = Finder(recording, self._by_name, live=self._live)
        self.ahead = Ahead(recording)
        self._seeing = Seeing(recording, self.branches, self.ahead, self.stats, self._number)

    @property
    def counted(self) -> tuple[int, int]:
        """How many steps and turns the run has."""
        return self._steps, self.branches.turns

    @property
    def waits(self) -> str | None:
        """What the run waits for; what its source waited for, as long as it has no step."""
        return self.paused or (self._waited if not self._steps else "") or None

    def go_on(self) -> None:
        """What the run waited for is there."""
        self.paused = self._waited = ""

    def _number(self, call: Call | None = None) -> int:
        """The next step's number; the call of that step knows it from then on."""
        self._steps += 1
        if call is not None:
            call.number = self._steps
        return self._steps

    # --- branches --------------------------------------------------------------------------------

    def branch_name(self, name: str, parent: Step | None) -> str:
        """The branch in which calls stand, in the body of `parent` or outside of any."""
        inside = None if parent is None else (parent.branch.name, parent.fingerprint)
        return self.branches.name_in(name, inside)

    def fork(
        self,
        parent: str,
        name: str,
        turn: Turn | None,
        now: int,
        standing: Standing | None = None,
        after: Sequence[str] = (),
    ) -> tuple[str, Event]:
        """Start a branch off another one: its full name, and what is written of it.

        It begins behind what was done in those that it comes `after`.
        """
        forked = self.branches.fork(parent, name, turn, standing, after)
        conversation, checkpoint = forked.at
        return forked.name, branch_forked(
            time=now,
            name=forked.name,
            branch=parent,
            turn=forked.turn.number,
            conversation=conversation,
            checkpoint=checkpoint,
            after=after,
        )

    def join(self, parent: str, name: str, turn: Turn | None, now: int) -> Event | None:
        """A branch comes back: what it wrote becomes one write of its parent."""
        child, branch = self._by_name[name], self._by_name[parent]
        child.joined = True
        final = child.final_world()
        if final is None:
            return None
        turn = turn or self.branches.new_turn()
        start = branch.arrive(turn)[1]
        slot = turn.take_slot(None)
        key = key_digest("branch", name, "", b"")
        path, entry = branch.path, None
        if path is not None and child.at_path_end() and branch.may_follow(turn):
            entry = path.find(key.hex(), start, slot)
            if entry is not None and entry.digest != final.hex():
                entry = None
        if entry is None and child.path is not None and child.path.taken_back:
            self.halted = halts.taken_back(name, self._run, self._at)
            raise self.halted
        # What is recorded of branches that were open beside it was recorded before this one came
        # back, and still holds.
        leaves = entry is None and not self._finder.beside(name, path) and branch.leave_path(turn)
        place = branch.place(turn, slot, key)
        place.since = min(place.since, child.forked_at)
        if entry is not None:
            assert path is not None
            if branch.following:
                place = union(place, entry)
            place.fingerprint = bytes.fromhex(entry.fingerprint)
            path.take(entry)
        event = journal.joined(
            self._number(),
            name,
            branch,
            place,
            key,
            final=final,
            now=now,
            leaves=leaves,
            entry=entry,
        )
        branch.replayed_write(turn, place.position, link(place.fingerprint, final))
        return event

    # --- a call arrives --------------------------------------------------------------------------

    def admit(
        self, call: Call, verdict: Verdict, now: int, arrival: Arrival | None = None
    ) -> Admission:
        """Place a call, find what is recorded of it and take that; or say what is to be done first.

        One that something was done for first comes again with its `arrival`: nothing was taken for
        it until then.
        """
        if self.halted is not None and self.stops(call):
            error = SessionHalted(f"the session was halted: {self.halted}")
            error.__cause__ = self.halted
            return Admission(None, error=error)
        if arrival is None:
            arrival = self._arrive(call, verdict, now)
        else:
            arrival.verdict, arrival.now = verdict, now
            arrival.look()
        try:
            self._check_gate(arrival)
            turn = arrival.turn
            until = turn.before(arrival.slot) if turn.asking and arrival.placed else None
            if until is not None:
                return Admission(None, first=Precondition("wait", arrival, until=until))
            start = arrival.branch.arrive(turn)[1] if arrival.placed else 0
            match = self._finder.find(arrival, start)
            first = self._first(arrival, match)
            if first is not None:
                return Admission(None, first=first)
            return self._take(arrival, match)
        except _Refused as refused:
            return self._refuse(arrival, refused)

    def _arrive(self, call: Call, verdict: Verdict, now: int) -> Arrival:
        self.stats.calls += 1
        self.ahead.give(call.conversation, call.call_id)
        branch = self._by_name[self.branch_name(call.branch, call.parent)]
        turn = call.turn or self.branches.implied_turn(branch, call.standing)
        return Arrival(call, branch, turn, verdict, strict=self._strict, now=now)

    def stops(self, call: Call) -> bool:
        """Whether a halted session refuses this call too; an undo may go on where it was safe."""
        safe = isinstance(self.halted, Halt) and not isinstance(self.halted, TraceUnwritable)
        return call.undoes is None or not safe

    def _check_gate(self, arrival: Arrival) -> None:
        """Refuse a call that is denied, that can't be prepared, or whose approval is void."""
        call = arrival.call
        if arrival.verdict.decision == "deny" and self._mode != "offline":
            raise _Refused(_denied(arrival), halts=False)
        if call.refused is not None:
            raise _Refused(call.refused, halts=False)
        if call.approved is not None:
            _check_approval(arrival)

    def _first(self, arrival: Arrival, match: Match) -> Precondition | None:
        """What has to be done before a call may run, if it would."""
        call, entry = arrival.call, match.entry
        if entry is not None and entry.is_edit_of(arrival.key):
            return Precondition("edit", arrival, entry)
        if match.way == "probe":
            arrival.turn.asking.setdefault(arrival.slot, Future())
            return Precondition("probe", arrival, entry)
        if match.way not in ("run new", "run again"):
            return None
        if call.pace is not None and (entry is None or entry.status != "unknown"):
            said = call.pace()
            if said is not None:  # too many have begun of late
                refusal = Blocked(said.message, rule=said.rule, code=said.code)
                raise _Refused(refusal, halts=False)
        if arrival.asks:
            asked = call.ask is not None and not call.waits and self._mode != "offline"
            return (
                Precondition("approve", arrival, asked=arrival.asked(self._run)) if asked else None
            )
        if match.behind and self._on_divergence == "undo":
            return Precondition("undo", arrival, entry, match.behind)
        if arrival.contract.captures and call.captured is None and call.kind == "tool":
            return Precondition("capture", arrival, entry)
        return None

    def begin_asking(self, request: str) -> bool:
        """Somebody is about to be asked; whether that is new."""
        fresh = request not in self._asking
        self._asking.add(request)
        return fresh

    def end_asking(self, request: str) -> None:
        """It was decided."""
        self._asking.discard(request)

    # --- what was found is taken -----------------------------------------------------------------

    def _take(self, arrival: Arrival, match: Match) -> Admission:
        """Do what was found; from here on something is used up, written, or both."""
        for entry in match.past:
            self._use_up(arrival.branch, entry)
        match match.way:
            case "give back":
                return self._give_back(arrival, match)
            case "run again":
                return self._again(arrival, match)
            case "run new":
                return self._go(arrival, match)
            case _:
                raise self._refusal(arrival, match)

    def _use_up(self, branch: Branch, entry: Entry) -> None:
        if entry.kind != "model":
            assert branch.path is not None
            branch.path.take(entry)
        elif self._recording is not None:
            self._recording.use_answer(entry)

    def _refuse(self, arrival: Arrival, refused: _Refused) -> Admission:
        self.stats.blocked += 1
        if refused.halts:
            self.halted = refused.error
        event = journal.blocked(self._number(arrival.call), arrival, refused.error)
        return Admission(event, error=refused.error)

    def _refusal(self, arrival: Arrival, match: Match) -> _Refused:
        """Why a call must not run, in the words of its error."""
        entry = match.entry
        if entry is None:
            if match.why == "taken back":
                return _Refused(halts.taken_back(arrival.branch.name, self._run, self._at))
            assert self._recording is not None
            error = halts.missing(arrival, self._recording)
            return _Refused(error, halts=match.why == "missing")
        if match.why == "blocked":
            self._use_up(arrival.branch, entry)
            if self._live:
                arrival.call.decided = entry.decided
                arrival.supersedes = entry.run, entry.step
            said = entry.outcome
            refusal = Blocked(said["reason"], rule=said["rule"], code=said["code"])
            return _Refused(refusal, halts=False)
        if match.why == "unknown":
            return _Refused(halts.unknown(entry.run, entry.step, entry.name, self._at))
        if match.why == "lossy":
            return _Refused(halts.lossy(match.given or entry, self._at))
        return _Refused(halts.changed(match.why, entry, arrival.contract))

    def _give_back(self, arrival: Arrival, match: Match) -> Admission:
        entry, given = match.entry, match.given
        assert entry is not None
        assert given is not None
        branch, path = arrival.branch, arrival.branch.path
        place = arrival.place()
        if entry.kind == "model":
            self._use_up(branch, entry)
        elif path is not None and arrival.placed:
            if branch.following:
                place = union(place, entry)
            path.take(entry)
            if path.advances(entry):
                made = link(bytes.fromhex(entry.fingerprint), bytes.fromhex(given.digest))
                branch.replayed_write(arrival.turn, entry.position, made)
        self._count_hit(given)
        event = journal.replayed(self._number(arrival.call), arrival, place, given)
        if given.status == "unknown":
            error = halts.unknown(given.run, given.step, given.name, self._at)
            return Admission(event, error=error)
        if self._mode == "verify" and arrival.call.kind == "tool":
            return self._compared(arrival, place, given, event)
        return Admission(event, entry=given)

    def _compared(self, arrival: Arrival, place: Place, entry: Entry, event: Event) -> Admission:
        """A hit of `verify`: what observes only is run again, where that says anything."""
        effect, path = arrival.contract.effect, arrival.branch.path
        if entry.decided is not None and "responded" in entry.decided:
            return Admission(event, entry=entry)
        if effect == "read" and path is not None and entry.end < path.length:
            event["drift"] = _NOT_COMPARABLE
        elif effect in ("pure", "read"):
            place.fingerprint = bytes.fromhex(entry.fingerprint)  # its children go by it
            return Admission(event, Step(self._run, self._steps, arrival, place), entry)
        return Admission(event, entry=entry)

    def _count_hit(self, entry: Entry) -> None:
        stats = self.stats
        stats.hits += 1
        stats.seconds_saved += entry.duration / 1e6
        stats.errors += entry.status == "error" or raised(entry.outcome) is not None
        usage = entry.outcome.get("usage")
        if usage:
            stats.tokens_saved += sum(usage.values())

    def _again(self, arrival: Arrival, match: Match) -> Admission:
        """Run a recorded step again, in its own place and under its own fingerprint."""
        entry, branch, path = match.entry, arrival.branch, arrival.branch.path
        assert entry is not None
        orphans = self._orphans(arrival, match.behind)
        self._check_verdict(arrival)
        marks: Event = {"supersedes": [entry.run, entry.step]}
        if path is None or entry.kind != "tool" or not arrival.placed:
            if entry.kind == "model":
                self._use_up(branch, entry)
            return self._start(arrival, arrival.place(), advances=False, marks=marks)
        if branch.following and entry.status == "error" and path.advances(entry):
            later = bool(path.later(entry))  # an earlier failure, run again by retry_failed
            marks |= self._acknowledged(orphans)
            if later and branch.leave_path(arrival.turn):
                marks["leaves"] = True
        place = arrival.place()
        if branch.following:
            place = union(place, entry)
        path.take(entry)
        place.fingerprint = bytes.fromhex(entry.fingerprint)
        return self._start(arrival, place, advances=path.advances(entry), marks=marks)

    def _go(self, arrival: Arrival, match: Match) -> Admission:
        """Run a call that nothing recorded stands for."""
        branch, path = arrival.branch, arrival.branch.path
        orphans = self._orphans(arrival, match.behind) if match.behind else ()
        self._check_verdict(arrival)
        marks: Event | None = None
        if path is not None:
            marks = self._acknowledged(orphans)
            if arrival.advances and branch.leave_path(arrival.turn):
                marks["leaves"] = True
            if path.ahead and arrival.placed:
                marks["ahead"] = True
        place = arrival.place()
        if path is not None:
            branch.set_apart(place, arrival.call.key)
        return self._start(arrival, place, advances=arrival.advances, marks=marks)

    def _check_verdict(self, arrival: Arrival) -> None:
        """Refuse a call that may not run today, whatever is recorded."""
        verdict = arrival.verdict
        if verdict.decision == "deny":  # offline, what may run live: recorded outcomes go before
            raise _Refused(_denied(arrival), halts=False)
        if arrival.asks:
            said = f"{arrival.contract.name} requires approval: {verdict.reason}"
            waits = arrival.call.waits
            raise _Refused(ApprovalRequired(f"{said} ({waits})" if waits else said))

    def _start(
        self, arrival: Arrival, place: Place, *, advances: bool, marks: Event | None
    ) -> Admission:
        self.stats.misses += 1
        event = journal.started(self._number(arrival.call), arrival, place)
        if marks:
            event |= marks
        step = Step(self._run, self._steps, arrival, place)
        if advances:
            step.advances = True
            self._open[step.number] = step
            arrival.branch.begin_write(arrival.turn)
        return Admission(event, step)

    def _orphans(self, arrival: Arrival, behind: Collection[Entry]) -> Collection[Entry]:
        """The recorded effects that are left behind; refused where that halts the session."""
        if not behind or self._recording is None:
            return ()
        self.stats.orphans += len(behind)
        if self._on_divergence != "warn":
            raise _Refused(halts.diverged(arrival, [*behind], self._run, self._at))
        inside = self._finder.came_back_with(behind)
        self.stats.orphans += len(inside)
        orphans = [*behind, *inside]
        for entry in orphans:
            if entry.status == "unknown" and entry.effect == "write":  # it may be this very call
                raise _Refused(halts.unknown(entry.run, entry.step, entry.name, self._at))
        return orphans

    def _acknowledged(self, orphans: Collection[Entry]) -> Event:
        """Leave recorded effects behind; what is written of that."""
        if not orphans or self._recording is None:
            return {}
        for entry in orphans:
            self._recording.paths[entry.branch].acknowledge(entry)
        return {"orphans": [[e.run, e.step] for e in orphans]}

    # --- what a framework's own memory holds -----------------------------------------------------

    def places(self, within: tuple[str, Step | None]) -> Iterator[Spot]:
        """Where the recorded steps stand that nobody has asked for; see `see`."""
        if self.halted is not None:
            return iter(())
        return self.ahead.places(family(self.branch_name(*within)))

    def see(
        self,
        within: tuple[str, Step | None],
        now: int,
        *,
        places: frozenset[Spot] = frozenset(),
        histories: Histories = MappingProxyType({}),
    ) -> Iterator[tuple[Event, Entry]]:
        """Use up the recorded steps that it holds, as if they had been asked for: their events.

        Args:
            within: the branch that whoever tells so stands in, and the step whose body that is.
            now: in µs.
            places: see `Ahead.at`.
            histories: see `Ahead.answered`.
        """
        if self.halted is not None:
            return iter(())
        wrong = self.ahead.contradicted(histories)
        if wrong is not None:
            self.halted = halts.contradicted(wrong, self._at)
            return iter(())
        parent = within[1]
        held = self._seeing.held(places, histories, family(self.branch_name(*within)))
        return self._seeing.see(held, None if parent is None else parent.number, now)

    # --- undo ------------------------------------------------------------------------------------

    def is_taken_back(self, branch: str) -> bool:
        """Whether all that is told of this branch was undone when it ran."""
        return self._recording is not None and branch in self._recording.rolled

    # --- a step ends -----------------------------------------------------------------------------

    def settle(self, step: Step, outcome: Event, digest: bytes, duration: int, now: int) -> Event:
        """A step has ended; what is written of it. `duration` and `now` in µs."""
        self.stats.errors += outcome["status"] == "error" or raised(outcome) is not None
        if step.advances:
            step.advances = False
            ran = outcome["status"] != "not_started"
            step.branch.end_write(step.link_at, link(step.fingerprint, digest) if ran else None)
        return journal.finished(step, outcome, digest, duration, now)

    def written(self, step: Step) -> None:
        """The end of a step is in the trace: it is in doubt no longer."""
        self._open.pop(step.number, None)

    def abandon(self, call: Call) -> None:
        """An interrupt broke off what drives a call, before its end was written.

        Whoever swallows that must not go on: the call's write may have happened, or its recorded
        step is used up and would run again.
        """
        contract = call.contract
        step = next((each for each in self._open.values() if each.call is call), None)
        if step is not None and not step.world_effect:
            del self._open[step.number]
            if step.advances:  # as when it is read back
                lost = link(step.fingerprint, bytes.fromhex(UNKNOWN_DIGEST))
                step.branch.end_write(step.link_at, lost if contract.effect == "scope" else None)
        elif self.halted is not None or call.kind != "tool" or contract.effect != "write":
            return
        elif step is not None:
            self.halted = halts.unknown(step.run, step.number, contract.name, self._at)
        else:
            self.halted = NotReplayable(
                f"a call of {contract.name} was interrupted before it ran or was given back: "
                f"leave the session, then resume the run"
            )

    def left_behind(self) -> list[Entry]:
        """The recorded effects that the run never asked for."""
        return self._finder.left()

    def in_flight(self) -> list[Step]:
        """The writes that have begun and not ended."""
        return list(self._open.values())


def _check_approval(arrival: Arrival) -> None:
    """Refuse a call whose approval does not count any more, or is that of another one."""
    call, request = arrival.call, arrival.call.request
    assert request is not None
    refusal = untimely(request.at, request.expires, arrival.now)
    if refusal is not None:
        raise _Refused(
            Blocked(refusal.reason, rule=request.verdict.rule, code=refusal.code), halts=False
        )
    if request.key not in (call.asked_key.hex(), call.key.hex()):
        said = "the approval is for another call"
        raise _Refused(Blocked(said, rule="", code="approval_other_call"), halts=False)


def _denied(arrival: Arrival) -> Blocked:
    verdict = arrival.verdict
    return Blocked(verdict.message, rule=verdict.rule, code=verdict.code)
