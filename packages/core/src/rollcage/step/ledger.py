"""The state of a session's run: it places each call, matches it, and makes the events.

A `Ledger` is plain state and decisions: no I/O, clock or lock. Whoever drives it holds the
session's lock around each call, and appends the events that it gives back before going on. What is
recorded of a call is found in `replay.finding`; here it is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from hashlib import sha256
from types import MappingProxyType
from typing import Literal

from orjson import Fragment

from rollcage.contract.drift import raised
from rollcage.errors import (
    Blocked,
    Halt,
    NotReplayable,
    SessionError,
    SessionHalted,
    TraceUnwritable,
)
from rollcage.fingerprint.identity import link
from rollcage.gate import Verdict, untimely
from rollcage.replay.ahead import Ahead, Histories, Spot, family
from rollcage.replay.branches import Branches
from rollcage.replay.finding import NEW, Finder, Match
from rollcage.replay.fork import Fork
from rollcage.replay.forking import Forking
from rollcage.replay.path import UNKNOWN_DIGEST, Entry
from rollcage.replay.recording import Recording
from rollcage.replay.world import Turn
from rollcage.step import halts, journal
from rollcage.step.admission import Admission, Precondition
from rollcage.step.branching import Branching
from rollcage.step.call import Arrival, Call, OpenStep, Progress
from rollcage.step.seeing import Seeing
from rollcage.step.stats import Stats
from rollcage.step.taking import Mode, OnDivergence, Refused, Taking, denied
from rollcage.trace.constructors import Event, step_finished

__all__ = ["Ledger", "Mode", "OnDivergence"]


class Ledger:
    """The state of one run while its session is open.

    Attributes:
        stats: what the session has done so far.
        halted: the error that halted it; None while it may go on.
        paused: what the run waits for; see `Session.pause`.
        branches: those that are open, and the turns.
        branching: forks and joins them.
        ahead: the recorded steps that nobody has asked for.
        forked: of a fork, what it was asked to be.
        on_divergence: what a new write does if it would leave effects behind.
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
        fork: Fork | None = None,
    ) -> None:
        self.stats = Stats()
        self.halted: BaseException | None = None
        self.paused = ""
        self._waited = "" if recording is None or mode != "resume" else recording.waits
        self._run = run
        self._at = at  # what a command line needs to find the store
        self._mode: Mode = mode
        self._recording = recording
        self._strict = strict = chain == "all"
        self.on_divergence: OnDivergence = on_divergence
        self._steps = steps  # how many the run has already
        self._asking: set[str] = set()  # requests for approval that nobody has decided
        self.branches = Branches(recording, seed, strict=strict, turns=turns)
        self._by_name = self.branches.by_name
        self.forked = fork
        self._finder = Finder(recording, self._by_name, live=mode in ("record", "resume"))
        if fork is not None and recording is not None:
            self._finder = Forking(
                fork, recording, self._by_name, str(recording.run_settings["run"])
            )
        self._taking = Taking(
            run, at, mode, on_divergence, recording, self._finder, self.stats, self._number
        )
        self.branching = Branching(
            run, at, self.branches, self._finder, self._number, is_fork=fork is not None
        )
        self.ahead = Ahead(recording)
        self._seeing = Seeing(recording, self.branches, self.ahead, self.stats, self._number)

    @property
    def has_recording(self) -> bool:
        """Whether anything is recorded that may answer a call."""
        return self._recording is not None

    @property
    def is_dry(self) -> bool:
        """Whether it is a fork that performs no writes."""
        return self.forked is not None and not self.forked.live

    @property
    def counted(self) -> tuple[int, int]:
        """How many steps and turns the run has."""
        return self._steps, self.branches.turns

    @property
    def waits(self) -> str | None:
        """What the run waits for; what its source waited for, as long as it has no step."""
        return self.paused or (self._waited if not self._steps else "") or None

    def go_on(self) -> None:
        """The run no longer waits."""
        self.paused = self._waited = ""

    def _number(self, progress: Progress | None = None) -> int:
        """The next step's number; the call of that step has it from then on."""
        self._steps += 1
        if progress is not None:
            progress.number = self._steps
        return self._steps

    # --- branches --------------------------------------------------------------------------------

    def branch_name(self, name: str, parent: OpenStep | None) -> str:
        """The branch in which calls are made, in the body of `parent` or outside of any."""
        inside = None if parent is None else (parent.branch.name, parent.fingerprint)
        return self.branches.name_in(name, inside)

    def join(self, parent: str, name: str, turn: Turn | None, now: int) -> Event | None:
        """See `Branching.join`; what it raises halts the session."""
        try:
            return self.branching.join(parent, name, turn, now)
        except Halt as error:
            self.halted = error
            raise

    # --- a call arrives --------------------------------------------------------------------------

    def admit(
        self, progress: Progress, verdict: Verdict, now: int, arrival: Arrival | None = None
    ) -> Admission:
        """Place a call, find what is recorded of it and take that; or say what must be done first.

        A call that something was done for comes again with its `arrival`: nothing was taken for it
        until then.
        """
        if self.halted is not None and self.stops(progress.call):
            error = SessionHalted(f"the session was halted: {self.halted}")
            error.__cause__ = self.halted
            return Admission(None, error=error)
        if arrival is None:
            try:
                arrival = self._arrive(progress, verdict, now)
            except SessionError as error:  # its branch is gone
                return Admission(None, error=error)
        else:
            arrival.verdict, arrival.now = verdict, now
            arrival.look()
        try:
            is_plain, turn = arrival.is_plain, arrival.turn
            if not is_plain:
                self._check_gate(arrival)
            until = turn.before(arrival.slot) if turn.asking and arrival.placed else None
            if until is not None:
                return Admission(None, first=Precondition("wait", arrival, until=until))
            start = arrival.branch.arrive(turn)[1] if arrival.placed else 0
            if self._recording is None and not arrival.compensates:
                if is_plain:
                    return self._taking.go(arrival, NEW)
                match = NEW
            else:
                match = self._finder.find(arrival, start)
            first = self._first(arrival, match)
            if first is not None:
                return Admission(None, first=first)
            return self._taking.take(arrival, match)
        except Refused as refused:
            return self._refuse(arrival, refused)

    def _arrive(self, progress: Progress, verdict: Verdict, now: int) -> Arrival:
        call = progress.call
        self.stats.calls += 1
        if call.call_id:
            self.ahead.give(call.conversation, call.call_id)
        parent, name = call.parent, call.branch
        branch = self.branches.named(name if parent is None else self.branch_name(name, parent))
        turn = call.turn or self.branches.implied_turn(branch, call.standing)
        return Arrival(progress, branch, turn, verdict, strict=self._strict, now=now)

    def stops(self, call: Call) -> bool:
        """Whether a halted session refuses this call too; an undo may go on if that is safe."""
        safe = isinstance(self.halted, Halt) and not isinstance(self.halted, TraceUnwritable)
        return call.undoes is None or not safe

    def _check_gate(self, arrival: Arrival) -> None:
        """Refuse a call that is denied, that can't be prepared, or whose approval is void."""
        progress = arrival.progress
        if arrival.verdict.decision == "deny" and self._mode != "offline":
            raise Refused(denied(arrival), halts=False)
        if progress.prepared.refused is not None:
            raise Refused(progress.prepared.refused, halts=False)
        if progress.consent.approved is not None:
            _check_approval(arrival)

    def _first(self, arrival: Arrival, match: Match) -> Precondition | None:
        """What has to be done before a call may run, if it would."""
        progress, entry = arrival.progress, match.entry
        if match.way == "edit" and self.forked is not None:
            return Precondition("change", arrival, entry, args=self.forked.args)
        if entry is not None and entry.is_edit_of(arrival.key):
            return Precondition("edit", arrival, entry)
        if match.way == "probe":
            arrival.turn.asking.setdefault(arrival.slot, Future())
            return Precondition("probe", arrival, entry)
        if match.way not in ("run new", "run again"):
            return None
        if progress.pace is not None and (entry is None or entry.status != "unknown"):
            limit = progress.pace()
            if limit is not None:  # too many have begun recently
                refusal = Blocked(limit.message, rule=limit.rule, code=limit.code)
                raise Refused(refusal, halts=False)
        if arrival.asks:
            asked = progress.ask is not None and not progress.consent.waits
            asked = asked and self._mode != "offline" and not self.is_dry
            return (
                Precondition("approve", arrival, asked=arrival.asked(self._run)) if asked else None
            )
        if match.orphans and self.on_divergence == "undo":
            return Precondition("undo", arrival, entry, match.orphans)
        if (
            arrival.contract.captures
            and progress.prepared.captured is None
            and arrival.kind == "tool"
        ):
            return Precondition("capture", arrival, entry)
        return None

    def begin_asking(self, request: str) -> bool:
        """Somebody is about to be asked; gives whether that is new."""
        fresh = request not in self._asking
        self._asking.add(request)
        return fresh

    def end_asking(self, request: str) -> None:
        """It was decided."""
        self._asking.discard(request)

    def _refuse(self, arrival: Arrival, refused: Refused) -> Admission:
        self.stats.blocked += 1
        if refused.halts:
            self.halted = refused.error
        event = journal.blocked(self._number(arrival.progress), arrival, refused.error)
        return Admission(event, error=refused.error)

    # --- what a framework's own memory holds -----------------------------------------------------

    def places(self, within: tuple[str, OpenStep | None]) -> Iterator[Spot]:
        """The places of the recorded steps that nobody has asked for; see `see`."""
        if self.halted is not None:
            return iter(())
        return self.ahead.places(family(self.branch_name(*within)))

    def see(
        self,
        within: tuple[str, OpenStep | None],
        now: int,
        *,
        places: frozenset[Spot] = frozenset(),
        histories: Histories = MappingProxyType({}),
    ) -> Iterator[tuple[Event, Entry]]:
        """Use up the recorded steps that it holds, as if they had been asked for: their events.

        Args:
            within: the branch in which that is called, and the step whose body it is.
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

    @property
    def missed(self) -> Entry | None:
        """Of a fork, the step that it changes, as long as nobody has asked for it."""
        return self._finder.missed if isinstance(self._finder, Forking) else None

    # --- a step ends -----------------------------------------------------------------------------

    def settle(
        self, step: OpenStep, outcome: Event, encoded: bytes, duration: int, now: int
    ) -> Event:
        """A step has ended; what is written of it. `duration` and `now` in µs."""
        status, digest = outcome["status"], sha256(encoded).digest()
        if status == "error" or ("drift" in outcome and raised(outcome) is not None):
            self.stats.errors += 1
        if step.advances:
            step.advances = False
            ran = status != "not_started"
            step.branch.end_write(step.link_at, link(step.fingerprint, digest) if ran else None)
        if self._recording is not None and status in ("ok", "error") and self.forked is None:
            self._finder.orphans.body_ended(step.fingerprint)
        return step_finished(
            now,
            step.number,
            outcome=Fragment(encoded),
            digest=digest.hex(),
            duration=duration,
        )

    def written(self, step: OpenStep) -> None:
        """The end of a step is in the trace: its outcome is known."""
        self._taking.open.pop(step.number, None)

    def abandon(self, progress: Progress) -> None:
        """An interrupt stopped what drives a call before its end was written.

        Whoever swallows that must not go on: the call's write may have happened, or its recorded
        step is used up and would run again.
        """
        call, contract = progress.call, progress.call.contract
        step = self._taking.open.get(progress.number)
        if step is not None and not step.world_effect:
            del self._taking.open[step.number]
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
        """The recorded effects that the run never asked for; a fork goes its own way."""
        return [] if self.forked is not None else self._finder.orphans.left()

    def in_flight(self) -> list[OpenStep]:
        """The writes that have begun and not ended."""
        return list(self._taking.open.values())


def _check_approval(arrival: Arrival) -> None:
    """Refuse a call whose approval no longer counts, or is for another call."""
    progress = arrival.progress
    request = progress.consent.request
    assert request is not None
    refusal = untimely(request.at, request.expires, arrival.now)
    if refusal is not None:
        raise Refused(
            Blocked(refusal.reason, rule=request.verdict.rule, code=refusal.code), halts=False
        )
    if request.key not in (progress.asked_key.hex(), arrival.key):
        message = "the approval is for another call"
        raise Refused(Blocked(message, rule="", code="approval_other_call"), halts=False)
