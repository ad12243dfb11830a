"""Fold a log into its run: `Run.apply` is the only place where a line changes anything.

A line has the same effect whether it was read or has just been written, so a live run and a run
read from disk are the same object.

**Steps stand at positions.** A branch is a row of positions. A write stands at one position; writes
issued together share a position (a batch). A read holds over an interval of positions, from
`start`, where its turn began, to `until`, where the world moved on. Pure and model steps have no
position. A block (a branch, a transaction, a nested session) is a step of the branch around it. The
calls in a block, or in a tool's body, stand in a branch named for the step's fingerprint.

**A step holds** until a later line ends that: the step was run `again`, `left` behind by another
program, or `undone`. Only steps that hold answer calls.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from sys import intern
from typing import Any, Final, Literal, NamedTuple

import orjson

from rollcage.errors import TraceCorrupt
from rollcage.fingerprint.identity import idempotency_key
from rollcage.trace.chain import checked_lines
from rollcage.trace.lines import BAD, PLAIN, check_line

__all__ = [
    "CHANGES",
    "ENDS",
    "Level",
    "Lineage",
    "Outcome",
    "Run",
    "Step",
    "fold_lines",
    "fold_log",
    "misfit",
    "spans_of",
]

CHANGES: Final = frozenset({"write", "scope", "branch"})
"""Effects that advance the world; a scope and a block do so through the calls inside."""

_fromhex: Final = bytes.fromhex
_tuple: Final = tuple.__new__  # makes a named tuple without a call of Python's
_FIELDS: Final = PLAIN - 1  # of the line of a step that has nothing else, without its hash
_VALUE: Final = b',"outcome":'
_TAIL: Final = -76  # where `,"hash":"…"}` and a newline begin
_ENDED: Final = 5  # fields of an outcome's line that has a duration and nothing else
_BRACE: Final = 125
_ANYWHERE: Final = ("duration", "hash", "outcome", "replayed")
_SOMETIMES: Final = (
    "after", "agent", "answered", "beyond", "call_id", "declared", "epoch", "kind", "once", "rank",
    "retries", "simulated", "version",
)  # fmt: skip
"""Fields that few lines of steps have; `Step` has an attribute of the same name for each."""
_UNDO: Final = ("args", "before", "keyed", "plan", "reversible", "version")
_KNOWN: Final = frozenset({
    "acted", "after", "again", "agent", "answered", "args", "before", "beyond", "branch", "by",
    "call_id", "declared", "duration", "during", "effect", "epoch", "event", "fingerprint",
    "framework", "from", "hash", "key", "keyed", "kind", "left", "name", "once", "outcome", "plan",
    "pos", "rank", "replayed", "restarted", "retries", "reversible", "simulated", "slot", "start",
    "step", "time", "turn", "unasked", "verdict", "version", "waits",
})  # fmt: skip
"""Fields that core itself writes into a step's lines; all others are marks of stages."""

KEY: Final = "rollcage.key"
"""The mark with the idempotency key under which an imported step was begun."""

ENDS: Final = ("ended", "held", "gone", "pruned")
"""The kinds of lines that end an attempt; later kinds repeat the status.

So the last line is enough to know it. `held`: the log is a copy; `gone`: the run goes on in another
store.
"""

Event = dict[str, Any]
Fold = Callable[[Event], None]


class Outcome(NamedTuple):
    """Hold the status of a step that ended, and the recorded bytes.

    Attributes:
        unclear: whether the call failed, and its effect may have happened in part.
        flawed: whether the value breaks the contract, can't be replayed, or was cut off.
    """

    status: str
    data: bytes
    unclear: bool = False
    flawed: bool = False

    @classmethod
    def of(cls, recorded: Event, data: bytes | None = None) -> Outcome:
        """Return the outcome in a line; `data`: its bytes, if they are known."""
        if data is None:
            data = orjson.dumps(recorded)
        if len(recorded) == 2:  # a status, with a value or an error
            return _tuple(cls, (recorded["status"], data, False, False))
        flawed = "drift" in recorded or "lossy" in recorded or "cut" in recorded
        return cls(recorded["status"], data, "unclear" in recorded, flawed)


def _count(event: Event) -> int:
    """Count the fields of a line, except for fields that every step's line may have."""
    return len(event) - sum(map(event.__contains__, _ANYWHERE))


