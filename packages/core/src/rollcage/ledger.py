"""What a session knows of its run: it places each call, matches it, and says what is written.

A `Ledger` is plain state and decisions: no I/O, clock or lock. Whoever drives it holds the
session's lock around each call, and appends the events that it gives back before going on.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal, NamedTuple

import orjson

from rollcage.contract import Arguments, Contract
from rollcage.errors import (
    ApprovalRequired,
    Blocked,
    Diverged,
    NotReplayable,
    ReplayMiss,
    RollcageError,
    SessionHalted,
    UnknownOutcome,
)
from rollcage.fingerprint import branch_world, child_world, key_digest, link, world_zero
from rollcage.gate import Verdict
from rollcage.replay import Entry, Path, Recording, nearest
from rollcage.world import Branch, Place, Turn, union

__all__ = ["Admission", "Call", "Ledger", "Mode", "OnDivergence", "Stats", "Step"]

Mode = Literal["record", "resume", "offline", "verify"]
OnDivergence = Literal["halt", "warn"]
Event = dict[str, Any]

_NOT_COMPARABLE: Final = "not comparable: recorded writes came after this read"


@dataclasses.dataclass(slots=True)
class Stats:
    """What a session has done so far.

    Attributes:
        calls: how many calls it placed.
        hits: how many were answered from the recording.
        misses: how many ran.
        blocked: how many a rule refused.
        errors: how many ended with an exception, live or replayed.
        orphans: recorded effects that were left behind.
        drifted: hits whose fresh execution differed (`verify`).
        seconds_saved: what the hits took when they ran.
        tokens_saved: what the replayed model calls had used.
    """

    calls: int = 0
    hits: int = 0
    misses: int = 0
    blocked: int = 0
    errors: int = 0
    orphans: int = 0
    drifted: int = 0
    seconds_saved: float = 0.0
    tokens_saved: int = 0


class Call:
    """What is requested: a contract with its arguments, and where the call comes from."""

    __slots__ = (
        "agent", "arguments", "branch", "call_id", "compared", "contract", "key", "kind", "parent",
        "shown", "slot", "turn",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        contract: Contract,
        arguments: Arguments,
        *,
        branch: str = "",
        turn: Turn | None = None,
        slot: int | None = None,
        agent: str = "",
        call_id: str = "",
        parent: Step | None = None,
    ) -> None:
        self.kind = kind
        self.contract = contract
        self.arguments = arguments
        self.shown: Any = orjson.Fragment(arguments.digest_input)  # as the trace holds them
        self.compared = arguments.canonical  # the same, to look into
        self.key = key_digest(kind, contract.name, contract.version, arguments.digest_input)
        self.branch = branch
        self.turn = turn
        self.slot = slot
        self.agent = agent
        self.call_id = call_id
        self.parent = parent


class Step:
    """A call that runs, between its step.started and its step.finished."""

    __slots__ = (
        "advances", "began", "branch", "call", "fingerprint", "link_at", "number", "run",
        "world_effect",
    )  # fmt: skip

    def __init__(self, run: str, number: int, call: Call, branch: Branch, place: Place) -> None:
        self.run = run
        self.number = number
        self.call = call
        self.branch = branch
        self.link_at = place.position
        self.fingerprint = place.fingerprint
        self.world_effect = call.kind == "tool" and call.contract.effect == "write"
        self.advances = False
        self.began = 0  # monotonic, ns; the driver's


class Admission(NamedTuple):
    """The ledger's answer to a call: one of step, entry and error, and what is to be written.

    With both a step and an entry, the tool runs only to be compared (`verify`).
    """

    event: Event | None
    step: Step | None = None
    entry: Entry | None = None
    error: Exception | None = None
    halts: bool = False


class _Refused(Exception):  # noqa: N818 - a turn of the flow inside this module, not an error
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
        root: str,
    ) -> None:
        self.run = run
        self.mode: Mode = mode
        self.root = root
        self.stats = Stats()
        self.halted: BaseException | None = None
        self._recording = recording
        self._strict = chain == "all"
        self._on_divergence: OnDivergence = on_divergence
        self._steps = 0
        self._turns = 0
        self._last_implicit: tuple[Turn, str] | None = None
        self._branches: dict[str, Branch] = {}
        self._writing = 0  # writes in flight, for calls that bring no turn
        self._open_branch("", world_zero(seed), follows=True)

    # --- branches and turns ----------------------------------------------------------------------

    def new_turn(self) -> Turn:
        """The next turn."""
        self._turns += 1
        return Turn(self._turns)

    def _open_branch(self, name: str, world: bytes, *, follows: bool) -> Branch:
        path = self._recording.paths.get(name) if self._recording is not None else None
        if path is None and self._recording is not None:
            path = Path([], strict=self._strict)
        if follows and path is not None and path.entries and name:
            # Where it was forked inside a batch, the recorded world says how much of it was done.
            world = bytes.fromhex(path.entries[0].world)
        branch = Branch(name, world, path)
        if not follows:
            branch.following = False
        self._branches[name] = branch
        return branch

    def fork(self, parent: str, name: str, turn: Turn | None) -> str:
        """Start a branch off another one; its full name."""
        branch = self._branches[parent]
        branch.arrive(turn or self.new_turn())
        count = branch.forks.get(name, 0) + 1
        branch.forks[name] = count
        own = name if count == 1 else f"{name}#{count}"
        full = f"{parent}/{own}" if parent else own
        world = branch_world(branch.world, own)
        self._open_branch(full, world, follows=branch.following)
        return full

    def join(self, parent: str, name: str, turn: Turn | None, now: int) -> Event | None:
        """A branch comes back: what it wrote becomes one write of its parent."""
        child, branch = self._branches[name], self._branches[parent]
        final = child.final_world()
        if final is None:
            return None
        turn = turn or self.new_turn()
        start = branch.arrive(turn)[1]
        slot = turn.take_slot(None)
        key = key_digest("branch", name, "", b"")
        entry = None
        if branch.path is not None and child.at_path_end() and branch.may_follow(turn):
            entry = branch.path.find(key.hex(), start, slot)
            if entry is not None and entry.digest != final.hex():
                entry = None
        place = branch.place(turn, slot, key)
        self._steps += 1
        event: Event = {"event": "branch.joined", "time": now, "step": self._steps, "name": name}
        if entry is None:
            branch.leave_path(turn)
            place = branch.place(turn, slot, key)
        else:
            assert branch.path is not None
            branch.path.take(entry)
            event["origin"] = [entry.run, entry.step, entry.turn]
        branch.replayed_write(turn, place.position, link(place.fingerprint, final))
        self._put_place(event, branch, place)
        event |= {"key": key.hex(), "fingerprint": place.fingerprint.hex(), "digest": final.hex()}
        event.pop("occurrence")
        event.pop("joined", None)
        return event

    def branch_name(self, name: str, parent: Step | None) -> str:
        """The branch in which calls stand: inside of a step's body, one of its own."""
        if parent is None:
            return name
        name = f"#{parent.fingerprint.hex()}"
        if name not in self._branches:
            self._open_branch(name, child_world(parent.fingerprint), follows=True)
        return name

    def _branch_of(self, call: Call) -> Branch:
        return self._branches[self.branch_name(call.branch, call.parent)]

    def _turn_of(self, call: Call, branch: Branch) -> Turn:
        """A call without a turn has one of its own, or that of the writes it overlaps with."""
        if call.turn is not None:
            return call.turn
        last = self._last_implicit
        if last is not None and last[1] == branch.name and branch.busy:
            return last[0]
        turn = self.new_turn()
        self._last_implicit = turn, branch.name
        return turn

    # --- a call arrives --------------------------------------------------------------------------

    def admit(self, call: Call, verdict: Verdict, now: int) -> Admission:
        """Place a call, match it with the recording, and say what happens with it."""
        if self.halted is not None:
            error = SessionHalted(f"the session was halted: {self.halted}")
            error.__cause__ = self.halted
            return Admission(None, error=error)
        stats = self.stats
        stats.calls += 1
        branch = self._branch_of(call)
        turn = self._turn_of(call, branch)
        slot = turn.take_slot(call.slot)
        try:
            if verdict.decision == "deny" and self.mode != "offline":
                raise _Refused(Blocked(verdict.reason, rule=verdict.rule, code=verdict.code), halts=False)
            advances = call.kind == "tool" and (
                self._strict or call.contract.effect in ("write", "scope")
            )
            start = branch.arrive(turn)[1] if self._is_placed(call) else 0
            entry = self._match(call, branch, turn, start, slot)
            if entry is not None:
                return self._answer(call, branch, turn, slot, entry, verdict, now)
            if verdict.decision == "ask":
                raise _Refused(ApprovalRequired(f"{call.contract.name} needs approval: {verdict.reason}"))
            self._miss(call, branch)
            return self._go(call, branch, turn, slot, verdict, now, advances=advances)
        except _Refused as refused:
            return self._refuse(call, branch, turn, slot, verdict, refused, now)

    def _is_placed(self, call: Call) -> bool:
        """Whether the call has a place among reads and writes; pure and model calls have none."""
        return call.kind == "tool" and (self._strict or call.contract.effect != "pure")

    def _match(
        self, call: Call, branch: Branch, turn: Turn, start: int, slot: int
    ) -> Entry | None:
        recording = self._recording
        if recording is None or call.contract.source == "live":
            return None
        key = call.key.hex()
        if call.kind == "model":
            queue = recording.models.get(key)
            return queue.popleft() if queue else None
        if not self._is_placed(call):
            entry = recording.pure.get(key)
            if entry is not None and entry.status == "error" and entry.frontier and self._live:
                return None
            if entry is not None or self.mode != "offline":
                return entry
        if branch.path is None or not branch.may_follow(turn):
            return None
        return branch.path.find(key, start, slot)

    @property
    def _live(self) -> bool:
        """Whether what is not recorded may run."""
        return self.mode in ("record", "resume")

    # --- a recorded step stands for it -----------------------------------------------------------

    def _answer(
        self, call: Call, branch: Branch, turn: Turn, slot: int, entry: Entry, verdict: Verdict, now: int
    ) -> Admission:
        path = branch.path
        status = entry.status
        if status == "blocked":
            if path is not None and entry.kind == "tool":
                path.take(entry)
            said = entry.outcome
            raise _Refused(
                Blocked(said["reason"], rule=said["rule"], code=said["code"]), halts=False
            )
        if self._live:
            if status == "not_started" or (status == "unknown" and call.contract.effect == "scope"):
                return self._again(call, branch, turn, slot, entry, verdict, now)
            if status == "unknown":
                if not call.contract.idempotent:
                    raise _Refused(_unknown(entry))
                return self._again(call, branch, turn, slot, entry, verdict, now)
            if status == "error" and entry.frontier and entry.effect in ("write", "scope"):
                return self._again(call, branch, turn, slot, entry, verdict, now)
        if entry.flaw is not None and status == "ok":
            self._unusable(call, entry)
            return self._again(call, branch, turn, slot, entry, verdict, now)
        placed = path is not None and entry.kind == "tool" and self._is_placed(call)
        place = branch.place(turn, slot, call.key)
        if placed:
            assert path is not None
            if branch.following:
                place = union(place, entry)
            path.take(entry)
            if path.advances(entry):
                made = link(bytes.fromhex(entry.fingerprint), bytes.fromhex(entry.digest))
                branch.replayed_write(turn, entry.position, made)
        self._count_hit(entry)
        event = self._call_event("step.replayed", call, branch, now)
        self._put_place(event, branch, place)
        event |= {
            "key": call.key.hex(),
            "fingerprint": entry.fingerprint,
            "origin": [entry.run, entry.step, entry.turn],
            "outcome": entry.outcome,
            "digest": entry.digest,
            "duration": entry.duration,
        }
        if verdict.decision != "allow":
            event["verdict"] = verdict.as_data()
        if status == "unknown":
            return Admission(event, entry=entry, error=_unknown(entry))
        if self.mode == "verify" and call.kind == "tool" and call.contract.effect in ("pure", "read"):
            if call.contract.effect == "read" and path is not None and entry.end < path.length:
                event["drift"] = _NOT_COMPARABLE
            else:
                event["drift"] = ""  # filled in, or taken out, once it ran
                return Admission(event, Step(self.run, self._steps, call, branch, place), entry)
        return Admission(event, entry=entry)

    def _count_hit(self, entry: Entry) -> None:
        stats = self.stats
        stats.hits += 1
        stats.seconds_saved += entry.duration / 1e6
        if entry.status == "error":
            stats.errors += 1
        usage = entry.outcome.get("usage")
        if usage:
            stats.tokens_saved += sum(usage.values())

    def _unusable(self, call: Call, entry: Entry) -> None:
        """A recorded value that can't be given back: reads run again, writes only if told so."""
        on_miss = call.contract.on_miss
        if on_miss == "live" or (self._live and not entry.has_effect and on_miss is None):
            return
        raise _Refused(
            NotReplayable(
                f"step {entry.step} of run {entry.run} ({entry.name}) was performed, but its result "
                f"can't be replayed: {entry.flaw}. Declare what is missing and record afresh, "
                f'or say on_miss="live" on the tool to run it again'
            )
        )

    def _again(
        self, call: Call, branch: Branch, turn: Turn, slot: int, entry: Entry, verdict: Verdict, now: int
    ) -> Admission:
        """Run a recorded step again, in its own place and under its own fingerprint."""
        if verdict.decision == "ask":
            raise _Refused(ApprovalRequired(f"{call.contract.name} needs approval: {verdict.reason}"))
        path = branch.path
        if path is not None and entry.kind == "tool":
            following = branch.following
            if following and entry.status == "error" and path.advances(entry):
                later = [e for e in path.left() if e.group > entry.group]
                if later:  # an earlier failure, run again by retry_failed
                    self._check_orphans(branch, later)
                    branch.leave_path(turn)
            path.take(entry)
            advances = path.advances(entry)
            place = branch.place(turn, slot, call.key)
            if branch.following:
                place = union(place, entry)
            place.fingerprint = bytes.fromhex(entry.fingerprint)
            return self._start(
                call, branch, turn, place, verdict, now, advances=advances,
                supersedes=[entry.run, entry.step],
            )  # fmt: skip
        place = branch.place(turn, slot, call.key)
        return self._start(call, branch, turn, place, verdict, now, advances=False)

    # --- nothing recorded stands for it ----------------------------------------------------------

    def _miss(self, call: Call, branch: Branch) -> None:
        """Whether a call without a recorded step may run."""
        recording = self._recording
        contract = call.contract
        if recording is None or contract.source == "live":
            return
        on_miss = contract.on_miss or ("live" if self._live else "fail")
        if on_miss == "live":
            return
        path = branch.path
        entries = list(path.entries) if path is not None else []
        entries += recording.pure.values()
        for queue in recording.models.values():
            entries += queue
        near = nearest(entries, contract.name, contract.version, call.compared)
        said = "nothing is recorded here"
        if near is not None:
            said = f"the nearest recorded call is step {near[0].step} ({near[0].name}); it differs in {near[1]}"
        error = ReplayMiss(f"no recorded step for {contract.name}: {said}")
        raise _Refused(error, halts=on_miss == "fail")

    def _go(
        self,
        call: Call,
        branch: Branch,
        turn: Turn,
        slot: int,
        verdict: Verdict,
        now: int,
        *,
        advances: bool,
    ) -> Admission:
        orphans: list[list[Any]] | None = None
        path = branch.path
        if path is not None and advances:
            if call.contract.effect in ("write", "scope"):
                self._check_version(call, path)
                orphans = self._check_orphans(branch, self._orphans(branch, turn, slot))
            branch.leave_path(turn)
        place = branch.place(turn, slot, call.key)
        ahead = path is not None and path.ahead > 0 and self._is_placed(call)
        return self._start(
            call, branch, turn, place, verdict, now, advances=advances, ahead=ahead, orphans=orphans
        )

    def _check_version(self, call: Call, path: Path) -> None:
        contract = call.contract
        if not path.ahead or contract.on_miss == "live":
            return
        other = path.other_version(contract.name, call.compared, contract.version)
        if other is not None:
            raise _Refused(
                NotReplayable(
                    f"step {other.step} of run {other.run} performed {contract.name} as version "
                    f"{other.version!r}; the tool is now {contract.version!r} and is not silently run "
                    f'again. Give the tool its old version, or say on_miss="live" on it'
                )
            )

    @staticmethod
    def _orphans(branch: Branch, turn: Turn, slot: int) -> list[Entry]:
        """The recorded effects that a new write of this turn and slot would leave behind.

        What other calls of the same turn may still ask for is none: a turn whose last calls were
        never recorded goes on, whoever of it comes first.
        """
        path = branch.path
        if path is None or not path.ahead:
            return []
        left = path.left()
        if branch.may_follow(turn):
            siblings = [e for e in left if e.since <= path.position and not e.abandoned]
            if len(siblings) == len(left) and slot not in {e.slot for e in siblings}:
                return []
        return left

    def _check_orphans(self, branch: Branch, orphans: list[Entry]) -> list[list[Any]] | None:
        if not orphans:
            return None
        self.stats.orphans += len(orphans)
        names = tuple((e.run, e.step) for e in orphans)
        if self._on_divergence == "halt":
            listed = ", ".join(f"step {e.step} ({e.name})" for e in orphans[:5])
            more = f" and {len(orphans) - 5} more" if len(orphans) > 5 else ""
            raise _Refused(
                Diverged(
                    f"a new write would leave recorded effects behind: {listed}{more} of run "
                    f'{orphans[0].run}. Look at them, then resume with on_divergence="warn" to go '
                    f"on without them",
                    names,
                )
            )
        assert branch.path is not None
        branch.path.acknowledge()
        return [[run, step] for run, step in names]

    # --- events ----------------------------------------------------------------------------------

    def _start(
        self,
        call: Call,
        branch: Branch,
        turn: Turn,
        place: Place,
        verdict: Verdict,
        now: int,
        *,
        advances: bool,
        supersedes: list[Any] | None = None,
        ahead: bool = False,
        orphans: list[list[Any]] | None = None,
    ) -> Admission:
        self.stats.misses += 1
        event = self._call_event("step.started", call, branch, now)
        self._put_place(event, branch, place)
        event["key"] = call.key.hex()
        event["fingerprint"] = place.fingerprint.hex()
        if verdict.rule:
            event["verdict"] = verdict.as_data()
        if supersedes is not None:
            event["supersedes"] = supersedes
        if ahead:
            event["ahead"] = True
        if orphans:
            event["orphans"] = orphans
        step = Step(self.run, self._steps, call, branch, place)
        if advances:
            step.advances = True
            branch.begin_write(turn)
        return Admission(event, step)

    def _refuse(
        self,
        call: Call,
        branch: Branch,
        turn: Turn,
        slot: int,
        verdict: Verdict,
        refused: _Refused,
        now: int,
    ) -> Admission:
        error = refused.error
        self.stats.blocked += 1
        if refused.halts:
            self.halted = error
        event = self._call_event("step.blocked", call, branch, now)
        started = turn.starts.get(branch.name)
        event |= {
            "turn": turn.number,
            "slot": slot,
            "position": branch.position,
            "key": call.key.hex(),
            "verdict": {
                "decision": "deny",
                "reason": getattr(error, "reason", str(error)),
                "code": getattr(error, "verdict_code", error.code),
                "rule": getattr(error, "rule", verdict.rule),
            },
        }
        if started is not None and started[0] != branch.position:
            event["since"] = started[0]
        if branch.open_batch:
            event["joined"] = True
        return Admission(event, error=error, halts=refused.halts)

    def _call_event(self, name: str, call: Call, branch: Branch, now: int) -> Event:
        self._steps += 1
        contract = call.contract
        event: Event = {
            "event": name,
            "time": now,
            "step": self._steps,
            "kind": call.kind,
            "name": contract.name,
            "version": contract.version,
            "effect": contract.effect,
            "args": call.shown,
        }
        if branch.name:
            event["branch"] = branch.name
        if call.agent:
            event["agent"] = call.agent
        if call.call_id:
            event["call_id"] = call.call_id
        if call.parent is not None:
            event["parent"] = call.parent.number
        return event

    @staticmethod
    def _put_place(event: Event, branch: Branch, place: Place) -> None:
        event["turn"] = place.turn.number
        event["slot"] = place.slot
        event["world"] = place.world
        event["position"] = place.position
        event["occurrence"] = [place.rank, place.slot]
        if place.since != place.position:
            event["since"] = place.since
        if place.joined:
            event["joined"] = True
        if branch.name:
            event["branch"] = branch.name

    # --- a step ends -----------------------------------------------------------------------------

    def settle(self, step: Step, outcome: Event, digest: bytes, duration: int, now: int) -> Event:
        """A step has ended; what is written of it."""
        if outcome["status"] == "error":
            self.stats.errors += 1
        if step.advances:
            started = outcome["status"] != "not_started"
            made = link(step.fingerprint, digest) if started else None
            step.branch.end_write(step.link_at, made)
        return {
            "event": "step.finished",
            "time": now,
            "step": step.number,
            "outcome": outcome,
            "digest": digest.hex(),
            "duration": duration,
        }

    def left_behind(self) -> list[Entry]:
        """The recorded effects that the run never asked for."""
        found: list[Entry] = []
        for branch in self._branches.values():
            if branch.path is not None and branch.path.ahead:
                found += branch.path.left()
        return found


def _unknown(entry: Entry) -> UnknownOutcome:
    return UnknownOutcome(
        f"nobody can tell whether step {entry.step} of run {entry.run} ({entry.name}) happened. "
        f"Find out, then say so: rollcage resolve {entry.run} {entry.step} --happened "
        f"[--result JSON] | --did-not-happen",
        entry.run,
        entry.step,
    )
