"""Takes what was found for a call: from here on, something is used up, written, or both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Literal

from rollcage.contract.drift import raised
from rollcage.errors import ApprovalRequired, Blocked, RollcageError
from rollcage.fingerprint.identity import link
from rollcage.replay.finding import Finder, Match
from rollcage.replay.forking import Forking, is_gone
from rollcage.replay.path import Entry
from rollcage.replay.recording import Recording
from rollcage.replay.world import Branch, Place, union
from rollcage.step import halts, journal
from rollcage.step.admission import Admission
from rollcage.step.call import Arrival, OpenStep, Progress
from rollcage.step.stats import Stats
from rollcage.trace.constructors import Event

__all__ = ["Mode", "OnDivergence", "Refused", "Taking", "denied"]

Mode = Literal["record", "resume", "offline", "verify", "fork"]
OnDivergence = Literal["halt", "warn", "undo"]

_NOT_COMPARABLE: Final = "not comparable: recorded writes came after this read"


class Refused(Exception):
    """A call that may not run, with the error to raise; `halts`: it halts the session."""

    def __init__(self, error: RollcageError, *, halts: bool = True) -> None:
        super().__init__(error)
        self.error = error
        self.halts = halts


class Taking:
    """Takes what is found in a run.

    Args:
        run: the run's id.
        at: what a command line needs to find the store.
        mode: what the session does with what is recorded.
        on_divergence: what it does if recorded effects would be left behind.
        recording: what is recorded; None if nothing is.
        finder: finds it.
        stats: what the session has done so far.
        number: gives a call the number of its step, the run's next.

    Attributes:
        open: the writes that have begun and not ended, by number.
    """

    def __init__(
        self,
        run: str,
        at: str,
        mode: Mode,
        on_divergence: OnDivergence,
        recording: Recording | None,
        finder: Finder,
        stats: Stats,
        number: Callable[[Progress], int],
    ) -> None:
        self.open: dict[int, OpenStep] = {}
        self._run = run
        self._at = at
        self._mode: Mode = mode
        self._live = mode in ("record", "resume")
        self._on_divergence: OnDivergence = on_divergence
        self._recording = recording
        self._finder = finder
        self._forking = finder if isinstance(finder, Forking) else None
        self._stats = stats
        self._number = number

    def take(self, arrival: Arrival, match: Match) -> Admission:
        """Do what was found.

        Raises:
            Refused: the call may not run.
        """
        for entry in match.past:
            self._use_up(arrival.branch, entry)
        match match.way:
            case "give back":
                give = self._assume if match.assumed else self._give_back
                return give(arrival, match)
            case "run again":
                return self._again(arrival, match)
            case "run new":
                return self.go(arrival, match)
            case "stand in":
                return self._stand_in(arrival, match)
            case _:
                raise self._refusal(arrival, match)

    def _use_up(self, branch: Branch, entry: Entry) -> None:
        if entry.kind != "model":
            assert branch.path is not None
            branch.path.take(entry)
        elif self._recording is not None:
            self._recording.use_answer(entry)

    def _asked_for(self, arrival: Arrival, entry: Entry | None) -> None:
        """A fork has come to a recorded step: use it up, wherever it was recorded."""
        forking, recording = self._forking, self._recording
        if forking is None or recording is None or entry is None:
            return
        forking.gave(entry)
        if entry.kind == "model":
            recording.use_answer(entry)
        elif arrival.placed and not is_gone(entry):
            recording.paths[entry.branch].take(entry)

    def _is_changed(self, entry: Entry | None) -> bool:
        """Whether a recorded step is the one that a fork changes."""
        forking = self._forking
        if forking is None or entry is None or entry is not forking.at or forking.passed:
            return False
        return forking.fork.change in ("result", "error", "args")

    def _refusal(self, arrival: Arrival, match: Match) -> Refused:
        """Why a call must not run, as an error."""
        entry = match.entry
        if match.why == "would write":
            return Refused(halts.would_write(arrival, entry))
        if entry is None:
            if match.why == "undone":
                return Refused(halts.undone_branch(arrival.branch.name, self._run, self._at))
            assert self._recording is not None
            error = halts.missing(arrival, self._recording)
            return Refused(error, halts=match.why == "missing")
        if match.why == "blocked":
            if self._forking is None or arrival.placed:
                self._use_up(arrival.branch, entry)
            if self._live:
                progress = arrival.progress
                progress.consent = progress.consent._replace(decided=entry.decided)
                arrival.supersedes = entry.run, entry.step
            refused = entry.outcome
            refusal = Blocked(refused["reason"], rule=refused["rule"], code=refused["code"])
            return Refused(refusal, halts=False)
        if match.why == "unknown":
            asked = arrival.probe_result
            why = f" ({asked.why})" if asked is not None and asked.why else ""
            return Refused(halts.unknown(entry.run, entry.step, entry.name, self._at, why=why))
        if match.why == "lossy":
            return Refused(halts.lossy(match.given or entry, self._at))
        return Refused(halts.changed(match.why, entry, arrival.contract))

    def _give_back(self, arrival: Arrival, match: Match) -> Admission:
        entry, given = match.entry, match.given
        assert entry is not None
        assert given is not None
        branch, path = arrival.branch, arrival.branch.path
        known = bytes.fromhex(entry.fingerprint)
        place = arrival.place(known)
        if entry.kind == "model":
            self._use_up(branch, entry)
        elif path is not None and arrival.placed:
            if branch.following:
                place = union(place, entry)
            if path.take(entry):
                made = link(known, bytes.fromhex(given.digest))
                branch.replayed_write(arrival.turn, entry.position, made)
        if self._forking is not None:
            self._forking.gave(entry)
        self._count_hit(given)
        event = journal.replayed(self._number(arrival.progress), arrival, place, given)
        if given.status == "unknown":
            error = halts.unknown(given.run, given.step, given.name, self._at)
            return Admission(event, error=error)
        if self._mode == "verify" and arrival.call.kind == "tool":
            return self._compared(arrival, place, given, event)
        return Admission(event, entry=given)

    def _assume(self, arrival: Arrival, match: Match) -> Admission:
        """Give a recorded step back in another world, in a fork; a write leaves the path there."""
        entry, branch = match.entry, arrival.branch
        assert entry is not None
        changes = entry.effect in ("write", "scope")
        if changes:
            branch.leave_path(arrival.turn)
        place = arrival.place()
        self._asked_for(arrival, entry)
        if changes:
            made = link(bytes.fromhex(entry.fingerprint), bytes.fromhex(entry.digest))
            branch.replayed_write(arrival.turn, place.position, made)
        self._count_hit(entry)
        event = journal.replayed(self._number(arrival.progress), arrival, place, entry)
        event["assumed"] = True
        return Admission(event, entry=entry)

    def _compared(self, arrival: Arrival, place: Place, entry: Entry, event: Event) -> Admission:
        """A hit of `verify`: a pure or read tool is run again, if the results are comparable."""
        effect, path = arrival.contract.effect, arrival.branch.path
        if entry.decided is not None and "responded" in entry.decided:
            return Admission(event, entry=entry)
        if effect == "read" and path is not None and entry.end < path.length:
            event["drift"] = _NOT_COMPARABLE
        elif effect in ("pure", "read"):
            return Admission(event, OpenStep(self._run, arrival, place), entry)
        return Admission(event, entry=entry)

    def _count_hit(self, entry: Entry) -> None:
        stats = self._stats
        stats.hits += 1
        stats.seconds_saved += entry.duration / 1e6
        outcome = entry.outcome
        if entry.status == "error" or ("drift" in outcome and raised(outcome) is not None):
            stats.errors += 1
        usage = outcome.get("usage")
        if usage:
            stats.tokens_saved += sum(usage.values())

    def _again(self, arrival: Arrival, match: Match) -> Admission:
        """Run a recorded step again, in its own place and under its own fingerprint."""
        entry, branch, path = match.entry, arrival.branch, arrival.branch.path
        assert entry is not None
        if self._forking is not None:
            return self._enter_again(arrival, entry)
        orphans = self._orphans(arrival, match.orphans)
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
        place = arrival.place(bytes.fromhex(entry.fingerprint))
        if branch.following:
            place = union(place, entry)
        path.take(entry)
        return self._start(arrival, place, advances=path.advances(entry), marks=marks)

    def _enter_again(self, arrival: Arrival, entry: Entry) -> Admission:
        """Run a recorded body again, because a fork changes a call in it.

        Its result is known at its end only: nothing after it is sure to hold.
        """
        path = arrival.branch.path
        advances = arrival.placed and path is not None and path.advances(entry)
        marks: Event = {"supersedes": [entry.run, entry.step]}
        if advances and arrival.branch.leave_path(arrival.turn):
            marks["leaves"] = True
        self._asked_for(arrival, entry)
        place = arrival.place()
        place.fingerprint = bytes.fromhex(entry.fingerprint)  # its calls are found by it
        return self._start(arrival, place, advances=advances, marks=marks)

    def _stand_in(self, arrival: Arrival, match: Match) -> Admission:
        """Answer a call by what a fork was given for it; a write leaves the recorded path."""
        progress = arrival.progress
        assert match.stand_in is not None
        changes = arrival.advances
        marks: Event = {"changed": True} if self._is_changed(match.entry) else {}
        self._asked_for(arrival, match.entry)
        if changes and arrival.branch.leave_path(arrival.turn):
            marks["leaves"] = True
        progress.stand_in_for(match.stand_in)
        arrival.look()
        place = arrival.place()
        if arrival.branch.path is not None:
            arrival.branch.set_apart(place, arrival.call.key)
        return self._start(arrival, place, advances=False, marks=marks)

    def go(self, arrival: Arrival, match: Match) -> Admission:
        """Run a call that nothing recorded answers.

        Raises:
            Refused: it may not run.
        """
        branch, path = arrival.branch, arrival.branch.path
        changed = match.entry is not None and self._is_changed(match.entry)
        orphans = self._orphans(arrival, match.orphans) if match.orphans else ()
        if arrival.verdict.decision != "allow":
            self._check_verdict(arrival)
        if match.entry is not None:
            self._asked_for(arrival, match.entry)
        marks: Event | None = None
        if path is not None:
            marks = self._acknowledged(orphans)
            if arrival.advances and branch.leave_path(arrival.turn):
                marks["leaves"] = True
            if path.ahead and arrival.placed:
                marks["ahead"] = True
            if changed:
                marks["changed"] = True
        key = arrival.call.key
        place = branch.place(arrival.turn, arrival.slot, key)
        if path is not None:
            branch.set_apart(place, key)
        return self._start(arrival, place, advances=arrival.advances, marks=marks)

    def _check_verdict(self, arrival: Arrival) -> None:
        """Refuse a call that may not run today, whatever is recorded."""
        verdict = arrival.verdict
        if verdict.decision == "deny":  # offline too, for a tool that may run live
            raise Refused(denied(arrival), halts=False)
        if arrival.asks and self._forking is not None and not self._forking.fork.live:
            raise Refused(halts.would_ask(arrival))
        if arrival.asks:
            message = f"{arrival.contract.name} requires approval: {verdict.reason}"
            waits = arrival.progress.consent.waits
            raise Refused(ApprovalRequired(f"{message} ({waits})" if waits else message))

    def _start(
        self, arrival: Arrival, place: Place, *, advances: bool, marks: Event | None
    ) -> Admission:
        self._stats.misses += 1
        event = journal.started(self._number(arrival.progress), arrival, place)
        if marks:
            event |= marks
        step = OpenStep(self._run, arrival, place)
        if advances:
            step.advances = True
            self.open[step.number] = step
            arrival.branch.begin_write(arrival.turn)
        return Admission(event, step)

    def _orphans(self, arrival: Arrival, found: Collection[Entry]) -> Collection[Entry]:
        """The recorded effects that are left behind; refused if that halts the session."""
        if not found or self._recording is None:
            return ()
        self._stats.orphans += len(found)
        if self._on_divergence != "warn":
            raise Refused(halts.diverged(arrival, [*found], self._run, self._at))
        inside = self._finder.orphans.inside_of(found)
        self._stats.orphans += len(inside)
        orphans = [*found, *inside]
        for entry in orphans:
            if entry.status == "unknown" and entry.effect == "write":  # it may be this call itself
                raise Refused(halts.unknown(entry.run, entry.step, entry.name, self._at))
        return orphans

    def _acknowledged(self, orphans: Collection[Entry]) -> Event:
        """Leave recorded effects behind; the mark on the step that does."""
        if not orphans or self._recording is None:
            return {}
        for entry in orphans:
            self._recording.paths[entry.branch].acknowledge(entry)
        return {"orphans": [[e.run, e.step] for e in orphans]}


def denied(arrival: Arrival) -> Blocked:
    """The error of a call that the gate denies."""
    verdict = arrival.verdict
    return Blocked(verdict.message, rule=verdict.rule, code=verdict.code)