class Step:
    """Hold a recorded call at its place.

    Attributes:
        n: the number in the run.
        version: the declared version of the tool.
        start: the first position at which the step holds; of a write, where its turn began.
        pos: the position at which the step was recorded.
        until: of a read, the last position at which it was recorded to hold.
        joined: of a read, the writes that later attempts added to the batch beside it.
        late: of a step that a later attempt added to a turn, behind other turns of the branch: the
            last turn and the first step so added, and the number of attempts before; else empty.
        slot: the place in the turn; `declared` if the caller named the slot.
        kind: of a block, `branch`, `transaction` or `session`.
        after: of a block, the steps of the branches on which it depends.
        beyond: of a block, ranges of steps that lay ahead when it was opened: they come after it.
        rank: of a model call, how many calls with its key the branch had made before.
        status: `waiting` (the step has a place but has not begun), `unknown`, `ok` or `error`.
        outcome: the recorded bytes, which nothing can change; None without an outcome.
        flawed: whether the value breaks the contract, can't be replayed, or was cut off.
        taken: whether this attempt has used the step up.
        moved_on: of a block in which nothing is done any more, whether it had changed something
            before: the steps after it are still recorded at the next position.
        ended: of a block that ended, the last step that had begun before; else 0.
        passed: of a block in which nothing was done, whether this attempt used up a step that lay
            ahead of the block: so it follows another program, and never asks for the block.
        given: whether this attempt was given the outcome.
        gone: why the step no longer holds: `again`, `left`, `moved` or `undone`; empty if it holds.
        replacement: the step that ran the call again.
        first: of a step that ran a call again, the step that ran it first; else 0.
        back: how well an undo took the step back; empty if no undo tried.
        rolled: whether the effect was taken back with the transaction around it.
        borrowed: whether the step belongs to the run from which this run was forked.
        unclear: whether the call failed, and its effect may have happened in part.
        happened: the outcome found out after the call had failed; its error stays the answer,
            because the program has acted on the error. None without such an outcome.
        retries: the unclear step whose effect and idempotency key this step shares; 0 for none.
        doubt: the step in doubt that this step repeats: so it is in doubt itself unless it
            succeeds; 0 for none.
        claimed: whether a call in preparation will use the step up.
        loose: whether the call around the step ended without asking for it.
        accepted: whether a person has repaired the effect by hand, or accepts it.
        answered: whether a person answered the call in place of the tool.
        simulated: whether a fork supplied the outcome, and no body ran.
        beside: of a call that did not happen, the last step recorded before this was known: the
            steps up to that number were made beside the call.
        compensates: whether the step is part of an undo: a compensating call, or a call in its
            body.
        agent: the name of the agent that made the call, if a framework provides a name.
        time: when the step began (Unix, µs).
        marks: the fields that stages have put on the step's lines; None without any.
        call_id: the framework's id of the call.
        undo: the recorded needs of an undo: `args`, `version`, the states `before` and `after`, the
            `plan`; `told`: a person or a probe said that the call happened.
    """

    __slots__ = (
        "__dict__", "branch", "call_id", "effect", "fingerprint", "flawed", "given", "gone", "key",
        "n", "name", "outcome", "pos", "slot", "start", "status", "taken", "time", "turn",
        "unclear", "until",
    )  # fmt: skip

    # Class attributes: few steps have these, and the others spend no room on them.
    declared = answered = simulated = rolled = borrowed = loose = claimed = accepted = False
    compensates = passed = moved_on = False
    rank = epoch = retries = doubt = replacement = first = beside = ended = 0
    agent = version = back = kind = ""
    after: Sequence[int] = ()
    beyond: Sequence[list[int]] = ()
    joined: Sequence[Step] = ()
    late: tuple[int, ...] = ()
    happened: bytes | None = None
    marks: Event | None = None
    once: list[Any] | None = None
    undo: Event | None = None

    def __init__(self, event: Event) -> None:
        self.n: int = event["step"]
        self.name: str = intern(event["name"])
        self.key: str = event["key"]
        self.effect: str = intern(event["effect"])
        self.branch: str = intern(event["branch"])
        self.start: int = event["start"]
        self.pos: int = event["pos"]
        self.until: int = self.pos
        self.turn: int = event["turn"]
        self.slot: int = event["slot"]
        self.fingerprint: str = event["fingerprint"]
        self.time: int = event["time"]
        self.status, self.gone = "unknown", ""
        self.call_id = ""
        self.outcome: bytes | None = None
        self.taken = self.given = self.flawed = self.unclear = False

    def read_rest(self, event: Event) -> None:
        """Read the fields that most lines do not have."""
        for name in _SOMETIMES:
            if name in event:
                setattr(self, name, event[name])
        if "agent" in event:
            self.agent = intern(self.agent)
        self.mark(event)
        if "waits" in event:
            self.status = "waiting"
        if "before" in event or "plan" in event or "reversible" in event:
            self.undo = {name: event[name] for name in _UNDO if name in event}

    def mark(self, event: Event) -> None:
        """Keep the fields of a line that core itself does not know."""
        if not _KNOWN.issuperset(event):
            marks = event.keys() - _KNOWN
            self.marks = {**(self.marks or {}), **{name: event[name] for name in marks}}

    @property
    def reach(self) -> int:
        """Return the last position at which the step holds in this attempt.

        A read that ran beside a batch does not hold behind a write that joined the batch later,
        unless it was asked for in the turn of that write, before it.
        """
        if not self.joined:
            return self.until
        return min([self.until, *(write.pos for write in self.joined if write.taken)])

    @property
    def inner(self) -> str:
        """Return the branch in which the calls of the body or block stand."""
        return "#" + self.fingerprint

    @property
    def is_open(self) -> bool:
        """Tell whether the step may answer an arriving call."""
        return not self.claimed and not self.is_used

    @property
    def is_used(self) -> bool:
        """Tell whether the step answers no further call of this attempt."""
        return self.taken or self.gone not in ("", "left")

    @property
    def changes(self) -> bool:
        """Tell whether the step advances the world; a block without a change is like a read."""
        if self.effect != "branch":
            return self.effect in CHANGES
        return self.outcome is None or self.moved_on or self.result["value"] is not None

    @property
    def acts(self) -> bool:
        """Tell whether the step changed the world, or may have, on behalf of this run."""
        return (
            self.effect == "write"
            and self.status != "waiting"
            and not self.rolled
            and not (self.borrowed or self.answered or self.simulated)
            and not self.compensates
            and not (self.once and self.once[0] != "mine")
        )

    @property
    def in_doubt(self) -> bool:
        """Tell whether nobody knows if the step's effect happened, in whole or in part."""
        return self.unclear or (self.effect == "write" and self.status == "unknown")

    @property
    def failed_cleanly(self) -> bool:
        """Tell whether the step failed and its own effect is known not to have happened."""
        return self.status == "error" and not self.unclear and self.happened is None

    @property
    def result(self) -> Event:
        """Decode the outcome anew."""
        assert self.outcome is not None
        try:
            decoded: Event = orjson.loads(self.outcome)
        except orjson.JSONDecodeError as error:
            raise TraceCorrupt(f"step {self.n}", 0, f"its outcome is not JSON: {error}") from None
        return decoded

    def link(self) -> bytes:
        """Return the bytes that the step adds to the world: the hash of its name and outcome."""
        outcome = sha256(self.outcome or b"null").digest()
        return sha256(_fromhex(self.fingerprint) + outcome).digest()


