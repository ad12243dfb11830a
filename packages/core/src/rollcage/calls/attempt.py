"""Hold the state of an attempt at a run: the answered calls, and the position in each branch.

All parts of a call's way share this class: `write` puts a line on record and folds it in, `branch`
returns the position. `rollcage.calls.flow` has the flow of a call.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from rollcage.errors import (
    Halt,
    SessionError,
    StoreError,
    TraceUnwritable,
    UnknownOutcome,
)
from rollcage.fingerprint.identity import child_world, fingerprint, world_zero
from rollcage.replay.call import Call, Place
from rollcage.replay.walk import Branch, Turn
from rollcage.trace.run import Event, Outcome, Run, Step
from rollcage.trace.store import store_option
from rollcage.values.answer import tokens_of

if TYPE_CHECKING:
    from rollcage.calls.driver import Flow
    from rollcage.fingerprint.transcript import Question
    from rollcage.session.session import Session
    from rollcage.trace.chain import Chain
    from rollcage.trace.messages import MessagesWritten
    from rollcage.trace.store import Store
    from rollcage.undo.program import Undoing

__all__ = ["Attempt", "Stats"]


class Stats:
    """Count the calls of an attempt, by result.

    A hit was answered by a step of the run, a miss ran. A supplied call is a new step with a known
    outcome, because the effect was made in another run: the step's `once` names the run. A blocked
    call was denied by a guard. A refused call never became a step: its arguments are invalid, or
    its tool does not exist. Tokens are saved by replayed or seen answers of models.
    """

    __slots__ = (
        "blocked", "calls", "hits", "misses", "refused", "seen", "supplied", "tokens_saved",
    )  # fmt: skip

    def __init__(self) -> None:
        self.calls = self.hits = self.misses = self.blocked = self.seen = self.supplied = 0
        self.refused = self.tokens_saved = 0


class Attempt:
    """Hold an attempt at a run, from entering its session until leaving.

    Attributes:
        run: the run.
        log: the log for new lines; None if the attempt may not write.
        live: whether bodies may run; False: recorded steps answer, or the attempt halts.
        dry: whether the attempt must not write: a fork that only reads.
        recorded_in: the store and run id from which the lines were read.
        attested: the head of the log that the store attests since before the attempt.
        halted: the error that halted the attempt; None while it goes on.
        closed: whether the attempt has ended.
        waits: the outside event for which the attempt waits; see `Session.pause`.
        lock: held while the run is read or changed.
        recorded: the number of the last step on record before the attempt.
        asked: by agent and framework id, the calls that were asked for or seen.
        has_recording: whether recorded steps may answer calls.
        is_fresh: whether the attempt is live, writes, and began without recorded steps.
        branches: by name, the position in each branch.
        users: by number of a recorded turn, the turn of this attempt that first used it.
        replayed: ranges of steps used up since the last line.
        restarted: steps asked for again since the last line.
        marks: the fingerprints given to new steps.
        ticks: the monotonic clock (ns).
        ranks: by branch and key, how many model calls the attempt has made.
        process: the id of the owning process: a forked child has no part in the attempt.
        inner: by branch, the open nested sessions.
        undo: the undo in progress; None without one.
    """

    def __init__(
        self,
        session: Session,
        run: Run,
        log: Chain | None,
        *,
        live: bool,
        dry: bool = False,
        recorded_in: tuple[Store, str] | None = None,
        attested: bytes | None = None,
    ) -> None:
        self.run, self.log, self.live, self.dry = run, log, live, dry
        self.store, self.options, self.hooks = session.store, session.options, session.hooks
        self.recorded_in = recorded_in or (self.store, run.id)
        self.attested = attested
        self.seal, self.types, self.tools = session.seal, session.types, session.tools
        self.on_divergence = session.on_divergence
        self.session = session
        self.stats = Stats()
        self.halted: Halt | None = None
        self.closed = False
        self.waits = ""
        self.inner: dict[str, Session] = {}
        self.lock = threading.RLock()
        self.undo: Undoing | None = None
        self.branches: dict[str, Branch] = {}
        self.users: dict[int, Turn] = {}
        self.root_world = world_zero(run.seed)
        self.ticks = self.options.clock.monotonic
        self.process = os.getpid()
        self.is_at_once = log is None or log.log.is_at_once
        self.recorded = run.last
        self.asked: Counter[tuple[str, str]] = Counter()
        self.has_recording = bool(run.steps)
        self.is_fresh = live and not dry and not self.has_recording
        self.replayed: list[list[int]] = []
        self.restarted: list[int] = []
        self._named: dict[tuple[str, object], Turn] = {}
        self.marks: set[str] = set()
        self.ranks: Counter[tuple[str, str]] = Counter()

    @functools.cached_property
    def recorded_by_key(self) -> defaultdict[tuple[str, str], list[Step]]:
        """Return the tool calls on record at first use, by branch and key."""
        found: defaultdict[tuple[str, str], list[Step]] = defaultdict(list)
        for step in self.run.steps.values():
            if step.effect not in ("model", "branch"):
                found[step.branch, step.key].append(step)
        return found

    # --- lines -----------------------------------------------------------------------------------

    def write(
        self, event: Event, outcome: Outcome | None = None, asked: Question | None = None
    ) -> None:
        """Put a line on record and fold it in.

        The line names the steps replayed since the line before. A line that can't be written halts
        the attempt: nothing runs whose line is not on record.

        Args:
            event: the line.
            outcome: the outcome in it, if its step has ended.
            asked: of a model's step, the request, if its messages are known from earlier ones.
        """
        with self.lock:
            self.put(event, outcome, asked)

    def put(
        self, event: Event, outcome: Outcome | None = None, asked: Question | None = None
    ) -> None:
        """Write a line as `write` does, with the lock held by the caller."""
        if self.closed:
            raise SessionError(f"the attempt at run {self.run.id} has ended")
        if self.restarted:
            event["restarted"], self.restarted = self.restarted, []
        if self.replayed:
            event["replayed"], self.replayed = self.replayed, []
        if self.hooks.conceal:
            event, outcome = self._concealed(event, outcome)
        if self.log is not None:
            asks = event.get("effect") == "model"
            if asks:
                event = self._messages.shortened(event, asked)
            try:
                self.log.append(event, None if outcome is None else outcome.data)
            except Halt as error:
                raise self.halt(error) from None
            except StoreError as error:
                raise self.halt(TraceUnwritable(str(error))) from error
            if asks:
                self._messages.written()
        self.run.apply(event, outcome)

    @functools.cached_property
    def _messages(self) -> MessagesWritten:
        """Return the messages sent to models in this attempt: the log has each message once."""
        from rollcage.trace.messages import MessagesWritten  # only models need it

        return MessagesWritten()

    def note(self, event: Event, outcome: Outcome | None = None) -> None:
        """Put a line on record with its time, if it is neither an intent nor an outcome."""
        event["time"] = self.options.clock.wall() // 1000
        self.write(event, outcome)

    def _concealed(self, event: Event, outcome: Outcome | None) -> tuple[Event, Outcome | None]:
        """Return a line and its outcome with all secrets concealed."""
        if outcome is not None:
            event = {**event, "outcome": orjson.loads(outcome.data)}
        try:
            for conceal in self.hooks.conceal:
                event = conceal(event)
        except Exception as error:  # noqa: BLE001 - its text may hold what was to be concealed
            raise self.halt(self.unconcealed(error)) from None
        return event, None

    def unconcealed(self, error: Exception) -> TraceUnwritable:
        """Return the halt for a line that can't be concealed, with the way out."""
        return TraceUnwritable(
            f"run {self.run.id}: a line can't be concealed: {type(error).__name__}. It is not "
            f"written, for it may quote a secret. Mend what conceals secrets in this session; then "
            f"the same program goes on from the lines on record"
        )

    def halt(self, error: Halt) -> Halt:
        """Stop every further call, and return the error to raise."""
        if self.halted is None:
            self.halted = error
        return error

    def unknown(self, step: Step, why: str = "") -> UnknownOutcome:
        """Return the halt for a step of unknown outcome, with the ways out."""
        run, n = self.run.id, step.n
        return UnknownOutcome(
            f"nobody knows whether step {n} ({step.name}) of run {run} happened{why}. Find out, "
            f"and say so: {self.resolves(n)}",
            run,
            n,
        )

    def resolves(self, n: int) -> str:
        """Return the commands that record whether a step happened."""
        command = f"rollcage resolve {self.run.id} {n}{store_option(self.store)}"
        return f"{command} --happened; or, if not: {command} --did-not-happen"

    def settle(self, *, is_async: bool) -> Flow:
        """Wait until every line is on record, sync or async as the session is."""
        if not is_async:
            self.wait()
        elif self.log is not None:
            try:
                yield self.log.settled
            except (Halt, StoreError) as error:
                raise self._unsettled(error) from None

    def wait(self) -> None:
        """Wait until every line is on record."""
        if self.log is not None:
            try:
                self.log.wait()
            except (Halt, StoreError) as error:
                raise self._unsettled(error) from None

    def _unsettled(self, error: Halt | StoreError) -> Halt:
        """Stop every further call, because a line is not on record."""
        if isinstance(error, Halt):
            return self.halt(error)
        halt = TraceUnwritable(str(error))
        halt.__cause__ = error
        return self.halt(halt)

    def fetch(self, digest: str) -> bytes:
        """Return a large value that is kept beside the log.

        Raises:
            StoreError: the value is missing, or was changed.
        """
        data = self.recorded_in[0].get("blobs", digest)
        if data is None or sha256(data).hexdigest() != digest:
            raise StoreError(f"the large value {digest} of run {self.run.id} is gone or damaged")
        return data

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
            found = self.branches[name] = Branch.of(self.run, name, seed, self.users)
        return found

    def turn_of(self, place: Place, branch: Branch) -> tuple[Turn, int]:
        """Return the turn and the slot of an arriving call or block.

        Calls that overlap and state no turn share a turn.
        """
        turn = place.turn
        if turn is None:
            is_alone = not branch.running and not branch.preparing
            turn = Turn() if is_alone or branch.open_turn is None else branch.open_turn
        slot = place.slot
        if slot is None:
            slot = turn.slots
            turn.slots = slot + 1
        return turn, slot

    def turn_named(self, branch: str, name: object) -> Turn:
        """Return the turn to which a framework gave a name in a branch, begun by its first call."""
        with self.lock:
            return self._named.setdefault((branch, name), Turn())

    def number(self, turn: Turn) -> int:
        """Number a turn that has no number: anew, or as the one recorded turn that it follows.

        A turn of this attempt is none of those: a failed call of it was made again by this turn.
        """
        earlier = self.run.last_turns
        if turn.follows and len(turn.follows) == 1:
            (recorded,) = turn.follows
            if earlier and recorded <= earlier[-1] and self.users.get(recorded) is turn:
                turn.n = recorded
                return recorded
        self.run.turns += 1
        turn.n = self.run.turns
        return turn.n

    def begin_step(
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
        """Return the line of a step that begins at a place, with the fingerprint that names it.

        Args:
            name: the name of the tool, model or block.
            effect: its effect.
            key: the key of the call or block.
            arguments: its canonical arguments.
            branch: the branch in which it stands.
            turn: its turn.
            slot: its place in the turn.
            place: the place of the request.
            start: the first position at which it holds.
            again: the recorded step that has its place; None for a new step.
        """
        run = self.run
        if again is not None:  # it is the same step, at its place
            mark, slot, number = again.fingerprint, again.slot, again.turn
            declared = again.declared
        else:
            if not (turn.n or turn.follows):
                branch.unrecorded = turn
            number, declared = turn.n or self.number(turn), place.slot is not None
            key_bytes, world, rank = bytes.fromhex(key), branch.world(), branch.rank(key, turn)
            mark = fingerprint(key_bytes, world, rank, slot).hex()
            count = 0
            while mark in self.marks or mark in run.named:  # a name is given once
                count += 1
                mark = fingerprint(key_bytes, world, rank, slot, count).hex()
            self.marks.add(mark)
        run.last += 1
        event: Event = {
            "event": "step", "step": run.last, "name": name, "effect": effect, "key": key,
            "args": arguments, "branch": branch.name, "start": start, "pos": branch.pos,
            "turn": number, "slot": slot, "fingerprint": mark,
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
        elif run.epochs and (epoch := run.epoch(branch.name)):
            event["epoch"] = epoch
        return event

    def put_on_record(self, call: Call) -> None:
        """Write the intent of a read whose body makes calls, because these stand inside of it."""
        if not call.changes:
            self.write(call.event, asked=call.asked)
        call.is_on_record = True

    def replay(self, step: Step) -> None:
        """Note that a step was used up; the next line names the step."""
        spans = self.replayed
        if spans and spans[-1][1] + 1 == step.n:
            spans[-1][1] = step.n
        else:
            spans.append([step.n, step.n])

    def use(self, step: Step, branch: Branch, turn: Turn) -> None:
        """Use up a recorded step."""
        if step.effect != "pure":
            self.run.take(step)
            if step.effect == "model":
                branch.follow(step, turn)
                if step.outcome is not None and b'"usage":' in step.outcome:
                    self.stats.tokens_saved += sum(tokens_of(step.result.get("usage")))
            else:
                branch.use(step, turn)
        self.replay(step)

    def notify(self, call: Call, outcome: Outcome, step: Step | None) -> None:
        """Notify guards that a call ended."""
        for told in call.session.gate.settles:
            told(call, outcome, step)

    # --- undo ------------------------------------------------------------------------------------

    def rewind(self, reopened: Iterable[Step]) -> None:
        """Go on behind the steps that an undo has kept. `reopened`: ended calls to make again."""
        with self.lock:
            for step in reopened:
                walk = self.branches.get(step.inner)
                if walk is None or walk.opening is not step or walk.exited:
                    self.run.release(step)
            for walk in self.branches.values():
                walk.rewind()
            self.count_ranks()

    def count_ranks(self) -> None:
        """Recount the model calls of the attempt from the used up steps."""
        self.ranks = Counter(
            (step.branch, step.key)
            for steps in self.run.anywhere.values()
            for step in steps
            if step.effect == "model" and step.taken
        )
