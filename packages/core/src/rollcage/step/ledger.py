"""What a session knows of its run: it places each call, matches it, and says what is written.

A `Ledger` is plain state and decisions: no I/O, clock or lock. Whoever drives it holds the
session's lock around each call, and appends the events that it gives back before going on.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Final, Literal

from rollcage.contract.contract import Contract
from rollcage.contract.drift import flaw_of, raised
from rollcage.errors import (
    ApprovalRequired,
    Blocked,
    Halt,
    NotReplayable,
    ReplayMiss,
    RollcageError,
    SessionError,
    SessionHalted,
    TraceUnwritable,
)
from rollcage.fingerprint.identity import (
    branch_world,
    child_world,
    key_digest,
    link,
    undo_world,
    world_zero,
)
from rollcage.gate import Verdict, untimely
from rollcage.replay.ahead import Ahead, Histories, Standing, family
from rollcage.replay.ahead import Place as Spot
from rollcage.replay.path import UNKNOWN_DIGEST, Entry, Path, nearest
from rollcage.replay.recording import Recording, is_fork
from rollcage.replay.world import Branch, Place, Turn, union
from rollcage.step import journal
from rollcage.step.call import Admission, Arrival, Call, Need, Stats, Step, Told
from rollcage.step.halts import contradicted, diverged, taken_back, unknown
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
    """The state of one run while its session is open."""

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
        self.paused = ""  # what the run waits for, as the session was told
        self._waited = "" if recording is None or mode != "resume" else recording.waits
        self._run = run
        self._at = at  # what a command line needs to find the store
        self._mode: Mode = mode
        self._live = mode in ("record", "resume")  # what is not recorded may run
        self._recording = recording
        self._strict = chain == "all"
        self._on_divergence: OnDivergence = on_divergence
        self._steps = steps  # how many the run has already, and turns
        self._turns = turns
        # Of the last call that brought no turn; and turns of what a framework does at once.
        self._implicit: tuple[Turn, Branch, str] | None = None
        self._turns_at: dict[tuple[str, str, int], Turn] = {}
        self._counts_at: dict[tuple[str, str], int] = {}
        self._branches: dict[str, Branch] = {}
        self._open: dict[int, Step] = {}
        self._undo_paths: dict[str, Path] = {}  # of what earlier undos did
        self.ahead = Ahead(recording)  # what nobody has asked for
        self._turns_seen: dict[int, Turn] = {}  # of seen steps, by the turn that they were of
        self._branches_seen: set[str] = set()  # opened for seen steps, not forked by anybody
        self._asking: set[str] = set()  # requests for approval that nobody has decided
        self._open_branch("", world_zero(seed), follows=True)

    @property
    def counted(self) -> tuple[int, int]:
        """How many steps and turns the run has."""
        return self._steps, self._turns

    @property
    def waits(self) -> str | None:
        """What the run waits for; what its source waited for, as long as it has no step."""
        return self.paused or (self._waited if not self._steps else "") or None

    def go_on(self) -> None:
        """What the run waited for is there."""
        self.paused = self._waited = ""

    # --- branches and turns ----------------------------------------------------------------------

    def new_turn(self, opens: Mapping[str, Collection[str]] = MappingProxyType({})) -> Turn:
        """The next turn, in which branches of these own names may be opened."""
        self._turns += 1
        return Turn(self._turns, opens)

    def _number(self, call: Call | None = None) -> int:
        """The next step's number; the call of that step knows it from then on."""
        self._steps += 1
        if call is not None:
            call.number = self._steps
        return self._steps

    def _open_branch(self, name: str, world: bytes, *, follows: bool) -> Branch:
        path = self._undo_paths.get(name)
        if self._recording is not None and path is None:
            path = self._recording.paths.get(name) or Path([], strict=self._strict)
            first = next((each for each in path.entries if each.position == 0), None)
            if name and follows and first is not None:
                # Where it was forked inside a batch, the recorded world says how much was done.
                world = bytes.fromhex(first.world)
        branch = Branch(name, world, path)
        branch.following = branch.following and follows
        self._branches[name] = branch
        return branch

    def branch_name(self, name: str, parent: Step | None) -> str:
        """The branch in which calls stand: inside of a step's body, one of its own.

        Or what was forked off that: there `name` is no longer the branch that the step stands in.
        """
        if parent is None or name != parent.branch.name:
            return name
        name = f"#{parent.fingerprint.hex()}"
        if name not in self._branches:
            self._open_branch(name, child_world(parent.fingerprint), follows=True)
        return name

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

        It begins behind what was done in those that it comes `after`: where one of these is not as
        it was recorded, nor is what comes after it.
        """
        branch = self._branches[parent]
        turn = turn or self.new_turn()
        branch.arrive(turn)
        at = ("", "") if standing is None else (standing.conversation, standing.checkpoint)
        count = self._count_of(parent, name, at) or branch.forks.get(name, 0) + 1
        branch.forks[name] = max(branch.forks.get(name, 0), count)
        own = name if count == 1 else f"{name}#{count}"
        full = f"{parent}/{own}" if parent else own
        behind = [self._behind_branch(each, parent, full) for each in after]
        ended = frozenset[bytes]().union(*(each.last_worlds() for each in behind))
        follows = branch.may_follow(turn)  # other calls of the turn may have left the path by now
        follows = follows and all(each.as_recorded for each in behind)
        fork = self._open_branch(full, branch_world(branch.world, own, ended), follows=follows)
        fork.forked_at, fork.forked_in, fork.behind = branch.position, turn, ended
        began = None if self._recording is None else self._recording.began(full)
        if branch.path is not None and began is not None:
            # It stood beside what came back to the other branch behind its own first step.
            fork.forked_at = min(fork.forked_at, branch.path.position_at(began))
        return full, branch_forked(
            time=now,
            name=full,
            branch=parent,
            turn=turn.number,
            conversation=at[0],
            checkpoint=at[1],
            after=after,
        )

    def _behind_branch(self, name: str, parent: str, full: str) -> Branch:
        """A branch that another one comes after."""
        found = self._branches.get(name)
        if found is None or name.rpartition("/")[0] != parent or not found.joined:
            raise SessionError(
                f"the branch {full!r} can't come after {name!r}: that has to be a branch of the "
                f"same one, and its block has to have ended"
            )
        return found

    def _count_of(self, parent: str, name: str, at: Spot) -> int | None:
        """Which of the forks of a name one is that a framework with a memory makes again.

        Those that it made before, where it never comes back to, need not all be seen.
        """
        if self._recording is None or not at[1]:
            return None
        for known, place in self._recording.opened.items():
            around, _, own = known.rpartition("/")
            plain, _, count = own.partition("#")
            if place == at and (around, plain) == (parent, name) and known not in self._branches:
                return int(count or 1)
        return None

    def join(self, parent: str, name: str, turn: Turn | None, now: int) -> Event | None:
        """A branch comes back: what it wrote becomes one write of its parent."""
        child, branch = self._branches[name], self._branches[parent]
        child.joined = True
        final = child.final_world()
        if final is None:
            return None
        turn = turn or self.new_turn()
        start = branch.arrive(turn)[1]
        slot = turn.take_slot(None)
        key = key_digest("branch", name, "", b"")
        path, entry = branch.path, None
        if path is not None and child.at_path_end() and branch.may_follow(turn):
            entry = path.find(key.hex(), start, slot)
            if entry is not None and entry.digest != final.hex():
                entry = None
        if entry is None and child.path is not None and child.path.taken_back:
            self.halted = taken_back(name, self._run, self._at)
            raise self.halted
        # What is recorded of branches that were open beside it was recorded before this one came
        # back, and still holds.
        leaves = entry is None and not self._open_beside(name, path) and branch.leave_path(turn)
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

    def _open_beside(self, name: str, path: Path | None) -> bool:
        """Whether effects are recorded, and not taken yet, of branches forked off the same one.

        Or of how they came back, in the `path` of that one.
        """
        if self._recording is None:
            return False
        if path is not None and path.ahead and any(e.kind == "branch" for e in path.left()):
            return True
        around = name.rpartition("/")[0]
        return any(
            other.ahead and _is_beside(each, name, around)
            for each, other in self._recording.paths.items()
        )

    def _turn_of(self, call: Call, branch: Branch) -> Turn:
        """A call without a turn has one of its own, or that of the writes it overlaps with."""
        if call.turn is not None:
            return call.turn
        last = self._implicit
        if last is not None and last[1:] == (branch, call.checkpoint) and branch.busy:
            return last[0]
        turn = self.turn_at(call.standing, branch.name) or self.new_turn()
        self._implicit = turn, branch, call.checkpoint
        return turn

    def turn_at(self, standing: Standing | None, branch: str) -> Turn | None:
        """The turn of what a framework does at once: the first of each of those works, the second.

        None where nobody can tell what is done at once.
        """
        if standing is None or not standing.at_once:
            return None
        place = branch, standing.checkpoint
        count = self._counts_at[place] = self._counts_at.get(place, 0) + 1
        key = branch, standing.at_once, count
        turn = self._turns_at.get(key)
        if turn is None:
            turn = self._turns_at[key] = self.new_turn()
        return turn

    # --- a call arrives --------------------------------------------------------------------------

    def admit(
        self, call: Call, verdict: Verdict, now: int, arrival: Arrival | None = None
    ) -> Admission:
        """Place a call, match it with the recording, and say what happens with it.

        One that something had to be done for first comes again with its `arrival`.
        """
        if self.halted is not None and self.stops(call):
            error = SessionHalted(f"the session was halted: {self.halted}")
            error.__cause__ = self.halted
            return Admission(None, error=error)
        if arrival is None:
            self.stats.calls += 1
            self.ahead.give(call.conversation, call.call_id)
            branch = self._branches[self.branch_name(call.branch, call.parent)]
            turn = self._turn_of(call, branch)
            arrival = Arrival(call, branch, turn, verdict, strict=self._strict, now=now)
        else:
            arrival.verdict, arrival.now = verdict, now
            arrival.look()
            branch, turn = arrival.branch, arrival.turn
        try:
            self._check_gate(arrival)
            until = turn.before(arrival.slot) if turn.asking and arrival.placed else None
            if until is not None:
                return Admission(None, need=Need("wait", arrival, until=until))
            start = branch.arrive(turn)[1] if arrival.placed else 0
            entry = self._match(arrival, start)
            contract = arrival.contract
            if entry is not None and entry.is_edit_of(call.key.hex()):
                return Admission(None, need=Need("edit", arrival, entry))
            if call.pace is not None:
                self._check_pace(arrival, entry)
            if verdict.decision == "ask" or contract.captures or self._on_divergence == "undo":
                need = self._need(arrival, entry)
                if need is not None:
                    return Admission(None, need=need)
            if entry is not None:
                return self._answer(arrival, entry)
            self._check_miss(arrival)
            return self._go(arrival)
        except _Refused as refused:
            return self._refuse(arrival, refused)

    def _check_gate(self, arrival: Arrival) -> None:
        """Refuse a call that is denied, that can't be prepared, or whose approval is void."""
        call, verdict = arrival.call, arrival.verdict
        if verdict.decision == "deny" and self._mode != "offline":
            refusal = Blocked(verdict.message, rule=verdict.rule, code=verdict.code)
            raise _Refused(refusal, halts=False)
        if call.refused is not None:
            raise _Refused(call.refused, halts=False)
        if call.approved is not None:
            _check_approval(arrival)

    def stops(self, call: Call) -> bool:
        """Whether a halted session refuses this call too; an undo may go on where it was safe."""
        safe = isinstance(self.halted, Halt) and not isinstance(self.halted, TraceUnwritable)
        return call.undoes is None or not safe

    def _match(self, arrival: Arrival, start: int) -> Entry | None:
        """The recorded step that stands for a call, if any."""
        recording = self._recording
        if arrival.call.undoes is not None:
            path = arrival.branch.path
            return None if path is None else path.find(arrival.call.key.hex(), start, arrival.slot)
        if recording is None or arrival.contract.source == "live":
            return None
        branch, key = arrival.branch, arrival.call.key.hex()
        if arrival.call.kind == "model":
            answer = recording.next_answer(key)
            while answer is not None and self._is_past(arrival, answer):
                answer = recording.next_answer(key)
            return answer
        if not arrival.placed:
            entry = recording.pure.get(key)
            if entry is not None and entry.status == "error" and entry.frontier and self._live:
                return None
            if entry is not None:
                return entry
        path = branch.path
        if path is None:
            return None
        if not branch.may_follow(arrival.turn):
            return path.find_at(key, arrival.call.checkpoint)
        entry = path.find(key, start, arrival.slot) or path.find_at(key, arrival.call.checkpoint)
        while entry is not None and self._is_past(arrival, entry):
            path.take(entry)
            entry = path.find(key, start, arrival.slot)
        if not arrival.placed and self._live and entry is not None and entry.status != "blocked":
            return None
        return entry

    def _check_pace(self, arrival: Arrival, entry: Entry | None) -> None:
        """Refuse a call that would run now, where too many have begun of late."""
        if entry is None:
            self._check_miss(arrival)
        elif entry.status in ("blocked", "unknown") or not self._runs_again(arrival, entry):
            return
        said = None if arrival.call.pace is None else arrival.call.pace()
        if said is None:
            return
        if entry is not None and entry.kind == "model":
            entry.used = False  # it has not been asked again
        raise _Refused(Blocked(said.message, rule=said.rule, code=said.code), halts=False)

    def _is_past(self, arrival: Arrival, entry: Entry) -> bool:
        """Whether somebody's no holds no longer: today nobody is asked."""
        asks = arrival.verdict.decision == "ask" and arrival.call.approved is None
        return self._live and entry.status == "blocked" and not asks

    def _need(self, arrival: Arrival, entry: Entry | None) -> Need | None:
        """What has to be done before a call may run, if it would."""
        call, contract = arrival.call, arrival.contract
        if entry is None:
            self._check_miss(arrival)
        elif entry.status == "unknown" and self._live and contract.effect == "write":
            if call.told is None and _can_tell(contract, entry):
                arrival.turn.asking.setdefault(arrival.slot, Future())
                return Need("tell", arrival, entry)
            if call.told is not None and call.told.happened:
                _believe(entry, call.told)
        if entry is not None and (
            entry.status == "blocked" or not self._runs_again(arrival, entry)
        ):
            return None
        if self._may_be_asked(arrival):
            if entry is not None and entry.kind == "model":
                entry.used = False  # it is looked for again, once that is decided
            return Need("approve", arrival, asked=arrival.asked(self._run))
        if arrival.verdict.decision == "ask" and call.approved is None:
            return None  # refused further on
        if self._on_divergence == "undo" and call.undoes is None:
            orphans = self._behind(arrival, entry)
            if orphans:
                return Need("undo", arrival, entry, tuple(orphans))
        if contract.captures and call.captured is None and call.kind == "tool":
            return Need("capture", arrival, entry)
        return None

    def _may_be_asked(self, arrival: Arrival) -> bool:
        """Whether somebody is there to be asked about a call, and has not been yet."""
        call = arrival.call
        asks = arrival.verdict.decision == "ask" and call.ask is not None
        return asks and call.approved is None and not call.waits and self._mode != "offline"

    def begin_asking(self, request: str) -> bool:
        """Somebody is about to be asked; whether that is new."""
        fresh = request not in self._asking
        self._asking.add(request)
        return fresh

    def end_asking(self, request: str) -> None:
        """It was decided."""
        self._asking.discard(request)

    def _behind(self, arrival: Arrival, entry: Entry | None) -> list[Entry]:
        """The recorded effects that a call would leave behind, if it runs."""
        path = arrival.branch.path
        if path is None or not arrival.advances or self._recording is None:
            return []
        if arrival.call.undoes is not None:
            return []
        if entry is not None:
            if arrival.branch.following and entry.status == "error" and path.advances(entry):
                return [e for e in path.later(entry) if e.has_effect]
            return []
        if arrival.contract.effect not in ("write", "scope"):
            return []
        self._check_version(arrival, path)
        if path.taken_back:
            raise _Refused(taken_back(arrival.branch.name, self._run, self._at))
        orphans = _orphans(arrival, path)
        orphans += self._after(arrival.branch.name)
        if not path.entries:
            orphans += self._unopened(arrival.branch.name)
        beside = arrival.call.is_beside
        return [entry for entry in orphans if entry.abandoned or not beside(entry)]

    def _refuse(self, arrival: Arrival, refused: _Refused) -> Admission:
        self.stats.blocked += 1
        if refused.halts:
            self.halted = refused.error
        event = journal.blocked(self._number(arrival.call), arrival, refused.error)
        return Admission(event, error=refused.error)

    # --- a recorded step stands for it -----------------------------------------------------------

    def _answer(self, arrival: Arrival, entry: Entry) -> Admission:
        path = arrival.branch.path if entry.kind == "tool" else None
        if entry.status == "blocked":
            if path is not None:
                path.take(entry)
            if self._live:
                arrival.call.decided = entry.decided
                arrival.supersedes = entry.run, entry.step
            said = entry.outcome
            refusal = Blocked(said["reason"], rule=said["rule"], code=said["code"])
            raise _Refused(refusal, halts=False)
        if self._runs_again(arrival, entry):
            return self._again(arrival, entry)
        place = arrival.place()
        if path is not None and arrival.placed:
            if arrival.branch.following:
                place = union(place, entry)
            path.take(entry)
            if path.advances(entry):
                made = link(bytes.fromhex(entry.fingerprint), bytes.fromhex(entry.digest))
                arrival.branch.replayed_write(arrival.turn, entry.position, made)
        self._count_hit(entry)
        event = journal.replayed(self._number(arrival.call), arrival, place, entry)
        if entry.status == "unknown":
            return Admission(event, error=unknown(entry.run, entry.step, entry.name, self._at))
        if self._mode == "verify" and arrival.call.kind == "tool":
            return self._compared(arrival, place, entry, event)
        return Admission(event, entry=entry)

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

    def _runs_again(self, arrival: Arrival, entry: Entry) -> bool:
        """Whether a recorded step is run again in its own place, rather than given back.

        Refused where it must neither run again nor can be given back.
        """
        status, contract = entry.status, arrival.contract
        if self._live:
            if status == "not_started" or (status == "unknown" and contract.effect == "scope"):
                return True
            if status == "unknown":
                told = arrival.call.told
                if contract.idempotent or (told is not None and told.happened is False):
                    return True
                raise _Refused(unknown(entry.run, entry.step, entry.name, self._at))
            if status == "error" and entry.frontier and entry.effect in ("write", "scope"):
                return True
        if entry.flaw is None or status != "ok":
            return False
        on_miss = contract.on_miss
        if on_miss == "live" or (self._live and not entry.has_effect and on_miss is None):
            return True
        raise _Refused(
            NotReplayable(
                f"step {entry.step} of run {entry.run} ({entry.name}) was performed, but its "
                f"result can't be replayed: {entry.flaw}. Record its result: rollcage resolve "
                f"{entry.run} {entry.step}{self._at} --happened --result JSON; or declare "
                f'on_miss="live" on the tool to run it again'
            )
        )

    def _count_hit(self, entry: Entry) -> None:
        stats = self.stats
        stats.hits += 1
        stats.seconds_saved += entry.duration / 1e6
        stats.errors += entry.status == "error" or raised(entry.outcome) is not None
        usage = entry.outcome.get("usage")
        if usage:
            stats.tokens_saved += sum(usage.values())

    def _again(self, arrival: Arrival, entry: Entry) -> Admission:
        """Run a recorded step again, in its own place and under its own fingerprint."""
        branch, path = arrival.branch, arrival.branch.path
        marks: Event = {"supersedes": [entry.run, entry.step]}
        if path is None or entry.kind != "tool" or not arrival.placed:
            return self._start(arrival, arrival.place(), advances=False, marks=marks)
        if branch.following and entry.status == "error" and path.advances(entry):
            later = path.later(entry)
            if later:  # an earlier failure, run again by retry_failed
                marks |= self._check_orphans(arrival, [e for e in later if e.has_effect])
                if branch.leave_path(arrival.turn):
                    marks["leaves"] = True
        place = arrival.place()
        if branch.following:
            place = union(place, entry)
        path.take(entry)
        place.fingerprint = bytes.fromhex(entry.fingerprint)
        return self._start(arrival, place, advances=path.advances(entry), marks=marks)

    # --- nothing recorded stands for it ----------------------------------------------------------

    def _check_miss(self, arrival: Arrival) -> None:
        """Refuse a call without a recorded step where it may not run."""
        recording, contract = self._recording, arrival.contract
        if recording is None or contract.source == "live":
            return
        on_miss = contract.on_miss or ("live" if self._live else "fail")
        if on_miss == "live":
            return
        path = arrival.branch.path
        entries = list(path.entries) if path is not None else []
        entries += recording.pure.values()
        for queue in recording.models.values():
            entries += queue
        near = nearest(entries, contract.name, contract.version, arrival.call.compared)
        said = "nothing is recorded at this place"
        if near is not None:
            entry, differs = near
            nearby = f"step {entry.step} ({entry.name})"
            said = f"the nearest recorded call is {nearby}; it differs in {differs}"
        asked = len(recording.models.get(arrival.call.key.hex(), ()))
        if arrival.call.kind == "model" and asked:
            many = (
                "the one recorded answer to this request was"
                if asked == 1
                else (f"all {asked} recorded answers to this request were")
            )
            said = f"{many} replayed already; the model was called once more"
        if arrival.call.turn is None and threading.current_thread() is not threading.main_thread():
            said += (
                ". It was called in a thread, and threads have no order that a replay could "
                "follow: give each call a slot, with `with session.turn() as turn:` and in the "
                "thread `with turn.slot(i):`, or each thread a branch, `session.branch(name)`"
            )
        error = ReplayMiss(f"no recorded step for {contract.name}: {said}")
        raise _Refused(error, halts=on_miss == "fail")

    def _go(self, arrival: Arrival) -> Admission:
        """Run a call that nothing recorded stands for."""
        branch, path = arrival.branch, arrival.branch.path
        marks: Event = {}
        if self._recording is not None and path is not None:
            self._check_effect(arrival, self._recording, path)
        if path is not None and arrival.advances:
            if arrival.contract.effect in ("write", "scope"):
                marks = self._check_orphans(arrival, self._behind(arrival, None))
            if branch.leave_path(arrival.turn):
                marks["leaves"] = True
        if path is not None and path.ahead and arrival.placed:
            marks["ahead"] = True
        place = arrival.place()
        if path is not None:
            branch.set_apart(place, arrival.call.key)
        return self._start(arrival, place, advances=arrival.advances, marks=marks)

    def _start(
        self, arrival: Arrival, place: Place, *, advances: bool, marks: Event | None = None
    ) -> Admission:
        verdict = arrival.verdict
        if verdict.decision == "deny":  # offline, what may run live: recorded outcomes go before
            refusal = Blocked(verdict.message, rule=verdict.rule, code=verdict.code)
            raise _Refused(refusal, halts=False)
        if verdict.decision == "ask" and arrival.call.approved is None:
            said = f"{arrival.contract.name} requires approval: {verdict.reason}"
            waits = arrival.call.waits
            raise _Refused(ApprovalRequired(f"{said} ({waits})" if waits else said))
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

    @staticmethod
    def _check_version(arrival: Arrival, path: Path) -> None:
        contract = arrival.contract
        if not path.ahead or contract.on_miss == "live":
            return
        other = path.other_version(contract.name, arrival.call.compared, contract.version)
        if other is not None:
            raise _Refused(
                NotReplayable(
                    f"step {other.step} of run {other.run} performed {contract.name} as version "
                    f"{other.version!r}; the tool is now {contract.version!r} and is not silently "
                    f'run again. Give the tool its old version, or declare on_miss="live" on it'
                )
            )

    @staticmethod
    def _check_effect(arrival: Arrival, recording: Recording, path: Path) -> None:
        """Refuse to run a recorded call again only because its tool now declares another effect."""
        contract, key = arrival.contract, arrival.call.key.hex()
        if contract.on_miss == "live" or arrival.call.kind != "tool":
            return
        other = path.effect_of(key) if contract.effect == "pure" else None
        if contract.effect in ("write", "scope"):
            other = recording.pure.get(key)
        if other is not None and other.status == "ok":
            raise _Refused(
                NotReplayable(
                    f"step {other.step} of run {other.run} ran {contract.name} with the effect "
                    f"{other.effect!r}; the tool now declares {contract.effect!r} and is not "
                    f'silently run again. Declare on_miss="live" on it to run it'
                )
            )

    def _unopened(self, name: str) -> list[Entry]:
        """The recorded effects of branches beside or below this one that nobody has opened.

        A branch that goes by another name now would do all of it again. One that was opened before
        goes by its own.
        """
        if self._recording is None:
            return []
        paths, forks = self._recording.paths, self._recording.forks
        around = [name]
        if is_fork(name) and name not in paths and name not in self._recording.opened:
            around.append(name.rpartition("/")[0])
        return [
            entry
            for parent in around
            for other in forks.get(parent, ())
            if paths[other].ahead and other not in self._branches and not other.startswith("#")
            if not self._may_be_opened(other, name)
            for entry in paths[other].left()
        ]

    def _may_be_opened(self, other: str, name: str) -> bool:
        """Whether a branch beside this one is said to be opened in the turn that opened this."""
        turn = self._branches[name].forked_in if name in self._branches else None
        (around, _, own), (here, _, this) = other.rpartition("/"), name.rpartition("/")
        return turn is not None and here == around and turn.may_open(own, this)

    def _after(self, name: str) -> list[Entry]:
        """The recorded effects of the branches that come after this one, and nobody asked for."""
        if self._recording is None or not self._recording.after:
            return []
        paths, after = self._recording.paths, self._recording.after
        here = {name}
        while "/" in name:
            name = name.rpartition("/")[0]
            here.add(name)
        behind: set[str] = set()
        for other, before in after.items():  # in the order in which they were opened
            if not here.isdisjoint(before) or not behind.isdisjoint(before):
                behind.add(other)
        return [
            entry
            for other, path in paths.items()
            if path.ahead and _is_in(other, behind)
            for entry in path.left()
        ]

    def _check_orphans(self, arrival: Arrival, orphans: list[Entry]) -> Event:
        """What is written where recorded effects are left behind; refused where that halts."""
        if not orphans or self._recording is None:
            return {}
        self.stats.orphans += len(orphans)
        if self._on_divergence != "warn":
            raise _Refused(diverged(arrival, orphans, self._run, self._at))
        inside = self._came_back_with(orphans)
        self.stats.orphans += len(inside)
        orphans = [*orphans, *inside]
        for entry in orphans:
            if entry.status == "unknown" and entry.effect == "write":  # it may be this very call
                raise _Refused(unknown(entry.run, entry.step, entry.name, self._at))
        for entry in orphans:
            self._recording.paths[entry.branch].acknowledge(entry)
        return {"orphans": [[e.run, e.step] for e in orphans]}

    def _came_back_with(self, joins: list[Entry]) -> list[Entry]:
        """The recorded effects in branches whose joins these are, and below."""
        assert self._recording is not None
        names = {entry.name for entry in joins if entry.kind == "branch"}
        below = tuple(f"{name}/" for name in names)
        return [
            entry
            for name, path in self._recording.paths.items()
            if path.ahead and (name in names or name.startswith(below))
            for entry in path.left()
            if entry not in joins
        ]

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
            return
        wrong = self.ahead.contradicted(histories)
        if wrong is not None:
            self.halted = contradicted(wrong, self._at)
            return
        branch, parent = within
        inside = family(self.branch_name(branch, parent))
        held = self.ahead.at(places, inside, self._is_seen)
        for entry in held if places else self.ahead.answered(histories, inside):
            event = self._see(entry, None if parent is None else parent.number, now)
            if event is None:
                return  # it can't be told as done, nor what came behind it
            self.ahead.give(entry.conversation, entry.call_id)
            yield event, entry

    def _see(self, entry: Entry, parent: int | None, now: int) -> Event | None:
        """Use up one recorded step that nobody asks for; None where it does not hold here."""
        branch = self._branch_seen(entry.branch)
        turn = self._turns_seen.get(entry.group)
        if turn is None:
            turn = branch.closer if not branch.following else None
            turn = self._turns_seen[entry.group] = turn or self.new_turn()
        placed = entry.kind != "model" and (self._strict or entry.effect != "pure")
        path = branch.path
        if placed and (path is None or entry.since > path.position or not branch.may_follow(turn)):
            return None
        slot = turn.take_slot(entry.slot)
        if placed:
            branch.arrive(turn)
        place = branch.place(turn, slot, bytes.fromhex(entry.key))
        if placed and path is not None:
            if branch.following:
                place = union(place, entry)
            path.take(entry)
            if path.advances(entry):
                made = link(bytes.fromhex(entry.fingerprint), bytes.fromhex(entry.digest))
                branch.replayed_write(turn, entry.position, made)
        elif entry.kind == "model" and self._recording is not None:
            self._recording.use_answer(entry)
        entry.used = True
        if entry.kind == "branch":
            return journal.joined_again(self._number(), branch, place, entry, now)
        self._count_seen(entry)
        return journal.seen(self._number(), branch, place, entry, parent=parent, now=now)

    def _branch_seen(self, name: str) -> Branch:
        """A branch in which steps were seen; opened, where nobody has forked it."""
        branch = self._branches.get(name)
        if branch is None:
            parent, _, own = name.rpartition("/")
            around = self._branch_seen(parent)
            plain, _, count = own.partition("#")
            around.forks[plain] = max(around.forks.get(plain, 0), int(count or 1))
            world = branch_world(around.world, own)
            branch = self._open_branch(name, world, follows=around.following)
            self._branches_seen.add(name)
        return branch

    def _is_seen(self, name: str) -> bool:
        """Whether a branch was seen from its fork to its end."""
        path = self._branches[name].path if name in self._branches_seen else None
        return path is not None and not path.ahead

    def _count_seen(self, entry: Entry) -> None:
        self.stats.seen += 1
        self.stats.seconds_saved += entry.duration / 1e6
        usage = entry.outcome.get("usage")
        if usage:
            self.stats.tokens_saved += sum(usage.values())

    # --- undo ------------------------------------------------------------------------------------

    def begin_undo(self, paths: dict[str, Path]) -> None:
        """An undo begins; `paths` say what earlier ones have done."""
        self._undo_paths = paths

    def undo_branch(self, fingerprint: str, attempt: int) -> str:
        """Open the branch in which a step is undone, from its start; its name."""
        name = f"#{fingerprint}#undo{attempt or ''}"
        self._open_branch(name, undo_world(bytes.fromhex(fingerprint), attempt), follows=True)
        return name

    def taken_back(self, run: str, step: int) -> None:
        """A step was undone: where its recording lies ahead, it holds no longer."""
        if self._recording is not None:
            for path in self._recording.paths.values():
                path.take_back(run, step)

    def is_taken_back(self, branch: str) -> bool:
        """Whether all that is told of this branch was undone when it ran."""
        return self._recording is not None and branch in self._recording.rolled

    def rewind(self) -> None:
        """What is recorded holds no longer: the world is not the one that it was recorded in."""
        if self._recording is None:
            return
        self._recording.models.clear()
        for name, path in self._recording.paths.items():
            branch = self._branches.get(name)
            if branch is None:
                path.close()
            else:
                branch.leave_path(self.new_turn())

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
            self.halted = unknown(step.run, step.number, contract.name, self._at)
        else:
            self.halted = NotReplayable(
                f"a call of {contract.name} was interrupted before it ran or was given back: "
                f"leave the session, then resume the run"
            )

    def left_behind(self) -> list[Entry]:
        """The recorded effects that the run never asked for."""
        if self._recording is None:
            return []
        return [
            entry
            for name, path in self._recording.paths.items()
            if path.ahead and (name in self._branches or not name.startswith("#"))
            for entry in path.left()
        ]

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