Kind = Literal["leaf", "body", "block"]


class Level(NamedTuple):
    """Hold the position of a place in one of the branches around it."""

    branch: str
    pos: int
    kind: Kind  # the place itself; or the step there whose body or block it is in
    turn: int
    step: Step | None


Lineage = list[Level]  # the innermost branch first


def _is_retry(step: Step, first: Step) -> bool:
    """Tell whether a framework made a call again in its slot because the tool raised."""
    return (step.turn, step.slot, step.key) == (first.turn, first.slot, first.key)


class Run:
    """Hold everything known of a run: the fold of its log.

    Attributes:
        steps: every step, by number.
        branches: by name of a branch, the steps that hold there, in the order of the log.
        anywhere: by key, the pure and model steps that hold.
        named: by fingerprint, the last step with that fingerprint: a step shares it with the step
            that ran the call again.
        status: how the last attempt ended; empty while it has not ended.
        waits: the external event for which the last ended attempt waited; see `Session.pause`.
        attempt: the random id of the last attempt.
        undoing: the line of an undo that has begun and not ended.
        backed: the steps that this undo took back, and how well.
        rolled: by branch of a rolled back transaction, its steps.
        copied: the original of a copied run, until an attempt of its own has begun.
        imported: the recorder of an imported run. No session goes on with an imported run, because
            its effects may never have been made. None for a run performed here.
        shut: why no line may be added: an unclaimed copy, a run that goes on in another store, a
            pruned run; None if lines may be added.
        dry: whether the run is a fork that must not write.
        continues: whether the run goes on from the run it was forked from.
        forked: the line that makes the run a fork; None for other runs.
        fixed: the steps whose outcome a fork has set.
        edits: by step, the arguments that a fork has set.
        remade: the steps that do not answer in a fork, because another model or tool is asked.
        unclear: by key, the failed steps whose effects may have happened, or whose outcomes were
            found out later and given to no call yet.
        spent: by step, how often its compensating calls returned without restoring the state.
        asked: the first model call, and its arguments; None before it.
        unanswered: by agent and framework id, the calls halted without an outcome: the number of
            the step, or 0.
    """

    def __init__(self, folds: dict[str, list[Fold]] | None = None) -> None:
        self.folds = folds or {}
        self.id = self.name = self.seed = self.status = self.attempt = self.waits = ""
        self.steps: dict[int, Step] = {}
        self.branches: defaultdict[str, list[Step]] = defaultdict(list)
        self.anywhere: defaultdict[str, list[Step]] = defaultdict(list)
        self.named: dict[str, Step] = {}
        self.last = self.turns = self.attempts = 0
        self.undoing: Event | None = None
        self.backed: dict[int, str] = {}
        self.rolled: dict[str, list[int]] = {}
        self.epochs: defaultdict[str, int] = defaultdict(int)
        self._undone_at: dict[str, int] = {}
        self.unclear: dict[str, list[int]] = {}
        self.spent: Counter[int] = Counter()
        self._left: set[int] = set()  # left behind, but open to their own turn
        self.asked: tuple[Step, Event] | None = None
        self.unanswered: dict[tuple[str, str], int] = {}
        self.copied = self._log_of = ""
        self.shut: Event | None = None
        self.imported: Event | None = None
        self.dry = self.continues = False
        self.forked: Event | None = None
        self.fixed: set[int] = set()
        self.edits: dict[int, Event] = {}
        self.remade: set[int] = set()
        self._homes: list[tuple[int, str]] = []  # of borrowed steps: the last number, and its run
        self._live = False
        self._before = 0  # the last step of earlier attempts
        self._replayed: list[list[int]] = []  # ranges of steps that answered in this attempt
        self.last_turns: list[int] = []  # of each earlier attempt, its last turn
        self._late: dict[tuple[str, int], tuple[int, ...]] = {}  # by branch, and turn that goes on
        self._stretched: defaultdict[tuple[str, int], list[Step]] = defaultdict(list)
        self._untaken: dict[int, Step] | None = None
        self._early: dict[str, list[Step]] = {}  # by branch, blocks opened in front of others

    # --- lines -----------------------------------------------------------------------------------

    def apply(self, event: Event, outcome: Outcome | None = None) -> None:
        """Fold a line in. `outcome`: the line's outcome, if the caller has the bytes already."""
        if "replayed" in event:
            self._replayed += event["replayed"]
            if self._left:
                self._readopt(event["replayed"])
        if "left" in event:
            self._leave(event, event["left"])
        kind = event["event"]
        if kind == "step":
            self._begin(event)
            if outcome is not None or "outcome" in event:
                self._end(event, outcome)
        elif kind == "outcome":
            self._end(event, outcome)
        else:
            change = _CHANGES.get(kind)
            if change is not None:
                change(self, event)
        folds = self.folds.get(kind)
        if folds:
            if outcome is not None:
                event["outcome"] = orjson.loads(outcome.data)
            for fold in folds:
                fold(event)

    def _refuse(self, event: Event) -> None:
        if "halted" in event and "call_id" in event:
            self.unanswered[event.get("agent", ""), event["call_id"]] = 0

    def _moved(self, event: Event) -> None:
        """Move a step to another place of a framework's memory, or to another id of its call.

        A failed block in which nothing was changed goes on at the position of this attempt.
        """
        step = self.steps[event["step"]]
        if "pos" in event:
            step.pos = event["pos"]
            step.until = max(step.until, step.pos + ("during" in event))
            step.status, step.outcome, step.joined = "unknown", None, ()
        step.call_id = event.get("call_id", step.call_id)
        if "memory" in event:
            step.marks = {**(step.marks or {}), "memory": event["memory"]}

    def _run(self, event: Event) -> None:
        self.id = self._log_of = event["run"]
        self.name = event.get("name", "")
        self.copied, self.seed = event.get("copied", ""), event.get("seed", "")
        self.imported = event.get("imported")

    def _attempt(self, event: Event) -> None:
        self._before, self._replayed, self._late = self.last, [], {}
        if self.attempts or self._homes:
            self.last_turns.append(self.turns)
        self.attempts += 1
        if self._homes and self.id == self._log_of:  # not an attempt of the run that was copied
            self.copied = ""
        self.attempt = event["id"]
        self.status = ""

    def _ended(self, event: Event) -> None:
        self.status, self.waits = event["status"], event.get("waits", "")

    def _shut(self, event: Event) -> None:
        self.shut, self.status = event, event["status"]

    def _claimed(self, event: Event) -> None:  # noqa: ARG002 - as all of them
        self.shut = None

    def _forked(self, event: Event) -> None:
        """Borrow the steps so far: they answer calls, and are not taken back by this run."""
        self.id, self.status, self.attempts = event["run"], "", 0
        self.shut = None  # only the other run was shut
        self.dry, self.continues = "dry" in event, "continues" in event
        self.forked = None if self.continues else event
        self._homes.append((self.last, event["from"]))
        for step in self.steps.values():
            step.borrowed = True
        self._undo_ends()  # the undo belongs to the other run, too

    def _changed(self, event: Event) -> None:
        """Set another outcome or other arguments for a step, or drop steps that a fork asks anew.

        The calls around a changed step are made again. A write among these calls was made by
        another run, so in this run the write has not begun.
        """
        if "step" not in event:
            self.remade.update(_in(event["remakes"]))
            return
        step = self.steps[event["step"]]
        for n in self.reopened({step.n}) - {step.n}:
            self._reopen(self.steps[n])
            if self.steps[n].effect == "write":
                self.steps[n].status = "waiting"
        if "outcome" in event:
            outcome = Outcome.of(event["outcome"])
            step.status, step.outcome, step.unclear = outcome.status, outcome.data, False
            step.flawed = outcome.flawed
            step.happened = None
            self._is_clear(step)
            self.fixed.add(step.n)
        else:
            self.edits[step.n] = event["args"]

    def _undo_begins(self, event: Event) -> None:
        """Begin an undo, or go on with an undo that has not ended."""
        self.undoing = event

    def _back(self, event: Event) -> None:
        self.backed[event["step"]] = self.steps[event["step"]].back = event["status"]
        if event.get("spent"):
            self.spent[event["step"]] += 1

    def _undo_ends(self) -> None:
        self.undoing, self.backed = None, {}

    def _accepted(self, event: Event) -> None:
        self.steps[event["step"]].accepted = True

    def _rolled_back(self, event: Event) -> None:
        steps = event["steps"]
        # Steps left behind earlier no longer hold, and say nothing about the block.
        self.rolled[event["branch"]] = [n for n in steps if n not in self._left] or steps
        for n in steps:
            self.steps[n].rolled = True
            self._asked_for(n)
        self._undo_ends()

    def _undone(self, event: Event) -> None:
        places = set(event.get("places", ()))
        gone = [self.steps[n] for n in event["steps"] if n not in places]
        self._drop(gone, "undone")
        for n in event.get("reopens", ()):
            self._reopen(self.steps[n])
        vacated = [self.steps[n] for n in event.get("places", ())]
        for branch in {step.branch for step in (*gone, *vacated)}:
            self.epochs[branch] += 1
            self._undone_at[branch] = self.last
        for step in vacated:
            self._vacate(step)
        if self._homes:
            self._lend_again({step.n for step in gone})
        self._forget_rolled()
        self._undo_ends()

    def _vacate(self, step: Step) -> None:
        """Let an undone step wait at its place, beside batch members that stay."""
        self._is_clear(step)
        step.status, step.outcome, step.undo, step.happened = "waiting", None, None, None
        step.taken = step.given = step.unclear = step.rolled = step.accepted = False
        step.retries = step.doubt = 0
        step.epoch = self.epoch(step.branch)

    def _lend_again(self, gone: set[int]) -> None:
        """Restore the borrowed steps whose repetitions this run has taken back."""
        for step in self.steps.values():
            if step.borrowed and step.gone == "again" and step.replacement in gone:
                step.gone, step.replacement = "", 0
                step.taken = self._live
                step.epoch = self.epoch(step.branch)  # new epoch, new key
                self.named[step.fingerprint] = step
                anywhere = step.effect in ("pure", "model")
                among = self.anywhere[step.key] if anywhere else self.branches[step.branch]
                among.append(step)
                among.sort(key=lambda each: each.n)

    def _reopen(self, step: Step) -> None:
        """Let a body be entered again; a failure stays a failure, now at the frontier."""
        if step.status == "ok":
            step.status, step.outcome = "unknown", None

    def _forget_rolled(self) -> None:
        self.rolled = {
            branch: steps
            for branch, steps in self.rolled.items()
            if not any(self.steps[n].gone for n in steps)
        }

    def _leave(self, event: Event, spans: list[list[int]]) -> None:
        """Leave recorded steps behind; a sibling, or a read, may still be asked for."""
        place = event.get("branch"), event.get("pos")
        gone = [self.steps[n] for first, last in spans for n in range(first, last + 1)]
        self._drop(gone, "left")
        for step in gone:
            step.taken = not (step.effect == "read" or (step.branch, step.pos) == place)
        self._left.update(step.n for step in gone)
        self._forget_rolled()

    def _readopt(self, spans: list[list[int]]) -> None:
        """Restore steps that the turn which had left them asked for after all."""
        for first, last in spans:
            for n in range(first, last + 1):
                if n in self._left:
                    self._adopt(self.steps[n])
                    self.steps[n].taken = False

    def _adopt(self, step: Step) -> None:
        step.gone = ""
        self._left.discard(step.n)
        self.branches[step.branch].append(step)

    def _begin(self, event: Event) -> None:
        step = Step(event)
        if len(event) > _FIELDS + ("hash" in event) and _count(event) > _FIELDS:
            step.read_rest(event)
            self._begin_again(step, event)
        if step.branch:
            owner = self.owner(step.branch)
            if step.branch[0] == "-" or (owner is not None and owner.compensates):
                step.compensates = True
        n, branch = step.n, self.branches[step.branch]
        step.taken = self._live and step.status != "waiting"
        if n > self.last:  # noqa: PLR1730 - for each line; `max` is a call
            self.last = n
        if step.turn > self.turns:
            self.turns = step.turn
        elif self.last_turns and step.turn <= self.last_turns[-1] and "again" not in event:
            is_behind = bool(branch) and (branch[-1].late or (branch[-1].turn,))[0] > step.turn
            late = (self.turns, n, len(self.last_turns)) if is_behind else ()
            step.late = self._late.setdefault((step.branch, step.turn), late)
        self.steps[n] = self.named[step.fingerprint] = step
        if step.effect in ("pure", "model"):
            self.anywhere[step.key].append(step)
            if self.asked is None and step.effect == "model":
                self.asked = step, event.get("args") or {}
            return
        if self._before and step.effect in CHANGES and "again" not in event:
            self._join_reads(step)
        if branch and (branch[-1].turn == step.turn or "during" in event):
            self._place(step, event, branch)
        elif "during" in event:
            self._stretch(step)
        branch.append(step)

    def _begin_again(self, step: Step, event: Event) -> None:
        """Apply the effects of a step's line on other steps."""
        again = event.get("again")
        if again is not None:
            before = self.steps[again]
            before.replacement, step.late = step.n, before.late
            step.first = before.first or again
            key = None if before.marks is None else before.marks.get(KEY)
            if key is not None and step.epoch == before.epoch:
                step.marks = {**(step.marks or {}), KEY: key}
            if before.retries:
                step.retries = step.retries or before.retries
            if "waits" not in event:
                self._takes_over(step, before if before.in_doubt else self.steps.get(before.doubt))
            self._drop([before], "again")
        if "from" in event:
            self._drop([self.steps[event["from"]]], "moved")
        if "beyond" in event:
            self._early.setdefault(step.branch, []).append(step)
        if step.call_id and step.effect in CHANGES:
            self.unanswered[step.agent, step.call_id] = step.n
        if step.once is not None and step.once[0] == self.id:
            self._clear(self.steps[step.once[1]])  # its outcome is given
        elif step.retries and again is None and "waits" not in event:
            self._takes_over(step, self.steps[step.retries])

    def _stretch(self, step: Step) -> None:
        """Let a step hold one position longer."""
        if step.effect in ("read", "branch"):
            self._stretched[step.branch, step.until].append(step)
        step.until += 1

    def _join_reads(self, write: Step) -> None:
        """Note a new write at the reads of earlier attempts that ran beside its batch.

        These reads hold behind the recorded writes of the batch, but not behind the new write:
        except for a read of its turn that this attempt asked for before it, which is concurrent.
        """
        for step in self._stretched.get((write.branch, write.pos), ()):
            if step.n <= self._before and not (step.turn == write.turn and self._is_asked(step.n)):
                step.joined = (*step.joined, write)

    def _place(self, step: Step, event: Event, branch: list[Step]) -> None:
        """Place a step; the reads of a turn are concurrent with its writes and running calls.

        A recorded read that the attempt has not asked for stays as it is: behind a new write of its
        turn, the attempt does not find it.
        """
        changes, pos = step.effect in CHANGES, step.pos
        for other in reversed(branch):
            if other.turn != step.turn:
                break
            stays = changes and other.effect in ("read", "branch") and other.until == pos
            if stays and self._is_asked(other.n):
                self._stretch(other)
            reads = step.effect in ("read", "branch") and other.effect in CHANGES
            if reads and other.pos == step.until:
                self._stretch(step)
        if "during" in event:
            if step.until <= pos:
                self._stretch(step)
            for other in reversed(branch):
                if other.pos < pos:
                    break
                is_open = other.effect == "branch" and other.status == "unknown"
                if is_open and other.pos == other.until == pos:
                    self._stretch(other)

    def _is_asked(self, n: int) -> bool:
        """Tell whether the attempt made a step, or was answered with it."""
        return n > self._before or any(first <= n <= last for first, last in self._replayed)

    def _end(self, event: Event, outcome: Outcome | None) -> None:
        step = self.steps[event["step"]]
        if outcome is None and event["outcome"] is not None:
            outcome = Outcome.of(event["outcome"])
        if step.call_id and outcome is not None:
            self.unanswered.pop((step.agent, step.call_id), None)
        known = 2 if event["event"] == "outcome" else _FIELDS
        if len(event) > known + ("duration" in event) + ("hash" in event) + ("outcome" in event):
            self._end_rarely(step, event, outcome)
        if step.unclear:
            step.unclear = False
            if "acted" in event or not self.is_frontier(step):  # the error stays the answer
                if outcome is None:
                    self._is_clear(step)
                else:  # the next call with this key gets the outcome
                    step.happened = outcome.data
                return
            self._is_clear(step)
        if outcome is None:  # did not happen: the place is kept
            if step.doubt and "by" not in event:  # it did not begin, so the other stays in doubt
                before = self.steps[step.doubt]
                if before.replacement == step.n and before.status == "unknown":
                    return  # in its place, this step is in doubt instead
                self._is_unclear(before)
            step.status, step.outcome, step.beside = "waiting", None, next(reversed(self.steps))
            return
        status, data, unclear, flawed = outcome
        if step.effect == "branch":
            step.ended = self.last
            step.moved_on = step.moved_on or (step.outcome is not None and step.changes)
        step.outcome = bytes(memoryview(data))  # orjson's have 4 KiB of room behind them
        step.status, step.flawed = status, flawed
        if unclear:
            self._is_unclear(step)

    def _end_rarely(self, step: Step, event: Event, outcome: Outcome | None) -> None:
        """Fold in the fields that few lines with an outcome have."""
        if event["event"] == "outcome":
            step.mark(event)
        for n in event.get("unasked", ()):
            self.steps[n].loose = True
        if "plan" in event or "after" in event:
            step.undo = dict(step.undo or {})
            step.undo.update((name, event[name]) for name in ("plan", "after") if name in event)
        if "by" in event and outcome is not None:
            step.undo = {**(step.undo or {}), "told": True}

    def _is_unclear(self, step: Step) -> None:
        step.unclear = True
        self.unclear.setdefault(step.key, []).append(step.n)

    def _is_clear(self, step: Step) -> None:
        among = self.unclear.get(step.key)
        if among is not None and step.n in among:
            among.remove(step.n)
            if not among:
                del self.unclear[step.key]

    def _clear(self, step: Step) -> None:
        step.unclear = False
        self._is_clear(step)

    def _takes_over(self, step: Step, before: Step | None) -> None:
        """Let a step that begins be in doubt instead of the one that it repeats."""
        if before is not None:
            step.doubt = before.n
            self._clear(before)

    def unclear_step(self, key: str) -> Step | None:
        """Return the first unclear step with a key; None without one."""
        among = self.unclear.get(key)
        return None if among is None else self.steps[among[0]]

    def _drop(self, steps: Iterable[Step], why: str) -> None:
        """Stop steps from answering calls."""
        by_place: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        for step in steps:
            step.gone = step.gone or why
            step.taken = True
            self._asked_for(step.n)
            if why == "undone":
                self._is_clear(step)
                if step.n in self._left:  # already left behind
                    step.gone = why
                    self._left.discard(step.n)
            anywhere = step.effect in ("pure", "model")
            by_place["" if anywhere else "in", step.key if anywhere else step.branch].add(step.n)
        for (where, name), numbers in by_place.items():
            among = self.branches[name] if where else self.anywhere[name]
            if len(numbers) == 1:
                for at in range(len(among) - 1, -1, -1):
                    if among[at].n in numbers:
                        del among[at]
                        break
            else:
                among[:] = [each for each in among if each.n not in numbers]

    # --- what this attempt has asked for ---------------------------------------------------------

    def begin_attempt(self) -> None:
        """Count everything that follows as part of the current attempt."""
        self._live = True

    def take(self, step: Step) -> None:
        """Use up a step as the answer to a call."""
        step.taken = step.given = True
        if self._early:
            self._pass_by(step)
        if step.loose:
            step.loose = False
        if step.gone == "left":
            self._adopt(step)
        if self._untaken is not None:
            self._untaken.pop(step.n, None)

    def replace(self, step: Step) -> None:
        """Use up a step whose call runs again."""
        step.taken = True
        if self._early:
            self._pass_by(step)
        self._asked_for(step.n)

    def _pass_by(self, step: Step) -> None:
        """Pass the empty blocks that another program opened in front of a recorded step."""
        early = self._early.get(step.branch)
        if not early or not step.changes:
            return
        still = [each for each in early if not each.is_used and each.status == "unknown"]
        for block in still:
            lay_ahead = any(first <= step.n <= last for first, last in block.beyond)
            inner = [*self.inside(block.inner)]
            if lay_ahead and not any(each.changes and each.effect != "branch" for each in inner):
                for each in (block, *inner):
                    each.taken = each.passed = True
                    self._asked_for(each.n)
        self._early[step.branch] = [each for each in still if not each.passed]

    def release(self, step: Step) -> None:
        """Let a step be asked for again."""
        step.taken = step.given = False
        if self._untaken is not None and not step.gone and not step.compensates:
            self._untaken[step.n] = step

    def _asked_for(self, n: int) -> None:
        if self._untaken is not None:
            self._untaken.pop(n, None)

    @property
    def untaken(self) -> dict[int, Step]:
        """Return the steps that hold and that this attempt has not asked for."""
        if self._untaken is None:
            self._untaken = {
                step.n: step
                for steps in self.branches.values()
                for step in steps
                if not step.taken and not step.rolled and not step.compensates
            }
        return self._untaken

    def is_consumed(self, step: Step) -> bool:
        """Tell whether a call around the step was answered: nothing will ask for the step."""
        while not step.loose:
            owner = self.owner(step.branch)
            if owner is None:
                return False
            if owner.given and owner.effect != "branch":
                return True
            step = owner
        return False

    def unasked(self) -> tuple[int, ...]:
        """Return the calls that this attempt has not asked for; see `Session.unasked`."""
        models = (
            step
            for steps in self.anywhere.values()
            for step in steps
            if step.effect == "model" and not step.taken
        )
        found = (
            step
            for step in (*self.untaken.values(), *models)
            if step.effect != "branch" and step.status != "waiting" and not self.is_consumed(step)
        )
        return tuple(sorted(step.n for step in found if not self._within_unasked(step)))

    def _within_unasked(self, step: Step) -> bool:
        """Tell whether a step ran in the body of a call that this attempt has not asked for."""
        owner = self.owner(step.branch)
        while owner is not None and (owner.effect == "branch" or owner.taken):
            owner = self.owner(owner.branch)
        return owner is not None

    # --- the order of steps ----------------------------------------------------------------------

    def owner(self, branch: str) -> Step | None:
        """Return the step whose body or block a branch is; of several steps, the last to run."""
        if branch[:1] != "#":
            return None
        return self.named.get(branch[1:])

    def lineage(self, branch: str, pos: int, turn: int = 0, step: Step | None = None) -> Lineage:
        """Return the levels of a place in all branches around it, the innermost first."""
        levels = [Level(branch, pos, "leaf", turn, step)]
        while (owner := self.owner(branch)) is not None:
            kind: Kind = "block" if owner.effect == "branch" else "body"
            branch = owner.branch
            levels.append(Level(branch, owner.pos, kind, owner.turn, owner))
        return levels

    def lineage_of(self, step: Step) -> Lineage:
        """Return the levels of a step."""
        pos = step.until if step.effect == "read" else step.pos
        return self.lineage(step.branch, pos, step.turn, step)

    def is_undoing(self, branch: str) -> bool:
        """Tell whether a branch belongs to an undo: compensating calls, or their bodies."""
        owner = self.owner(branch)
        return branch[:1] == "-" or (owner is not None and owner.compensates)

    def comes_after(self, step: Step, block: Step) -> bool:
        """Tell whether a block was opened to come after another, through any number of others."""
        to_see, seen = list(step.after), set[int]()
        while to_see:
            n = to_see.pop()
            if n in seen:
                continue
            seen.add(n)
            before = self.steps[n]
            while before.replacement:
                before = self.steps[before.replacement]
            if before is block:
                return True
            to_see.extend(before.after)
        return False

    def within(self, step: Step, branch: str) -> bool:
        """Tell whether a step stands in a branch, or in a branch inside it."""
        at: Step | None = step
        while at is not None:
            if at.branch == branch:
                return True
            at = self.owner(at.branch)
        return False

    def inside(self, branch: str) -> Iterator[Step]:
        """Yield the steps that hold in a branch and in the branches inside it."""
        for step in self.branches.get(branch, ()):
            yield step
            yield from self.inside(step.inner)

    def transaction(self, step: Step, branch: str) -> Step | None:
        """Return a transaction that may yet take a step back, and that a branch is no part of."""
        around = {level.branch for level in self.lineage(branch, 0)}
        for level in self.lineage_of(step)[1:]:
            block = level.step
            assert block is not None
            if block.kind == "transaction" and block.outcome is None and block.inner not in around:
                return block
        return None

    def done_in(self, branch: str) -> Iterator[Step]:
        """Yield the steps covered by a branch's rollback: steps that hold or were left behind."""
        left = (self.steps[n] for n in self._left if self.within(self.steps[n], branch))
        for step in (*self.inside(branch), *left):
            if not step.compensates:
                yield step

    def ahead(
        self,
        place: Lineage,
        concurrent: Callable[[Level, Level, Step], bool],
        *,
        behind: bool = True,
    ) -> list[Step]:
        """The steps that a new effect at a place would leave behind.

        They hold, this attempt has not asked for them, and they are not concurrent with the place:
        at the innermost branch that both are in, they stand at another position, or `concurrent`
        says no of the two levels there (the place's, the step's) and of the step.

        Args:
            place: where the effect would stand.
            concurrent: decides on two levels at one position.
            behind: whether steps at earlier positions count.
        """
        at = {level.branch: level for level in place}
        found: list[Step] = []
        untaken = self.untaken
        for step in list(untaken.values()):
            if self.is_consumed(step):
                del untaken[step.n]
                continue
            lineage = self.lineage_of(step)
            if any(each.step is not None and each.step.claimed for each in lineage):
                continue
            level = next((each for each in lineage if each.branch in at), None)
            if level is None:
                continue
            here = at[level.branch]
            if (
                step.effect == "read"
                and level.kind == "leaf"
                and step.start <= here.pos < level.pos
            ):
                level = level._replace(pos=here.pos)  # it holds there as well
            if level.pos < here.pos:
                is_past_read = step.effect == "read" and level.kind == here.kind == "leaf"
                if is_past_read or not behind:
                    continue
            elif level.pos == here.pos and concurrent(here, level, step):
                continue
            found.append(step)
        return found

    def goes_on(self, block: Step) -> bool:
        """Tell whether a failed block goes on: earlier attempts did nothing after it."""
        return self.is_frontier(block, self._before)

    def is_frontier(self, step: Step, last: int | None = None) -> bool:
        """Tell whether nothing came after a step: a failure there runs again.

        Args:
            step: the step.
            last: the number of the last step that counts; None: all steps.
        """
        around = self.owner(step.branch)
        is_ended_block = (
            around is not None and around.effect == "branch" and around.status != "unknown"
        )
        if around is not None and is_ended_block and not self.is_frontier(around, last):
            return False
        among = self.branches[step.branch]
        if last is not None:
            among = [other for other in among if other.n <= last]
        if step.changes:
            return not any(
                step.n in other.after
                or (other.start if other.effect == "read" else other.pos) > step.pos
                or (other.n > step.n and _is_retry(other, step))
                for other in among
                if other is not step
            )
        since = step.ended or step.n
        undone_at = self._last_undone(step.branch) if self.epochs else 0
        for other in reversed(among):
            if other.n > undone_at >= step.n:  # made anew: what the failure led to was undone
                continue
            if other.n > since:
                if other.first and other.first < step.n:  # it came before
                    continue
                if other.turn != step.turn and other.until >= step.pos:
                    return False
            elif other.effect in CHANGES:  # a read is on record at its end, behind later steps
                break
        return True

    def acted_upon(self, block: Step) -> bool:
        """Tell whether anything came after a rolled back block."""
        return not self.is_frontier(block)

    def has_beyond(self, level: Level) -> bool:
        """Tell whether borrowed steps beyond a place are recorded and unused by this attempt."""
        return bool(self._homes) and any(
            step.borrowed and not step.taken and step.until > level.pos
            for step in self.branches[level.branch]
        )

    def held(self) -> Iterator[Step]:
        """Yield the steps that hold or were left behind, without steps of undos, in no order."""
        left = [self.steps[n] for n in self._left]
        for steps in (*self.branches.values(), *self.anywhere.values(), left):
            for step in steps:
                if not step.compensates:
                    yield step

    def body(self, step: Step) -> list[Step]:
        """Return the steps of a body or block that still hold."""
        return list(self.inside(step.inner))

    def reopened(self, gone: set[int]) -> set[int]:
        """Return the calls that can't be answered once the steps in `gone` do not hold.

        These are the calls around such a step, and the steps in `gone` that keep a part of their
        body.
        """
        found = {n for n in gone if any(s.n not in gone for s in self.body(self.steps[n]))}
        for n in gone:
            if self.steps[n].loose or n in self._left:  # the call around it went on without it
                continue
            owner = self.owner(self.steps[n].branch)
            while owner is not None:
                if owner.n not in gone and not owner.gone:
                    found.add(owner.n)
                owner = self.owner(owner.branch)
        return found

    # --- names -----------------------------------------------------------------------------------

    def epoch(self, branch: str) -> int:
        """Return how often a branch, or a branch around it, was undone."""
        return sum(self.epochs.get(each, 0) for each in self._around(branch)) if self.epochs else 0

    def _last_undone(self, branch: str) -> int:
        """Return the step behind which a branch, or one around it, was undone last; 0 for none."""
        return max(self._undone_at.get(each, 0) for each in self._around(branch))

    def _around(self, branch: str) -> Iterator[str]:
        """Yield a branch and the branches around it."""
        yield branch
        while (owner := self.owner(branch)) is not None:
            branch = owner.branch
            yield branch

    @property
    def source(self) -> str:
        """Return the run from which this run was copied; empty without one."""
        return self._homes[-1][1] if self._homes else ""

    def home(self, step: Step) -> str:
        """Return the run that performed a step: this run, or a run on which it builds."""
        if not step.borrowed:
            return self.id
        return next(run for last, run in self._homes if step.n <= last)

    def idempotency_key(self, step: Step) -> str:
        """Return the name of a step's effect: equal in all attempts, new after an undo."""
        while step.retries:
            step = self.steps[step.retries]
        if step.marks is not None and KEY in step.marks:
            return str(step.marks[KEY])
        home = self.home(step)
        branch = f"{step.branch}|{step.epoch}" if step.epoch else step.branch
        return idempotency_key(home, branch, step.fingerprint)


