"""An attempt at a run: it matches calls against the recording, and writes what is new.

`begin` decides on a call and writes its intent, its body runs, `end` writes its outcome. All three
are steps of one flow, `perform`, a generator that yields what has to be waited for: `drive` and
`adrive` carry it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import Token
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from rollcage.contract.results import warn_of
from rollcage.contract.unknown_errors import certainty
from rollcage.errors import (
    ApprovalRequired,
    ArgumentsInvalid,
    Blocked,
    Diverged,
    ForkEnded,
    Halt,
    NotReplayable,
    PermissionUndeclared,
    ReplayMiss,
    SessionError,
    SessionHalted,
    StoreError,
    TraceUnwritable,
    UnknownOutcome,
)
from rollcage.fingerprint.identity import child_world, fingerprint, world_zero
from rollcage.gate.verdict import Verdict
from rollcage.heart.call import Call, Match, Place, here, refusal
from rollcage.heart.outcome import LARGE, answered, failure, given, is_lost, refused, success
from rollcage.heart.run import CHANGES, Event, Level, Outcome, Run, Step, spans_of
from rollcage.heart.stage import Hooks, Work
from rollcage.heart.store import store_option
from rollcage.heart.undo import open_undo, take_back
from rollcage.heart.walk import FOLDS, REOPENS, STAYS, Branch, Look, Turn
from rollcage.undo.compensation import arguments_of

if TYPE_CHECKING:
    from rollcage.heart.log import Chain
    from rollcage.heart.options import Options
    from rollcage.heart.session import Session
    from rollcage.heart.store import Store
    from rollcage.undo.compensation import KnownTools
    from rollcage.values.hiding import Seal
    from rollcage.values.registered import Types

__all__ = ["Attempt", "adrive", "at", "drive"]

_log: Final = logging.getLogger("rollcage")
_tuple: Final = tuple.__new__  # makes a named tuple without a call of Python's
_TAG: Final = b'"$rollcage":"blob"'
_REFUSALS: Final = (ArgumentsInvalid, Blocked, PermissionUndeclared)
_AT_REST: Final = Look(None, 0, STAYS)

Flow = Generator[Callable[[], Any], Any, Any]
Concurrent = Callable[[Level, Level, Step], bool]


class Setting(Protocol):
    """What an attempt is made with; the fields of the same names describe it."""

    store: Store
    options: Options
    hooks: Hooks
    types: Types
    tools: KnownTools

    @property
    def session(self) -> Session: ...
    @property
    def seal(self) -> Seal: ...
    @property
    def on_divergence(self) -> str: ...


class Stats:
    """What an attempt has done so far: its calls, and what became of them.

    A hit was answered by a step of the run, a miss ran; what was supplied is a new step whose
    outcome was known, for its effect was made elsewhere: the step's `once` says where. A guard
    blocked what is blocked; what was refused never became a call: its arguments do not pass, or
    there is no such tool.
    """

    __slots__ = ("blocked", "calls", "hits", "misses", "refused", "seen", "supplied")

    def __init__(self) -> None:
        self.calls = self.hits = self.misses = self.blocked = self.seen = self.supplied = 0
        self.refused = 0


class Attempt:
    """An attempt at a run, from when its session is entered until it is left.

    Attributes:
        run: what is known of the run.
        log: where it writes; None if it may not.
        live: whether bodies may run; False: recorded steps answer, or it halts.
        dry: whether it must not write: a fork that only looks.
        halted: why nothing runs in it any more; None if it goes on.
        closed: whether it has ended.
        waits: what it waits for outside of the run; see `Session.pause`.
        lock: held while anything of the run is looked at or changed.
        undo_busy: set when the undo that is being done has ended; None if none is.
    """

    def __init__(
        self,
        setting: Setting,
        run: Run,
        log: Chain | None,
        *,
        live: bool,
        dry: bool = False,
    ) -> None:
        self.run, self.log, self.live, self.dry = run, log, live, dry
        self.store, self.options, self.hooks = setting.store, setting.options, setting.hooks
        self.seal, self.types, self.tools = setting.seal, setting.types, setting.tools
        self.on_divergence = setting.on_divergence
        self.session: Session = setting.session
        self.stats = Stats()
        self.halted: Halt | None = None
        self.closed = False
        self.waits = ""
        self.lock = threading.RLock()
        self.undo_busy: threading.Event | None = None
        self.branches: dict[str, Branch] = {}
        self._users: dict[int, Turn] = {}
        self.root_world = world_zero(self.options.seed)
        self._ticks = self.options.clock.monotonic
        self.observers: list[Callable[..., Any]] = []
        self.is_at_once = log is None or log.log.is_at_once
        self._has_recording = bool(run.steps)
        self._is_fresh = live and not dry and not self._has_recording
        self._replayed: list[list[int]] = []
        self._restarted: list[int] = []
        self._marks: set[bytes] = set()
        self._ranks: Counter[tuple[str, str]] = Counter()

    # --- lines -----------------------------------------------------------------------------------

    def write(self, event: Event, outcome: Outcome | None = None) -> None:
        """Put a line on record and fold it in.

        Steps that were replayed since the last line are named in it. A line that can't be written
        halts: nothing runs whose line is not on record.
        """
        with self.lock:
            if self.closed:
                raise SessionError(f"the attempt at run {self.run.id} has ended")
            if self._restarted:
                event["restarted"], self._restarted = self._restarted, []
            if self._replayed:
                event["replayed"], self._replayed = self._replayed, []
            if self.hooks.conceal:
                event, outcome = self._concealed(event, outcome)
            if self.log is not None:
                try:
                    self.log.append(event, None if outcome is None else outcome.data)
                except Halt as error:
                    raise self.halt(error) from None
                except StoreError as error:
                    raise self.halt(TraceUnwritable(str(error))) from error
            self.run.apply(event, outcome)

    def note(self, event: Event, outcome: Outcome | None = None) -> None:
        """Put a line on record that is neither a call's intent nor its outcome, with its time."""
        event["time"] = self.options.clock.wall() // 1000
        self.write(event, outcome)

    def _concealed(self, event: Event, outcome: Outcome | None) -> tuple[Event, Outcome | None]:
        """A line, and its outcome, as they may be written."""
        if outcome is not None:
            event = {**event, "outcome": orjson.loads(outcome.data)}
        for conceal in self.hooks.conceal:
            event = conceal(event)
        return event, None

    def halt(self, error: Halt) -> Halt:
        """Let nothing more run. Returns the error, to be raised."""
        if self.halted is None:
            self.halted = error
        return error

    def settle(self, *, is_async: bool) -> Flow:
        """Wait until every line is on record."""
        log = self.log
        if log is None:
            return
        try:
            if is_async:
                yield log.settled
            else:
                log.wait()
        except Halt as error:
            raise self.halt(error) from None
        except StoreError as error:
            raise self.halt(TraceUnwritable(str(error))) from error

    # --- where calls stand -----------------------------------------------------------------------

    def branch(self, name: str) -> Branch:
        """Return this attempt's place in a branch."""
        found = self.branches.get(name)
        if found is None:
            if not name:
                seed = self.root_world
            elif name[0] == "#":
                seed = child_world(bytes.fromhex(name[1:]))
            else:
                seed = sha256(name.encode()).digest()
            found = self.branches[name] = Branch.of(self.run, name, seed, self._users)
        return found

    def turn_of(self, place: Place, branch: Branch) -> tuple[Turn, int]:
        """Return the turn and the slot of a call or a block that arrives.

        Calls that overlap, and bring no turn, are of one turn.
        """
        turn = place.turn
        if turn is None:
            is_alone = not branch.running and not branch.preparing
            turn = Turn() if is_alone or branch.open_turn is None else branch.open_turn
        if place.slot is not None:
            return turn, place.slot
        turn.slots += 1
        return turn, turn.slots - 1

    def number(self, turn: Turn) -> int:
        """Return the number of a turn: of the recorded one that it goes on with, or a new one."""
        if turn.n:
            return turn.n
        if len(turn.follows) == 1:
            (recorded,) = turn.follows
            if self._users.get(recorded) is turn:
                turn.n = recorded
                return recorded
        self.run.turns += 1
        turn.n = self.run.turns
        return turn.n

    def replay(self, step: Step) -> None:
        """Note that a step was used up; the next line names it."""
        spans = self._replayed
        if spans and spans[-1][1] + 1 == step.n:
            spans[-1][1] = step.n
        else:
            spans.append([step.n, step.n])

    def step_event(
        self,
        name: str,
        effect: str,
        key: str,
        arguments: Any,
        branch: Branch,
        turn: Turn,
        slot: int,
        place: Place,
        start: int,
        again: Step | None = None,
    ) -> Event:
        """Return the line of a step that begins here."""
        declared = place.slot is not None
        if again is not None:  # it is the same step, at its place
            mark, slot, declared = again.fingerprint, again.slot, again.declared
            number = again.turn
        else:
            number = turn.n or self.number(turn)
            key_bytes, world, rank = bytes.fromhex(key), branch.world, branch.rank(key, turn)
            mark = fingerprint(key_bytes, world, rank, slot)
            count = 0
            while mark in self._marks or mark in self.run.named:  # a name is given once
                count += 1
                mark = fingerprint(key_bytes, world, rank, slot, count)
            self._marks.add(mark)
        self.run.last += 1
        event: Event = {
            "event": "step", "step": self.run.last, "name": name, "effect": effect, "key": key,
            "args": arguments, "branch": branch.name, "start": start, "pos": branch.pos,
            "turn": number, "slot": slot, "fingerprint": mark.hex(),
            "time": self.options.clock.wall() // 1000,
        }  # fmt: skip
        if declared:
            event["declared"] = True
        if branch.running or branch.preparing:
            event["during"] = True
        if again is not None:
            event["again"] = again.n
            if again.epoch:
                event["epoch"] = again.epoch
        elif self.run.epochs and (epoch := self.run.epoch(branch.name)):
            event["epoch"] = epoch
        return event

    # --- a call begins ---------------------------------------------------------------------------

    def begin(self, call: Call) -> Work | None:
        """Decide on a call and write its intent, or take the step that answers it.

        Returns:
            Work that has to be done first, outside of the lock; then `begin` is called again.

        Raises:
            Blocked: a guard denies it.
            Halt: it can't go on, nor can anything else.
        """
        self._arrive(call)
        gate = call.session.gate
        call.verdict = verdict = gate.decide(call) if gate.decides else None
        if verdict is not None and verdict.decision == "deny":
            if self.live or self.match(call).kind != "hit":  # offline, what is recorded counts
                raise self.refuse(call, verdict)
            call.verdict = None
        match = self.match(call)
        call.verdict = match.asks or verdict
        if match.kind == "new" and self.run.rolled and self.live and call.effect in CHANGES:
            block = self._rolled_around(call)
            if block is not None:
                return self.go_otherwise(block, is_async=call.is_async)
        for prepare in call.hooks.prepare:
            work: Work | None = prepare(call, match)
            if work is not None:
                self._prepare(call, match)
                return work
        return self._commit(call, match)

    def _commit(self, call: Call, match: Match) -> Work | None:
        """Do with a call what was decided: answer it, refuse it, or write its intent."""
        if match.refusal is not None:
            if not self.live and isinstance(match.refusal, UnknownOutcome):
                raise match.refusal  # it is what is recorded of this call: others may be answered
            raise self.halt(match.refusal)
        if match.kind == "hit":
            self._give(call, match)
            return None
        if call.verdict is not None and call.granted != call.verdict:
            raise self._unanswered(call, call.verdict)
        if self.on_divergence == "undo" and any(step.acts for step in match.ahead):
            self._prepare(call, match)
            return take_back(self, match.ahead, why="divergence", is_async=call.is_async)
        self._start(call, match)
        return None

    def _arrive(self, call: Call) -> None:
        """Let a call in: where it stands is its own from the first time on."""
        if self.closed:
            raise SessionError(
                f"{call.contract.name} was called in session {call.session.name!r}, which was left"
            )
        if call.slot < 0:
            self._find_place(call)
        if call.is_prepared:
            self._release(call)
        if self.halted is not None:
            raise SessionHalted(f"the session was halted: {self.halted}") from self.halted
        if self.run.undoing is not None and self.undo_busy is None and self.live:
            raise self.halt(open_undo(self.run, self.store))
        if self.run.edits and not call.is_edited:
            self._edit(call)

    def _find_place(self, call: Call) -> None:
        call.before = self.stats.calls + self.stats.seen
        self.stats.calls += 1
        place = call.place
        for where in call.hooks.where:
            place = where(call, place) or place
        call.place = place
        around = place.around
        if around is not None and not around.is_on_record:
            self._put_on_record(around)
        call.branch = branch = self.branches.get(place.branch) or self.branch(place.branch)
        call.turn, call.slot = self.turn_of(place, branch)

    def _edit(self, call: Call) -> None:
        """Put the arguments of a fork in the place of those that the program asks for."""
        step = self.match(call).step
        if step is not None and step.n in self.run.edits:
            call.is_edited = True
            call.edit(arguments_of(self.run.edits[step.n]), self.seal)

    @staticmethod
    def _prepare(call: Call, match: Match) -> None:
        """Keep the place of a call while something is done before it may begin."""
        branch = call.branch
        call.is_prepared = True
        branch.preparing += 1
        branch.open_turn = call.turn
        if match.step is not None and not call.waiting:
            call.claim, match.step.claimed = match.step, True

    @staticmethod
    def _release(call: Call) -> None:
        """Let go of what was kept for a call while it was prepared."""
        if call.is_prepared:
            call.is_prepared = False
            call.branch.preparing -= 1
        if call.claim is not None:
            call.claim.claimed = False
            call.claim = None

    def _put_on_record(self, call: Call) -> None:
        """Write the intent of a read whose body makes calls, for these stand inside of it."""
        if call.event["effect"] not in CHANGES:
            self.write(call.event)
        call.is_on_record = True

    def _unanswered(self, call: Call, verdict: Verdict) -> Halt:
        which = "the session" if call.session.around is None else "the outermost session"
        return self.halt(
            ApprovalRequired(
                f"{call.contract.name} needs an approval ({verdict.reason}), and {which} has "
                f"nobody to ask: give it an approver"
            )
        )

    def refuse(self, call: Call, verdict: Verdict) -> Blocked:
        """Put a refused call on record; returns the error, to be raised. Its place is used up."""
        turn = call.turn.n  # a call that never gets a place makes no turn known
        event = refusal(
            call.contract, call.kind, call.arguments, verdict, call.place,
            turn=turn, slot=call.slot if turn else None,
        )  # fmt: skip
        if call.waiting:
            event["step"] = call.waiting
        self.let_go(call)
        self.stats.blocked += 1
        self.note(event)
        return Blocked(verdict.message, rule=verdict.rule, code=verdict.code)

    # --- matching --------------------------------------------------------------------------------

    def match(self, call: Call) -> Match:
        """Return what is recorded of a call. Changes nothing."""
        effect, name = call.effect, call.place.branch
        branch = call.branch = self.branches.get(name) or self.branch(name)
        look: Look | None = None
        if call.waiting:
            step: Step | None = self.run.steps[call.waiting]
            look = _AT_REST
        elif effect in ("pure", "model"):
            step = self._anywhere(call)
        else:
            slot = call.place.slot
            look = branch.look(call.key, effect, call.turn, slot)
            step = look.step
        if step is not None:
            if self._holds(step):
                unusable = self._unusable(step)
                if unusable is None or effect in CHANGES or not self.live:
                    return Match("hit", step, look, unusable)
                return Match("again", step, look)  # it changes nothing: it just runs again
        elif self._is_fresh and not self.run.unclear:
            return _tuple(Match, ("new", None, look, None, (), None))
        return self._runs(call, step, look)

    def _runs(self, call: Call, step: Step | None, look: Look | None) -> Match:
        """What becomes of a call that nothing recorded answers; `step` is at its place."""
        effect = call.effect
        refusal, asks = self._unsure(call, step)
        if step is not None and refusal is not None:
            return Match("again", step, look, refusal)
        if not self.live:
            return Match("new", step, look, self._miss(call))
        if self.dry and (effect == "write" or call.verdict is not None):
            return Match("new", step, look, self._ends(call))
        if step is not None:
            is_new = step.status == "waiting" or (call.is_edited and step.n in self.run.edits)
            if is_new and not call.waiting and look is not None:
                return self._ahead(call, look, step)._replace(asks=asks)
            return Match("again", step, look, asks=asks)
        if refusal is not None:
            return Match("new", None, look, refusal)
        if look is None:
            return Match("new", None, look, asks=asks)
        return self._ahead(call, look)._replace(asks=asks)

    def _anywhere(self, call: Call) -> Step | None:
        """A pure result; or the answer of this asker, else the first that another branch left."""
        known = self.run.anywhere.get(call.key, ())
        found = [step for step in known if step.status != "waiting"]
        waits = [step for step in known if step.status == "waiting" and step.is_open]
        if call.effect == "pure":
            found += waits
            return next((s for s in found if self._holds(s)), None) or (found[0] if found else None)
        name = call.place.branch
        if call.rank is None:
            call.rank = self._ranks[name, call.key]
            self._ranks[name, call.key] += 1
        left = [step for step in found if step.is_open and step.status != "unknown"]
        own = [s for s in (*waits, *left) if s.branch == name and s.rank == call.rank]
        if own:
            return own[-1]  # the newest: one that was borrowed from here may be of the same rank
        return min((s for s in left if s.branch != name), key=lambda step: step.n, default=None)

    def _holds(self, step: Step) -> bool:
        """Whether a step can answer: its outcome is known, and was acted upon if it failed."""
        if step.n in self.run.edits:
            return False
        if step.status == "ok":
            return True
        if step.status != "error":
            return False
        retry = self.options.retry_failed
        if not self.live or retry is False or step.happened is not None:
            return True
        if step.n in self.run.fixed:
            return True
        return retry is None and not self.run.is_frontier(step)

    def _ends(self, call: Call) -> ForkEnded:
        if call.effect == "write":
            return ForkEnded(f"{call} would be written", "would_write", call.contract.name)
        return ForkEnded(f"{call} would be asked about", "would_ask", call.contract.name)

    def _unusable(self, step: Step) -> Halt | None:
        """Why the result of a recorded step can't be given back, if that is known beforehand."""
        if step.outcome is None or b'"lossy":' not in step.outcome:
            return None
        reason = step.result.get("lossy")
        if reason is None:
            return None
        return NotReplayable(
            f"step {step.n} ({step.name}) was performed, but its result can't be given back: "
            f"{reason}. Put its result on record: rollcage resolve {self.run.id} {step.n}"
            f"{store_option(self.store)} --happened --result JSON"
        )

    def _unsure(self, call: Call, step: Step | None) -> tuple[Halt | None, Verdict | None]:
        """Why a write can't simply run; or what is asked before it does.

        The step at its place is of unknown outcome; or that one, or the same call before, has
        failed, and nobody knows how far it got.
        """
        if call.effect != "write" or call.contract.idempotent or call.supplied is not None:
            return None, None
        if step is not None and step.n in self.run.edits:
            return None, None
        if step is None or step.status == "waiting":
            if not self.run.unclear or call.key not in self.run.unclear:
                return None, None
            step = self.run.steps[self.run.unclear[call.key]]
        elif step.status == "unknown":
            return self.unknown(step), None
        elif not step.unclear:
            return None, None
        if call.session.approver is None:
            return self._may_have_happened(call, step), None
        reason = f"it may have happened already, at step {step.n}, which failed"
        if call.verdict is None:
            return None, Verdict.ask(reason, code="may_have_happened")
        both = f"{call.verdict.reason.rstrip('.')}; {reason}"
        return None, dataclasses.replace(call.verdict, reason=both)

    def unknown(self, step: Step, why: str = "") -> UnknownOutcome:
        """Return the halt for a step of unknown outcome, with the ways out."""
        run, n = self.run.id, step.n
        return UnknownOutcome(
            f"nobody knows whether step {n} ({step.name}) of run {run} happened{why}. Find out, "
            f"and say so: {self._resolves(n)}",
            run,
            n,
        )

    def _may_have_happened(self, call: Call, step: Step) -> UnknownOutcome:
        run, n = self.run.id, step.n
        return UnknownOutcome(
            f"{call} failed at step {n} of run {run}, and it may have happened already, so it is "
            f"not made again. Find out, and say so: {self._resolves(n)}; if this error means that "
            f"nothing happened, name its type in the tool's raises=",
            run,
            n,
        )

    def _resolves(self, n: int) -> str:
        """The commands that say whether a step happened."""
        command = f"rollcage resolve {self.run.id} {n}{store_option(self.store)}"
        return f"{command} --happened; or, if not: {command} --did-not-happen"

    def _miss(self, call: Call) -> ReplayMiss:
        near = [
            step
            for steps in self.run.branches.values()
            for step in steps
            if step.name == call.contract.name and step.is_open
        ]
        nearest = f"; the nearest recorded call of it is step {near[0].n}" if near else ""
        return ReplayMiss(f"{call} is not recorded in run {self.run.id}{nearest}")

    # --- leaving the recorded path ---------------------------------------------------------------

    def _ahead(self, call: Call, look: Look, waits: Step | None = None) -> Match:
        """A new effect: what it would leave behind, and what that means.

        Args:
            call: the call.
            look: where it stands.
            waits: the step that has its place, and never began.
        """
        branch, turn = call.branch, call.turn
        new = Match("new" if waits is None else "again", waits, look)
        is_new = call.effect in CHANGES and self._has_recording
        if not is_new or not self.run.untaken:
            return new
        place = self.run.lineage(branch.name, branch.pos + look.move, turn.n)
        if place[-1].branch[:1] == "-":  # a compensating call makes it
            return new
        joins = look.move == REOPENS or (
            look.move != FOLDS and branch.turn is turn and bool(branch.batch or branch.running)
        )
        concurrent = self._concurrent(
            joins=joins, slot=call.place.slot, turn=0 if waits is None else waits.turn
        )
        ahead = self.run.ahead(place, concurrent)
        return new._replace(refusal=self.leaving(ahead, f"{call} is new"), ahead=tuple(ahead))

    def _concurrent(self, *, joins: bool, slot: int | None, turn: int) -> Concurrent:
        """Decide whether a recorded step may still be asked for beside a new effect.

        Args:
            joins: whether the turn of the new effect has part in the open batch.
            slot: the slot that the effect declares.
            turn: the recorded turn that the effect is of, if its place is recorded; else 0.
        """

        def concurrent(mine: Level, its: Level, step: Step) -> bool:
            block, sibling = mine.step, its.step
            assert sibling is not None
            if mine.kind == "leaf":
                if joins or sibling.turn == turn:
                    return True
                return slot is not None and sibling.declared and sibling.slot != slot
            if mine.kind == "body":
                return True
            assert block is not None
            if any(first <= step.n <= last for first, last in block.beyond):
                return False
            if self._comes_after(sibling, block):
                return False
            walk = self.branches.get(block.inner)
            if walk is None or walk.beside or walk.opened_in is None:
                return True
            named = block.slot if block.declared else None
            return _may_come(sibling, block.name, named, walk.opened_in)

        return concurrent

    def _beyond(self, outer: Branch, name: str, turn: Turn, slot: int | None) -> list[Step]:
        """The recorded steps that lie ahead of a block that is new here."""
        if not self._has_recording or outer.name[:1] == "-" or not self.run.untaken:
            return []
        if (outer.batch or outer.running) and outer.turn is turn:
            return []
        place = self.run.lineage(outer.name, outer.pos, turn.n)
        inward = self._concurrent(joins=False, slot=None, turn=0)

        def concurrent(mine: Level, its: Level, step: Step) -> bool:
            if mine.branch != outer.name:
                return inward(mine, its, step)
            assert its.step is not None
            return _may_come(its.step, name, slot, turn)

        return self.run.ahead(place, concurrent)

    def _comes_after(self, step: Step, block: Step) -> bool:
        """Whether a block comes after another one, through any number of others."""
        to_see, seen = list(step.after), set[int]()
        while to_see:
            n = to_see.pop()
            if n in seen:
                continue
            seen.add(n)
            before: Step | None = self.run.steps[n]
            while before is not None and before.replacement:
                before = self.run.steps[before.replacement]
            if before is block:
                return True
            if before is not None:
                to_see.extend(before.after)
        return False

    def leaving(self, ahead: Iterable[Step], what: str) -> Halt | None:
        """Return why recorded effects can't be left behind; None if they can."""
        effects = [step for step in ahead if step.acts and not step.accepted]
        if not effects or self.on_divergence == "undo":  # an undo looks at them itself
            return None
        orphans = tuple((self.run.id, step.n) for step in effects)
        listed = ", ".join(f"{step.n} ({step.name})" for step in effects[:10])
        listed += f" and {len(effects) - 10} more" if len(effects) > 10 else ""
        if self.on_divergence == "halt":
            return Diverged(
                f"{what}, while recorded effects of run {self.run.id} lie ahead: {listed}. Put the "
                f"program back; take them back with on_divergence='undo', or with: rollcage undo "
                f"{self.run.id}{store_option(self.store)}; or go on without them with "
                f"on_divergence='warn'",
                orphans,
            )
        for step in effects:
            if step.status == "unknown":
                return self.unknown(step)
        return None

    def leave(self, place: Iterable[Level]) -> None:
        """Have the branches around a new effect leave the recorded path.

        A block that was cut goes on beside its siblings, and so does the body of a call, unless a
        fork has it made again: then what came after that call is beyond it.
        """
        for level in place:
            walk = self.branch(level.branch)
            if level.kind == "body" and not self.run.has_beyond(level):
                return
            if walk.left_at is None:
                walk.left_at = walk.pos if level.kind == "leaf" else level.pos
            if walk.was == "cut":
                return

    def go_otherwise(self, block: Branch, *, is_async: bool) -> Flow:
        """Halt for a block that was rolled back on record, and goes otherwise now.

        What came after it is left behind, or taken back; the next attempt finds it at the
        frontier, and makes it anew.

        Raises:
            Diverged: always; or another halt, if what came after it can't be left.
        """
        step, outer = block.opening, block.outer
        assert step is not None
        assert outer is not None
        with self.lock:
            place = self.run.lineage(outer.name, step.pos, step.turn)
            ahead = self.run.ahead(place, lambda _mine, _its, _step: False)
            what = f"block {step.name!r} was rolled back on record, and goes otherwise now"
            refusal = self.leaving(ahead, what)
            if refusal is not None:
                raise self.halt(refusal)
            if ahead and self.on_divergence == "warn":
                self.note({"event": "left", "left": spans_of(each.n for each in ahead)})
        if ahead and self.on_divergence == "undo":
            yield from take_back(self, ahead, why="divergence", is_async=is_async)
        raise self.halt(Diverged(f"{what}: the next attempt makes it anew", ()))

    def _rolled_around(self, call: Call) -> Branch | None:
        """The block around a call that was rolled back on record, if there is one."""
        for level in self.run.lineage(call.place.branch, 0):
            if level.branch in self.run.rolled:
                return self.branches.get(level.branch)
        return None

    # --- what becomes of it ----------------------------------------------------------------------

    def _move(self, call: Call, look: Look | None) -> None:
        if look is not None and look is not _AT_REST:
            call.branch.move(look, call.turn)

    def _give(self, call: Call, match: Match) -> None:
        """A recorded step answers the call."""
        self._move(call, match.look)
        step = match.step
        assert step is not None
        assert step.outcome is not None
        call.recorded = step
        outcome = Outcome(step.status, step.outcome)
        if step.effect == "model" and step.branch != call.place.branch and self.live:
            self._move_answer(call, step, outcome)
        else:
            self.use(step, call.branch, call.turn)
        self.stats.hits += 1
        for settled in call.hooks.settled:
            settled(call, outcome, step)
        if call.session.gate.settles or self.observers:
            self._notify(call, outcome, step)

    def _move_answer(self, call: Call, step: Step, outcome: Outcome) -> None:
        """An answer of a model that another branch was given is this asker's from now on.

        That is put on record: a later attempt may not ask in the same order.
        """
        event = self._event(call, Match("new", None, None))
        event["from"] = step.n
        self.write(event, outcome)

    def use(self, step: Step, branch: Branch, turn: Turn) -> None:
        """Use up a recorded step."""
        if step.effect != "pure":
            self.run.take(step)
            if step.effect == "model":
                branch.follow(step, turn)
            else:
                branch.use(step, turn)
        self.replay(step)

    def reserve(self, call: Call, match: Match) -> Step:
        """Put a call that has to wait on record, at its place: a step that has not begun."""
        with self.lock:
            branch, step = call.branch, match.step
            self._move(call, match.look)
            if step is None:
                event = self._event(call, match)
                event["waits"] = True
                self._leave_for(call, match, event)
                self.write(event)
                step = self.run.steps[event["step"]]
            else:
                branch.follow(step, call.turn)
                if match.ahead:
                    self._leave_for(call, match, left := {"event": "left"})
                    self.note(left)
            if call.effect in CHANGES:
                branch.begin(call.turn)
            self.run.replace(step)
            call.waiting = step.n
            return step

    def let_go(self, call: Call) -> None:
        """Have a call wait no longer that will not run: the place that it has is used up."""
        with self.lock:
            waiting, call.waiting = call.waiting, 0
            if waiting and call.effect in CHANGES:
                self.ended(call.branch, None)

    def _leave_for(self, call: Call, match: Match, event: Event) -> None:
        """Have a new effect leave the recorded path; its line names what it leaves behind."""
        if call.effect not in CHANGES or not self._has_recording:
            return
        if match.step is None or match.ahead:
            self.leave(self.run.lineage(call.branch.name, call.branch.pos))
        if match.ahead:
            event["left"] = spans_of(each.n for each in match.ahead)

    def _event(self, call: Call, match: Match) -> Event:
        branch, look = call.branch, match.look
        start = branch.pos if look is None else look.start
        if look is _AT_REST and match.step is not None:
            start = match.step.start
        event = self.step_event(
            call.contract.name, call.effect, call.key, call.arguments, branch, call.turn, call.slot,
            call.place, start, match.step,
        )  # fmt: skip
        if call.waiting:
            event["pos"] = self.run.steps[call.waiting].pos
            if call.effect in CHANGES and branch.running == 1 and not branch.preparing:
                event.pop("during", None)  # what runs there is this call itself
        elif call.effect not in CHANGES and start > branch.pos:
            event["pos"] = start  # a batch is open that its turn did not see begin
        if call.kind == "model":
            event["rank"] = call.rank
        elif self.run.unclear or self.run.continues:
            retries = self._retries(call, match.step)
            if retries:
                event["retries"] = retries
        contract = call.contract
        if contract.version:
            event["version"] = contract.version
        if contract.framework:
            event["framework"] = contract.framework
        if call.place.agent:
            event["agent"] = call.place.agent
        if call.place.call_id:
            event["call_id"] = call.place.call_id
        return event

    def _retries(self, call: Call, step: Step | None) -> int:
        """The step under whose idempotency key a call is made again; 0: it has its own."""
        run = self.run
        if call.key in run.unclear and step is None and call.supplied is None:
            return run.unclear[call.key] if call.contract.idempotent else 0
        if run.continues and step is not None and step.borrowed:  # what another run began
            return step.n if step.status == "unknown" or step.unclear else 0
        return 0

    def _start(self, call: Call, match: Match) -> None:
        """The call's body is to run: its intent is written, or its line is begun."""
        branch, step, changes = call.branch, match.step, call.effect in CHANGES
        self._move(call, match.look)
        if step is not None and not step.taken:
            self.run.replace(step)
            branch.follow(step, call.turn)
        call.event = event = self._event(call, match)
        self._leave_for(call, match, event)
        if call.verdict is not None:
            event["verdict"] = call.verdict.as_data()
        for marks in call.hooks.marks:
            event.update(marks(call) or ())
        if call.supplied is not None:
            self.stats.supplied += 1
            self._supply(call, event, call.supplied)
            return
        self.stats.misses += 1
        if changes:  # a write whose intent is not on record never runs
            self.write(event)
            if not call.waiting:
                branch.begin(call.turn)
            call.is_on_record = True

    def _supply(self, call: Call, event: Event, outcome: Outcome) -> None:
        """A stage knows the outcome: it is recorded in one line, and nothing runs."""
        self.write(event, outcome)
        step = self.run.steps[event["step"]]
        call.recorded = step
        if call.effect in CHANGES:
            if not call.waiting:
                call.branch.begin(call.turn)
            call.branch.end(step)
        self._notify(call, outcome, step)

    # --- a call ends -----------------------------------------------------------------------------

    def end(self, call: Call, outcome: Outcome) -> None:
        """Write how a call ended."""
        with self.lock:
            if self.closed:  # its body outlived the session: its outcome stays unknown
                return
            event = call.event
            changes = event["effect"] in CHANGES
            if changes or call.is_on_record:
                event = {"event": "outcome", "step": event["step"]}
                if self._has_recording and (unasked := self._unasked(call)):
                    event["unasked"] = unasked
            event["duration"] = call.took // 1000
            for settled in call.hooks.settled:
                event.update(settled(call, outcome, None) or ())
            self.write(event, outcome)
            if changes:
                self.ended(call.branch, self.run.steps[call.event["step"]])
            if call.session.gate.settles or self.observers:
                self._notify(call, outcome, None)

    def ended(self, branch: Branch, step: Step | None) -> None:
        """Count a write or a block that has ended; its branch may be waiting for that."""
        branch.end(step)
        if branch.exited and not branch.running and branch.opening is not None:
            self.join(branch)

    def _unasked(self, call: Call) -> list[int]:
        """The effects of an earlier attempt in this body that this one did not ask for."""
        if not self.run.untaken:
            return []
        inner = self.run.steps[call.event["step"]].inner
        return [
            step.n
            for step in self.run.branches.get(inner, ())
            if step.effect in CHANGES and not step.taken
        ]

    def _notify(self, call: Call | None, outcome: Outcome, step: Step | None) -> None:
        """Tell guards and observers how a call ended; what they raise is logged."""
        guards = () if call is None else call.session.gate.settles
        for told in (*guards, *self.observers):
            try:
                told(call, outcome, step)
            except Exception:  # noqa: BLE001 - it is only told
                _log.exception("a guard or an observer failed")

    # --- blocks ----------------------------------------------------------------------------------

    def open_block(
        self, place: Place, kind: str, name: str, after: Iterable[Branch], arguments: Any, key: str
    ) -> Branch:
        """Open a branch: a step of the branch around it, found there or new."""
        if place.around is not None and not place.around.is_on_record:
            self._put_on_record(place.around)
        outer = self.branch(place.branch)
        before = list(after)
        turn, slot = self.turn_of(place, outer)
        begun_by = outer.turn if outer.batch or outer.running else None
        look = outer.look(key, "branch", turn, place.slot)
        outer.move(look, turn)
        step = look.step
        if step is None:
            if not self.live:
                what = f"{kind} {name!r} is not recorded in run {self.run.id}"
                raise self.halt(ReplayMiss(what))
            event = self.step_event(
                name, "branch", key, arguments, outer, turn, slot, place, look.start
            )
            event["kind"] = kind
            if beyond := self._beyond(outer, name, turn, place.slot):
                event["beyond"] = spans_of(each.n for each in beyond)
            if before:
                event["after"] = [each.opening.n for each in before if each.opening is not None]
            self.write(event)
            step, was = self.run.steps[event["step"]], "new"
            outer.begin(turn)
        else:
            is_whole = step.status == "ok" or (
                step.status == "error" and (not self.live or not self.run.is_frontier(step))
            )
            was = "whole" if is_whole else "cut"
            self.run.take(step)
            if is_whole:
                outer.use(step, turn)
            else:
                outer.follow(step, turn)
                outer.begin(turn)
            self.replay(step)
        inner = self.branch(step.inner)
        inner.opening, inner.outer, inner.opened_in, inner.was = step, outer, turn, was
        inner.exited = inner.ok = False
        inner.ends = frozenset().union(*(self._last_worlds(each) for each in before))
        inner.beside = was != "new" or begun_by is turn
        return inner

    @staticmethod
    def _last_worlds(branch: Branch) -> frozenset[str]:
        step = branch.opening
        assert step is not None
        return frozenset([step.result["value"]]) if step.changes else branch.ends

    def last_worlds(self, before: Iterable[Branch]) -> list[str]:
        """Return the last worlds of branches that another one comes after, sorted."""
        return sorted(frozenset[str]().union(*(self._last_worlds(each) for each in before)))

    def leave_block(self, inner: Branch, *, ok: bool) -> None:
        """The block of a branch was left; it is joined once nothing in it runs."""
        with self.lock:
            inner.exited, inner.ok = True, ok
            if not inner.running:
                self.join(inner)

    def join(self, inner: Branch) -> None:
        """Add to the outer branch what a block has done: its last world, or nothing."""
        if self.halted is not None or self.closed:
            return
        step, outer = inner.opening, inner.outer
        assert step is not None
        assert outer is not None
        skipped = [each for each in self.run.inside(inner.name) if each.acts and not each.taken]
        if inner.batch:
            inner.fold()
        status = "ok" if inner.ok else "error"
        world = inner.world.hex() if inner.pos else None
        data = orjson.dumps({"status": status, "value": world})
        differs = step.outcome != data
        if differs and not (status == "error" and skipped):
            self.note({"event": "outcome", "step": step.n}, Outcome(status, data))
            if inner.was == "whole":
                outer.rehash()
        if inner.was != "whole":
            self.ended(outer, step)

    # --- undo ------------------------------------------------------------------------------------

    def rewind(self, reopened: Iterable[int]) -> None:
        """Go on behind what an undo has kept. `reopened`: calls that are made again."""
        with self.lock:
            for n in reopened:
                step = self.run.steps[n]
                walk = self.branches.get(step.inner)
                if walk is None or walk.opening is not step or walk.exited:
                    self.run.release(step)
            for name, walk in self.branches.items():
                walk.rewind(self.run.branches.get(name, ()))
            self._ranks = Counter(
                (step.branch, step.key)
                for steps in self.run.anywhere.values()
                for step in steps
                if step.effect == "model" and step.taken
            )

    # --- a framework's own memory ----------------------------------------------------------------

    def see(self, step: Step) -> bool:
        """Use up a step that nobody asks for, for a framework's memory holds it.

        Returns:
            Whether it stands where its branch is now.
        """
        branch = self.branch(step.branch)
        if step.effect in CHANGES:
            is_over = branch.batch and not branch.running and not branch.is_to_come(branch.pos)
            if step.pos != branch.pos and is_over:
                branch.fold()
            if step.pos != branch.pos or branch.left_at is not None:
                return False
        assert step.outcome is not None
        self.use(step, branch, Turn())
        self.stats.seen += 1
        outcome = Outcome(step.status, step.outcome)
        for settled in self.hooks.settled:
            settled(None, outcome, step)
        self._notify(None, outcome, step)
        return True

    def restart(self, steps: Iterable[Step]) -> None:
        """Have steps be asked for again: a framework starts a piece of work over."""
        with self.lock:
            gone = {step.n for step in steps}
            for n in gone:
                self.run.release(self.run.steps[n])
            kept = [n for a, b in self._replayed for n in range(a, b + 1) if n not in gone]
            self._replayed = spans_of(kept)
            self._restarted += sorted(gone)
            self._has_recording, self._is_fresh = True, False
            for name in {self.run.steps[n].branch for n in gone}:
                old = self.branches.pop(name, None)
                if old is not None:
                    new = self.branch(name)
                    new.running, new.left_at = old.running, old.left_at
                    new.opening, new.outer, new.was = old.opening, old.outer, old.was
                    new.ends, new.opened_in, new.beside = old.ends, old.opened_in, old.beside

    # --- the flow of a call ----------------------------------------------------------------------

    def perform(self, call: Call) -> Flow:
        """Perform a call: decide, run its body if nothing answers it, and record its outcome."""
        try:
            yield from self.admit(call)
            if call.recorded is not None:
                return (yield from self.give_back(call, call.recorded))
            token = here.set(self.inside(call))
            try:
                try:
                    value = yield self.body(call)
                finally:
                    _reset(token)
            except BaseException as error:
                yield from self.failed(call, error)
                raise
            return (yield from self.returned(call, value))
        except Exception as error:
            if call.place.around is not None:  # it says nothing of what that one's body itself did
                call.place.around.keep("nested", error)
            raise

    def admit(self, call: Call) -> Flow:
        """Begin a call; before a body runs, its intent is on record."""
        try:
            while True:
                with self.lock:
                    work = self.begin(call)
                if work is not None:
                    yield from work
                    continue
                if call.recorded is not None or call.effect not in CHANGES:
                    return
                yield from self.settle(is_async=call.is_async)
                for begun in call.hooks.begun:
                    yield from begun(call) or ()
                if all(ready(call) for ready in call.hooks.ready):
                    return
                self._withdraw(call)
                for dropped in call.hooks.dropped:
                    yield from dropped(call) or ()
                call.kept = None  # what stages found out is too old
        except BaseException as error:
            self._cut_off(call)
            if not isinstance(error, GeneratorExit):
                for dropped in call.hooks.dropped:
                    yield from dropped(call) or ()
            raise

    def _withdraw(self, call: Call) -> None:
        """A call may not begin any more: its place is kept, and it is decided anew."""
        with self.lock:
            n = call.event["step"]
            self.note({"event": "outcome", "step": n, "outcome": None})
            call.waiting, call.is_on_record = n, False

    def _cut_off(self, call: Call) -> None:
        """A call was cut off before its body: that is put on record, if it can be."""
        with self.lock:
            self._release(call)
            if not call.is_on_record or call.effect not in CHANGES:
                self.let_go(call)
            elif not self.closed and self.log is not None:
                with contextlib.suppress(Halt):
                    line = {"event": "outcome", "step": call.event["step"], "outcome": None}
                    self.note(line)
                    self.ended(call.branch, None)

    def inside(self, call: Call) -> Place:
        """Return the place of the calls that a body makes, which begins now."""
        call.began = self._ticks()
        branch = "#" + call.event["fingerprint"]
        return _tuple(Place, (self, call.session, branch, None, None, call, "", ""))

    def body(self, call: Call) -> Callable[[], Any]:
        """Return what runs the body, with what stages put around it."""

        def plain() -> Any:
            return call.body(**call.values)

        body: Callable[[], Any] = plain
        if call.is_async and not inspect.iscoroutinefunction(call.body):
            body = self._in_thread(call)
        for around in call.hooks.around:
            body = around(call, body)
        return body

    def _in_thread(self, call: Call) -> Callable[[], Any]:
        """A sync body in an async session; it may outlive the call that waits for it."""

        def run() -> Any:
            try:
                value = call.body(**call.values)
            except BaseException as error:
                if call.cut and isinstance(error, Exception):
                    self._late(call, error=error)
                raise
            if call.cut:
                self._late(call, value)
            return value

        async def thread() -> Any:
            try:
                value = await asyncio.to_thread(run)
            except asyncio.CancelledError:
                call.cut = True
                raise
            return await value if inspect.isawaitable(value) else value

        return thread

    def _late(self, call: Call, value: Any = None, error: Exception | None = None) -> None:
        """Record the end of a write whose caller was cut off, if the session is still open."""
        if call.effect != "write":
            return
        call.took = self._ticks() - call.began
        contract, seal, types = call.contract, self.seal, self.types
        if error is None:
            outcome = success(contract, value, seal, types)
        elif self.is_lost(call, error):
            return
        else:
            unclear = not self.is_clean(call, error)
            outcome = failure(contract, error, seal, types, unclear=unclear)
        with contextlib.suppress(Halt, SessionError):
            self.end(call, outcome)

    def returned(self, call: Call, value: Any, **more: Any) -> Flow:
        """Record that a body returned a value; return it, unless it breaks the contract."""
        call.took = self._ticks() - call.began
        if call.read is not None:
            more.update(answered(call.contract, call.read, value, self.seal))
        outcome = success(call.contract, value, self.seal, self.types, **more)
        if len(outcome.data) >= LARGE:
            outcome = yield from self._kept(call, outcome)
        self.end(call, outcome)
        if call.effect == "write" and not self.is_at_once:
            yield from self.settle(is_async=call.is_async)
        if b'"drift":' in outcome.data or b'"lossy":' in outcome.data:
            recorded = orjson.loads(outcome.data)
            drift = refused(call.contract, recorded)
            if drift is not None:
                raise drift
            warning = warn_of(call.contract, recorded) if "lossy" in recorded else None
            if warning is not None:
                raise warning
        return value

    def failed(self, call: Call, error: BaseException) -> Flow:
        """Record that a body raised, or that nobody knows what it did."""
        call.took = self._ticks() - call.began
        contract, effect = call.contract, call.event["effect"]
        is_halt = isinstance(error, (Halt, SessionHalted))
        if effect == "write" and self.is_lost(call, error):
            with self.lock:
                if not self.closed:
                    why = f": it was cut off by {type(error).__name__}"
                    halt = self.unknown(self.run.steps[call.event["step"]], why)
                    if isinstance(error, Exception) and not is_halt:
                        halt.__cause__ = error
                    self.halt(halt)
        elif not is_halt:
            unclear = (
                effect == "write"
                and isinstance(error, Exception)
                and not self.is_clean(call, error)
            )
            outcome = failure(contract, error, self.seal, self.types, unclear=unclear)
            if not self.closed:
                self.end(call, outcome)
                if effect == "write" and not self.is_at_once:
                    yield from self.settle(is_async=call.is_async)

    def is_lost(self, call: Call, error: BaseException) -> bool:
        """Whether an error says that the answer to a write got lost: its outcome is unknown.

        An error that a guarded call inside of it raised was of that call's own requests.
        """
        if (call.kept or {}).get("nested") is error and self.halted is None:
            return False
        return is_lost(call.contract, error)

    def is_clean(self, call: Call, error: Exception) -> bool:
        """Whether something says that the effect of a failed write did not happen.

        Its contract does, or the state that it changes; or it was refused before anything was sent,
        if no guarded call inside of it has changed anything.
        """
        contract = call.contract
        if isinstance(error, contract.raises) or "clean" in (call.kept or ()):
            return True
        if not isinstance(error, _REFUSALS) and certainty(error, contract.unknown_on) != "not_sent":
            return False
        return not any(
            step.acts and (step.status != "error" or step.unclear or step.happened is not None)
            for step in self.run.inside("#" + call.event["fingerprint"])
        )

    def _kept(self, call: Call, outcome: Outcome) -> Flow:
        """Keep what is large in an outcome beside the log; the outcome refers to it."""
        recorded = orjson.loads(outcome.data)
        for field in ("value", "answer"):
            data = orjson.dumps(recorded.get(field))
            if len(data) < LARGE:
                continue
            digest = sha256(data).hexdigest()
            keep = functools.partial(self.store.swap, "blobs", digest, None, data)
            yield functools.partial(asyncio.to_thread, keep) if call.is_async else keep
            recorded[field] = {
                "$rollcage": "blob", "value": None, "sha256": digest, "size": len(data),
            }  # fmt: skip
        return Outcome(outcome.status, orjson.dumps(recorded), outcome.unclear)

    def give_back(self, call: Call, step: Step) -> Flow:
        """Return what a recorded step gave, or raise its error."""
        fetch: Callable[[str], bytes] = self._fetch
        if call.is_async and _TAG in (step.outcome or b""):
            encoded = step.result.get("value")
            if isinstance(encoded, dict) and encoded.get("$rollcage") == "blob":
                data: bytes = yield lambda: asyncio.to_thread(self._fetch, encoded["sha256"])
                fetch = _fetched(data)
        try:
            return given(call.contract, step, self.types, fetch)
        except NotReplayable as error:
            if step.effect in CHANGES:
                raise self.halt(error) from None
            raise

    def _fetch(self, digest: str) -> bytes:
        data = self.store.get("blobs", digest)
        if data is None or sha256(data).hexdigest() != digest:
            raise StoreError(f"the large value {digest} of run {self.run.id} is gone or damaged")
        return data