def _is_in(branch: str, names: set[str]) -> bool:
    """Whether a branch is one of these, or was forked off one."""
    return branch in names or any(branch.startswith(f"{name}/") for name in names)


def _is_beside(branch: str, other: str, around: str) -> bool:
    """Whether a branch was forked off the same one (`around`) as the other, or in such a one."""
    if not is_fork(branch) or branch == other or branch.startswith(f"{other}/"):
        return False
    return branch.startswith(f"{around}/") if around else not branch.startswith("#")


def _can_tell(contract: Contract, entry: Entry) -> bool:
    """Whether a tool has a way to find out what became of a call of unknown outcome."""
    known = entry.undo is not None and "before" in entry.undo
    return contract.probe is not None or (contract.observe is not None and known)


def _believe(entry: Entry, told: Told) -> None:
    """A recorded step of unknown outcome happened, its probe says."""
    assert told.outcome is not None
    entry.status, entry.outcome, entry.digest = "ok", told.outcome, told.digest
    entry.flaw = flaw_of(told.outcome)
    entry.probed = True
    if told.undo:
        entry.undo = {**(entry.undo or {}), **told.undo}


def _orphans(arrival: Arrival, path: Path) -> list[Entry]:
    """The recorded effects that a new write would leave behind.

    Not those that other calls of its own turn may still ask for: a turn whose last calls were
    never recorded goes on, whoever of it comes first.
    """
    if not path.ahead:
        return []
    left = path.left()
    if not arrival.branch.may_follow(arrival.turn):
        return left
    return [e for e in left if e.abandoned or e.since > path.position or e.slot == arrival.slot]