_CHANGES: Final[dict[str, Callable[[Run, Event], None]]] = {
    "run": Run._run,  # noqa: SLF001 - its own table
    "attempt": Run._attempt,  # noqa: SLF001 - its own table
    "ended": Run._ended,  # noqa: SLF001 - its own table
    "held": Run._shut,  # noqa: SLF001 - its own table
    "gone": Run._shut,  # noqa: SLF001 - its own table
    "pruned": Run._shut,  # noqa: SLF001 - its own table
    "claimed": Run._claimed,  # noqa: SLF001 - its own table
    "refused": Run._refuse,  # noqa: SLF001 - its own table
    "forked": Run._forked,  # noqa: SLF001 - its own table
    "changed": Run._changed,  # noqa: SLF001 - its own table
    "moved": Run._moved,  # noqa: SLF001 - its own table
    "undoing": Run._undo_begins,  # noqa: SLF001 - its own table
    "back": Run._back,  # noqa: SLF001 - its own table
    "accepted": Run._accepted,  # noqa: SLF001 - its own table
    "rolled": Run._rolled_back,  # noqa: SLF001 - its own table
    "undone": Run._undone,  # noqa: SLF001 - its own table
}


def fold_lines(events: Iterable[Event], where: str, folds: dict[str, list[Fold]]) -> Run:
    """Fold the events of a log into a run.

    Raises:
        TraceCorrupt: a line does not belong to a run, or stands at the wrong place.
    """
    run = Run(folds)
    number = 0
    try:
        for number, event in enumerate(events, 1):  # noqa: B007 - the error names it
            check_line(run, event)
            run.apply(event)
    except BAD as error:
        raise misfit(where, number, error) from None
    return run


