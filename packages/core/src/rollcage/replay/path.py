"""The replay rule: which recorded step may stand for a call (DESIGN §3).

A recorded run is a partial order, kept here as *positions*: position n of a branch is the world
after n batches of writes. Every step holds over an interval of positions:

* a write from where its turn started up to its own batch, once;
* a read from where its turn started up to the end of the batch it was concurrent with, once;
* a pure step everywhere, any number of times; a model step everywhere, once, first in first out.

`Path` is one branch's recorded order with what of it has been taken; `recording.load` makes the
paths of a whole lineage of traces. Nothing here does I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from hashlib import sha256
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

__all__ = ["DECIDED", "LAZY", "Entry", "LazyFields", "Path", "Status", "Taken"]

Status = Literal["ok", "error", "unknown", "not_started", "blocked"]
UNKNOWN: Final[dict[str, Any]] = {"status": "unknown"}
WRITES: Final = ("write", "scope")
UNKNOWN_DIGEST: Final = sha256(b'{"status":"unknown"}').hexdigest()


DECIDED: Final = ("approval", "approved_by", "rejected_by", "asked", "responded", "simulated")
"""What an event of a step says of its approval; or, in a fork, of what replaced its tool."""


LAZY: Final = (
    "name", "version", "args", "fingerprint", "world", "outcome", "digest", "resolved", "duration",
    "flaw", "undo", "labels", "agent", "call_id", "conversation", "checkpoint",
)  # fmt: skip
"""The fields of a step that finding it does not take: see `saved`."""


class LazyFields(Protocol):
    """Where the `LAZY` fields of steps are, until one of them is asked for."""

    def fill(self, entry: Entry, row: int) -> None:
        """Set those of a step."""
        ...


class Entry:
    """A recorded step, as a candidate. `run`, `step` and `turn` say where it first ran.

    Reading the traces of a lineage makes it, and loading that says what of it holds; from then on
    it stays as it is. What a session makes of it stands in `Taken`.
    """

    __slots__ = (  # noqa: RUF023 - in order, but for what is no field
        "row", "rows",
        "abandoned", "accepted", "agent", "args", "branch", "call_id", "checkpoint", "conversation",
        "decided", "digest", "duration", "effect", "end", "era", "fingerprint", "flaw", "frontier",
        "generation", "group", "joined", "key", "kind", "labels", "name", "number", "outcome",
        "past", "position", "probed", "resolved", "run", "seat", "since", "slot", "status", "step",
        "turn", "undo", "undoes", "undone", "version", "world",
    )  # fmt: skip

    run: str
    step: int
    turn: int
    group: int  # its turn, unique over the lineage
    era: int  # the turn in whose place it ran, where it was run or replayed again
    seat: int  # its slot in that turn
    slot: int
    branch: str
    agent: str
    call_id: str
    conversation: str  # of the framework's own memory, and the place in it
    checkpoint: str
    kind: str
    name: str
    version: str
    args: dict[str, Any]
    effect: str
    key: str
    fingerprint: str
    world: str
    position: int
    since: int
    end: int
    joined: bool
    status: Status
    outcome: dict[str, Any]  # for a blocked step its verdict
    digest: str
    resolved: str | None  # of the outcome that was resolved later; `digest` stays its link's
    duration: int  # µs
    flaw: str | None  # why its value can't be given back
    frontier: bool  # no later tool call in its branch, but for other slots of its turn
    abandoned: bool  # a later run of the lineage left the path before it: an orphan, no candidate
    accepted: (
        tuple[str, int] | None
    )  # the write (run, step) that was allowed to leave it behind, for good
    number: int  # its own in the trace where it was read last
    generation: int  # which trace of the lineage that is, from 0 for the oldest
    undo: dict[str, Any] | None  # what stands of its undo: before, plan, after, reversible
    undoes: tuple[str, int] | None  # the step (run, step) that it was made to undo
    undone: bool  # it was undone: no candidate, no effect
    decided: dict[str, Any] | None  # an approver's decision on it: see `DECIDED`
    labels: tuple[str, ...]  # of its result
    past: bool  # its branch was undone whole, and begun anew since
    probed: bool  # its outcome is a probe result
    rows: LazyFields  # only where its `LAZY` fields are not set; and which they are there
    row: int

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """A field that is not set: decode those that were left for later."""
            if name not in LAZY:
                raise AttributeError(name)
            self.rows.fill(self, self.row)
            return getattr(self, name)

    @property
    def has_effect(self) -> bool:
        """Whether it changed the world, or may have."""
        changes = self.effect in WRITES and self.status in ("ok", "unknown")
        return changes and not self.undone

    @property
    def is_settled(self) -> bool:
        """Whether its body has ended."""
        return self.status in ("ok", "error")

    def is_edit_of(self, key: str) -> bool:
        """Whether it is what an approver made of a call of this key."""
        return self.decided is not None and self.decided.get("asked") == key != self.key

    @property
    def half_done(self) -> bool:
        """Whether it failed, and may have changed something that is on record."""
        return self.status == "error" and self.undo is not None and not self.undone


class Taken:
    """What a session has made of the recorded steps.

    Attributes:
        used: those that answered a call, or were left behind: they answer no other one.
        undone: those whose effects it has undone.
    """

    __slots__ = ("undone", "used")

    def __init__(self) -> None:
        self.used: set[Entry] = set()
        self.undone: set[Entry] = set()


class Path:
    """What is recorded of one branch, and what of it is still to be taken.

    If the whole branch `was_undone` and the run has gone on since, its steps are given back as they
    were recorded, although none of their effects is there any more; no new call is made in it.
    """

    def __init__(
        self, entries: list[Entry], taken: Taken, *, strict: bool, was_undone: bool = False
    ) -> None:
        self.entries = entries
        self.taken = taken
        self._used = taken.used
        self.was_undone = was_undone
        self.position = 0
        self.ahead = 0  # recorded effects not taken yet
        self.length = 0  # positions that hold writes
        self._strict = strict  # chain="all": every tool step advances the world
        self._queues: dict[str, list[Entry]] = {}
        self._heads: dict[str, int] = {}
        self._remaining: dict[int, int] = {}
        self._fingerprints: set[str] | None = None
        self._reached: list[int] | None = None  # by position, the latest turn up to there
        queues, remaining = self._queues, self._remaining
        gone: set[int] = set()
        ahead = 0
        for entry in entries:  # a hundred thousand of them, maybe
            key, status = entry.key, entry.status
            if not was_undone and (entry.undone or entry.abandoned):
                gone.add(entry.position)
            if entry.past or (entry.undone and not was_undone):
                taken.used.add(entry)
                continue
            if entry.abandoned and not was_undone:
                ahead += entry.has_effect
                continue
            queue = queues.get(key)
            if queue is None:
                queues[key] = [entry]
            else:
                queue.append(entry)
            if entry.decided is not None and entry.decided.get("asked", key) != key:
                queues.setdefault(entry.decided["asked"], []).append(entry)
            if (strict or entry.effect in WRITES) and status != "blocked":
                at = entry.position
                remaining[at] = remaining.get(at, 0) + 1
                ahead += entry.has_effect
        self.ahead = ahead
        self.length = max(remaining, default=-1) + 1
        while self.position in gone and self.exhausted():  # what the run did began after an undo
            self.position += 1
        # From here on in a queue, the earliest position that any entry holds at.
        self._lowest = {
            key: list(accumulate((e.since for e in reversed(queue)), min))[::-1]
            for key, queue in self._queues.items()
            if len(queue) > 1
        }

    def tells(self, entry: Entry) -> bool:
        """Whether anything of this step holds: it was not undone, or is given back as it was."""
        undone = entry.undone or entry in self.taken.undone
        return not entry.past and (self.was_undone or not undone)

    def advances(self, entry: Entry) -> bool:
        """Whether this step moves the world on."""
        if entry.status == "blocked":
            return False
        return self._strict or entry.effect in WRITES

    def find(self, key: str, start: int, slot: int, past: Collection[Entry] = ()) -> Entry | None:
        """The recorded step that stands for a call of a turn which started at position `start`.

        None of those that are `past`. Of identical calls of one recorded turn, the one of the same
        slot, else of the lowest slot; of those of different turns, the earliest.
        """
        queue = self._queues.get(key)
        if queue is None:
            return None
        if len(queue) > 1:
            return self._find_among(queue, key, start, slot, past)
        entry = queue[0]
        holds = entry not in self._used and start <= entry.end and entry.since <= self.position
        return entry if holds and entry not in past else None

    def _find_among(
        self, queue: list[Entry], key: str, start: int, slot: int, past: Collection[Entry]
    ) -> Entry | None:
        index = self._heads.get(key, 0)
        while index < len(queue) and queue[index] in self._used:
            index += 1
        self._heads[key] = index
        lowest = self._lowest.get(key)
        first: Entry | None = None
        while index < len(queue) and first is None:
            if lowest is not None and lowest[index] > self.position:
                return None
            entry = queue[index]
            if entry not in self._used and start <= entry.end and entry.since <= self.position:
                first = None if entry in past else entry
            index += 1
        if first is None or first.slot == slot:
            return first
        lowest_slot = first  # who started first does not count
        for entry in islice(queue, index, None):
            if entry.era != first.era or entry.since > self.position:
                break
            if entry in self._used or entry in past:
                continue
            if entry.slot == slot:
                return entry
            if entry.slot < lowest_slot.slot and start <= entry.end:
                lowest_slot = entry
        return lowest_slot

    def find_at(self, key: str, checkpoint: str, past: Collection[Entry] = ()) -> Entry | None:
        """The first recorded step of this call at this very place of a framework's memory.

        There the framework does the same work again; what it did at once with that may still be
        on its way, or may have left the path.
        """
        if not checkpoint:
            return None
        same = (
            e
            for e in self._queues.get(key, ())
            if e not in self._used and e.checkpoint == checkpoint
        )
        return next((each for each in same if each not in past), None)

    def position_at(self, era: int) -> int:
        """The first position that anything of a later turn than `era` stands at."""
        if self._reached is None:
            latest = [0] * self.length
            for entry in self.entries:
                if self.advances(entry) and entry.position < self.length:
                    latest[entry.position] = max(latest[entry.position], entry.era)
            self._reached = list(accumulate(latest, max))
        return bisect_right(self._reached, era)

    def holds(self, fingerprint: str) -> bool:
        """Whether a step of this fingerprint is recorded here, taken or not."""
        if self._fingerprints is None:  # most replays never ask
            self._fingerprints = {entry.fingerprint for entry in self.entries}
        return fingerprint in self._fingerprints

    def take(self, entry: Entry) -> bool:
        """Use a step up; whether it moves the world on."""
        self._used.add(entry)
        advances = self.advances(entry)
        if advances:
            self._remaining[entry.position] -= 1
            self.ahead -= entry.has_effect
        return advances

    def exhausted(self) -> bool:
        """Whether the batch at the present position is used up (and there was one)."""
        return self.position < self.length and not self._remaining.get(self.position)

    def effect_of(self, key: str) -> Entry | None:
        """A recorded effect of this very call that nobody has asked for."""
        return next(
            (e for e in self._queues.get(key, ()) if e.has_effect and e not in self._used), None
        )

    def left(self) -> list[Entry]:
        """The recorded effects that nobody has asked for."""
        return [
            e for e in self.entries if e not in self._used and e.has_effect and self.advances(e)
        ]

    def later(self, entry: Entry) -> list[Entry]:
        """What was recorded in later turns than this step, and not taken yet."""
        return [e for e in self.entries if e not in self._used and e.era > entry.era]

    def acknowledge(self, orphan: Entry) -> None:
        """Stop listing an effect that is left behind; it holds no longer."""
        self._used.add(orphan)
        self.ahead -= 1

    def mark_undone(self, run: str, step: int) -> None:
        """An effect that lies ahead, or was left behind, was undone."""
        for entry in self.entries:
            if entry.run == run and entry.step == step:
                self.taken.undone.add(entry)
                if entry not in self._used and self.advances(entry):
                    self._used.add(entry)
                    self.ahead -= 1
                return

    def close(self) -> None:
        """Let nothing of it be taken any more: its effects are left behind."""
        self._queues.clear()
        self._lowest.clear()
        self._remaining.clear()
        self.position = self.length = 0

    def other_version(self, name: str, args: Mapping[str, Any], version: str) -> Entry | None:
        """A recorded write, not taken, of the same call under another contract version."""
        for entry in self.entries:
            if (
                entry not in self._used
                and entry.name == name
                and entry.version != version
                and entry.has_effect
                and entry.args == args
            ):
                return entry
        return None