def _fetched(data: bytes) -> Callable[[str], bytes]:
    """What gives bytes that were fetched before."""
    return lambda _: data


@contextlib.contextmanager
def at(place: Place) -> Iterator[Place]:
    """Have the calls of a block be made at a place."""
    token = here.set(place)
    try:
        yield place
    finally:
        _reset(token)


def _reset(token: Token[Place | None]) -> None:
    with contextlib.suppress(ValueError):  # in another context: a generator closed from there
        here.reset(token)


def _may_come(sibling: Step, name: str, slot: int | None, turn: Turn) -> bool:
    """Whether a recorded step may still be asked for beside a block that is new at its position."""
    if sibling.effect == "branch" and sibling.name in turn.opens:
        return name not in _all_before(sibling.name, turn.opens)
    return slot is not None and sibling.declared and sibling.slot != slot


def _all_before(name: str, opens: dict[str, frozenset[str]]) -> set[str]:
    """The names that a branch comes after, through any number of others."""
    found: set[str] = set()
    to_see = list(opens.get(name, ()))
    while to_see:
        each = to_see.pop()
        if each not in found:
            found.add(each)
            to_see.extend(opens.get(each, ()))
    return found


def drive(flow: Flow) -> Any:
    """Carry out a flow, waiting in this thread."""
    try:
        request = next(flow)
        while True:
            try:
                answer = request()
                if hasattr(answer, "__await__"):
                    if inspect.iscoroutine(answer):
                        answer.close()
                    raise SessionError("this has to be awaited: use acall, in an async session")
            except BaseException as error:  # noqa: BLE001 - the flow decides; it raises it again
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as stop:
        return stop.value


async def adrive(flow: Flow) -> Any:
    """Carry out a flow, awaiting what has to be waited for."""
    try:
        request = next(flow)
        while True:
            try:
                answer = request()
                if hasattr(answer, "__await__"):
                    answer = await answer
            except BaseException as error:  # noqa: BLE001 - the flow decides; it raises it again
                request = flow.throw(error)
            else:
                request = flow.send(answer)
    except StopIteration as stop:
        return stop.value