def misfit(where: str, number: int, error: Exception) -> TraceCorrupt:
    """Return the error for a line that could not be folded in."""
    return TraceCorrupt(
        where, number, f"the line does not fit a run: {type(error).__name__}: {error}"
    )


def _in(spans: Iterable[Iterable[int]]) -> Iterator[int]:
    """Yield the numbers in ranges."""
    for first, last in spans:
        yield from range(first, last + 1)


def spans_of(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers as ranges: `[[first, last], …]`."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and spans[-1][1] + 1 == n:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return spans


def fold_log(lines: Iterable[bytes], where: str, folds: dict[str, list[Fold]]) -> Run:
    """Return the run folded from the lines of a log; no line is kept.

    An outcome is taken as the recorded bytes if it can be cut out of its line: only numbers stand
    before it then, and the hash behind it.

    Args:
        lines: all lines, from the first.
        where: the name of the log in errors.
        folds: by kind of line, functions that receive each line.

    Raises:
        TraceCorrupt: the lines were changed or damaged, or belong to no run.
        StoreError: the log has another format, or can't be read.
    """
    run = Run(folds)
    apply = run.apply
    number = 0
    with _no_garbage():
        try:
            for event, line in checked_lines(lines, where):
                number += 1
                check_line(run, event)
                outcome: Outcome | None = None
                if (
                    len(event) == _ENDED
                    and event["event"] == "outcome"
                    and "duration" in event
                    and line[_TAIL - 1] == _BRACE
                ):
                    data = line[line.find(_VALUE) + 11 : _TAIL]
                    outcome = Outcome.of(event["outcome"], data)
                apply(event, outcome)
        except BAD as error:
            raise misfit(where, number, error) from None
    return run


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Keep the garbage collector from scanning a growing run again and again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
