"""The replay rule: which recorded step may stand for a call (DESIGN §3).

A recorded run is a partial order, kept here as *positions*: position n of a branch is the world
after n batches of writes. Every step holds over an interval of positions:

* a write from where its turn started up to its own batch, once;
* a read from where its turn started up to the end of the batch it was concurrent with, once;
* a pure step everywhere, any number of times; a model step everywhere, once, first in first out.

`Path` is one branch's recorded order with what of it has been taken; `load` makes the paths of a
whole lineage of traces. Nothing here does I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import accumulate, islice
from typing import Any, Final, Literal

from rollcage.errors import TraceCorrupt
from rollcage.trace.codec import TAG
from rollcage.trace.reader import read_events

__all__ = ["Entry", "Path", "Recording", "Status", "load", "nearest"]

Status = Literal["ok", "error", "unknown", "not_started", "blocked"]
UNKNOWN: Final[dict[str, Any]] = {"status": "unknown"}
UNKNOWN_DIGEST: Final = sha256(b'{"status":"unknown"}').hexdigest()
_TURNS: Final = 1 << 40  # turns of one generation: more than any run has


class Entry:
    """A recorded step, as a candidate. `run`, `step` and `turn` say where it first ran."""

    __slots__ = (
        "abandoned", "args", "branch", "digest", "duration", "effect", "end", "era", "fingerprint",
        "flaw", "frontier", "group", "joined", "key", "kind", "name", "outcome", "position", "run",
        "seat", "since", "slot", "status", "step", "turn", "used", "version", "world",
    )  # fmt: skip

    run: str
    step: int
    turn: int
    group: int  # its turn, unique over the lineage
    era: int  # the turn in whose place it ran, where it was run or replayed again
    seat: int  # its slot in that turn
    slot: int
    branch: str
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
    duration: int  # µs
    flaw: str | None  # why its value can't be given back
    frontier: bool  # no later tool call in its branch, but for other slots of its turn
    used: bool
    abandoned: bool  # a later run of the lineage left the path before it: an orphan, no candidate

    @property
    def has_effect(self) -> bool:
        """Whether it changed the world, or may have."""
        return self.effect in ("write", "scope") and self.status in ("ok", "unknown")


class Path:
    """What is recorded of one branch, and what of it is still to be taken."""

    def __init__(self, entries: list[Entry], *, strict: bool) -> None:
        self.entries = entries
        self.position = 0
        self.ahead = 0  # recorded effects not taken yet
        self.length = 0  # positions that hold writes
        self._strict = strict  # chain="all": every tool step advances the world
        self._queues: dict[str, list[Entry]] = {}
        self._heads: dict[str, int] = {}
        self._remaining: dict[int, int] = {}
        self._fingerprints: set[str] | None = None
        for entry in entries:
            if entry.abandoned:
                self.ahead += 1
                continue
            self._queues.setdefault(entry.key, []).append(entry)
            if self.advances(entry):
                at = entry.position
                self._remaining[at] = self._remaining.get(at, 0) + 1
                self.length = max(self.length, at + 1)
                self.ahead += entry.has_effect
        # From here on in a queue, the earliest position that any entry holds at.
        self._lowest = {
            key: list(accumulate((e.since for e in reversed(queue)), min))[::-1]
            for key, queue in self._queues.items()
            if len(queue) > 1
        }

    def advances(self, entry: Entry) -> bool:
        """Whether this step moves the world on."""
        if entry.status == "blocked":
            return False
        return self._strict or entry.effect in ("write", "scope")

    def find(self, key: str, start: int, slot: int) -> Entry | None:
        """The recorded step that stands for a call of a turn which started at position `start`.

        Of identical calls of one recorded turn, the one of the same slot, else of the lowest slot;
        of those of different turns, the earliest.
        """
        queue = self._queues.get(key)
        if queue is None:
            return None
        index = self._heads.get(key, 0)
        while index < len(queue) and queue[index].used:
            index += 1
        self._heads[key] = index
        lowest = self._lowest.get(key)
        first: Entry | None = None
        while index < len(queue) and first is None:
            if lowest is not None and lowest[index] > self.position:
                return None
            entry = queue[index]
            if not entry.used and start <= entry.end and entry.since <= self.position:
                first = entry
            index += 1
        if first is None or first.slot == slot:
            return first
        lowest_slot = first  # who started first does not count
        for entry in islice(queue, index, None):
            if entry.group != first.group or entry.since > self.position:
                break
            if entry.used:
                continue
            if entry.slot == slot:
                return entry
            if entry.slot < lowest_slot.slot and start <= entry.end:
                lowest_slot = entry
        return lowest_slot

    def holds(self, fingerprint: str) -> bool:
        """Whether a step of this fingerprint is recorded here, taken or not."""
        if self._fingerprints is None:  # most replays never ask
            self._fingerprints = {entry.fingerprint for entry in self.entries}
        return fingerprint in self._fingerprints

    def take(self, entry: Entry) -> None:
        """Use a step up, and move on over every batch that is now used up."""
        entry.used = True
        if self.advances(entry):
            self._remaining[entry.position] -= 1
            self.ahead -= entry.has_effect

    def exhausted(self) -> bool:
        """Whether the batch at the present position is used up (and there was one)."""
        return self.position < self.length and not self._remaining.get(self.position)

    def effect_of(self, key: str) -> Entry | None:
        """A recorded effect of this very call that nobody has asked for."""
        return next((e for e in self._queues.get(key, ()) if e.has_effect and not e.used), None)

    def left(self) -> list[Entry]:
        """The recorded effects that nobody has asked for."""
        return [e for e in self.entries if not e.used and e.has_effect and self.advances(e)]

    def later(self, entry: Entry) -> list[Entry]:
        """What was recorded in later turns than this step, and not taken yet."""
        return [e for e in self.entries if not e.used and e.group > entry.group]

    def acknowledge(self, orphan: Entry) -> None:
        """Stop listing an effect that is left behind; it holds no longer."""
        orphan.used = True
        self.ahead -= 1

    def other_version(self, name: str, args: Mapping[str, Any], version: str) -> Entry | None:
        """A recorded write, not taken, of the same call under another contract version."""
        for entry in self.entries:
            if (
                not entry.used
                and entry.name == name
                and entry.version != version
                and entry.has_effect
                and entry.args == args
            ):
                return entry
        return None


class Recording:
    """What a lineage of traces holds for a session to replay.

    Attributes:
        paths: by branch.
        pure: by key; holds in any world, any number of times.
        models: by key; in any world, once each, first in first out: those used are at the end.
    """

    def __init__(self) -> None:
        self.paths: dict[str, Path] = {}
        self.pure: dict[str, Entry] = {}
        self.models: dict[str, deque[Entry]] = {}
        self.run_settings: dict[str, Any] = {}

    def next_answer(self, key: str) -> Entry | None:
        """The next recorded step of a model call; None where all of them were given."""
        queue = self.models.get(key)
        if not queue or queue[0].used:
            return None
        entry = queue[0]
        entry.used = True
        queue.rotate(-1)
        return entry


# --- loading -------------------------------------------------------------------------------------


class _Generation:
    """One trace of a lineage, read over what the older ones left."""

    def __init__(self, number: int, older: dict[tuple[str, int], Entry]) -> None:
        self.number = number
        self.older = older
        self.entries: list[Entry] = []
        self.by_step: dict[int, Entry] = {}
        # Branches that have left the older path: at which position, and in which turn.
        self.left: dict[str, tuple[int, int]] = {}
        self.settings: dict[str, Any] = {}
        self.run = ""
        # Reads, pure and model calls that just run again: the new ones stand in their places.
        self.unfinished: dict[tuple[str, str], deque[tuple[str, int]]] = {}
        for at, entry in older.items():
            whole = entry.status in ("ok", "blocked") and "cut" not in entry.outcome
            if entry.effect in ("pure", "read") and not whole:
                self.unfinished.setdefault((entry.branch, entry.key), deque()).append(at)

    def read(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "step.finished":
            self._outcome(self.by_step[event["step"]], event)
        elif kind == "step.started":
            self._started(event)
        elif kind == "step.replayed":
            entry = self._entry(event)
            entry.run, entry.step, entry.turn = event["origin"]
            self._outcome(entry, event)
            self._replace(entry, (entry.run, entry.step))
        elif kind == "step.blocked":
            entry = self._entry(event)
            entry.status, entry.outcome = "blocked", event["verdict"]
        elif kind == "step.resolved":
            self._outcome(self.by_step[event["step"]], {"duration": 0, **event})
        elif kind == "branch.joined":
            entry = self._entry({**_JOIN, **event})
            entry.status, entry.digest = "ok", event["digest"]
            if "origin" in event:
                entry.run, entry.step, entry.turn = event["origin"]
                self.older.pop((entry.run, entry.step), None)
            elif "leaves" in event:
                self.left[entry.branch] = entry.position, entry.group
        elif kind == "run.started":
            self.settings, self.run = event, event["run"]
        elif kind != "run.finished":
            raise ValueError(f"no event is called {kind!r}")

    def _started(self, event: dict[str, Any]) -> None:
        entry = self._entry(event)
        self.by_step[entry.step] = entry
        replaced = event.get("supersedes")
        if replaced is None and entry.effect in ("pure", "read"):
            again = self.unfinished.get((entry.branch, entry.key))
            replaced = again.popleft() if again else None
        if replaced is not None:
            self._replace(entry, (replaced[0], replaced[1]))
        if "leaves" in event:
            self.left[entry.branch] = entry.position, entry.group
        for run, step in event.get("orphans") or ():  # said and accepted: not listed again
            self.older.pop((run, step), None)

    def _replace(self, entry: Entry, older: tuple[str, int]) -> None:
        """A step that stands in the place of an older one."""
        before = self.older.pop(older, None)
        if before is not None:
            entry.era, entry.seat = before.era, before.seat

    def _entry(self, event: dict[str, Any]) -> Entry:
        get = event.get
        entry = Entry()
        entry.run = self.run
        entry.step = event["step"]
        entry.turn = turn = event["turn"]
        entry.group = entry.era = self.number * _TURNS + turn
        entry.slot = entry.seat = event["slot"]
        entry.branch = get("branch", "")
        entry.kind = event["kind"]
        entry.name = event["name"]
        entry.version = event["version"]
        entry.args = event["args"]
        entry.effect = event["effect"]
        entry.key = event["key"]
        entry.fingerprint = get("fingerprint", "")
        entry.world = get("world", "")
        entry.position = position = event["position"]
        entry.since = get("since", position)
        entry.joined = get("joined", False)
        for number in (entry.step, turn, entry.slot, position, entry.since):
            if type(number) is not int or number < 0:
                raise ValueError(f"{number!r} is no number of a place")
        if position > len(self.by_step) + len(self.entries) + len(self.older):
            raise ValueError(f"position {position} is beyond all that was written")
        for digest in (entry.fingerprint, entry.world):
            bytes.fromhex(digest)  # or it is refused here
        entry.end = position + entry.joined
        entry.status = "unknown"
        entry.outcome = UNKNOWN
        entry.digest = UNKNOWN_DIGEST
        entry.duration = 0
        entry.flaw = None
        entry.frontier = entry.used = entry.abandoned = False
        self.entries.append(entry)
        return entry

    @staticmethod
    def _outcome(entry: Entry, event: dict[str, Any]) -> None:
        outcome = event["outcome"]
        usage = outcome.get("usage")
        if type(event["duration"]) is not int or outcome["status"] not in _STATUSES:
            raise ValueError("an outcome of another form")
        if usage is not None and not all(type(each) is int for each in usage.values()):
            raise ValueError("tokens are counted in integers")
        bytes.fromhex(event["digest"])
        entry.outcome = outcome
        entry.status = outcome["status"]
        entry.digest = event["digest"]
        entry.duration = event["duration"]
        entry.flaw = outcome.get("lossy")

    def merged(self) -> list[Entry]:
        """This trace's steps, then what the older ones left and still holds."""
        last: dict[str, int] = {}
        for entry in self.entries:
            if entry.kind != "model" and entry.status != "blocked":
                last[entry.branch] = max(last.get(entry.branch, 0), entry.group)
        for entry in self.older.values():
            left = self.left.get(entry.branch)
            gone = left is not None and entry.effect != "pure" and entry.kind == "tool"
            if left is not None and entry.since <= left[0] <= entry.position:
                if gone and last[entry.branch] == left[1]:
                    gone = False  # of the turn that left, which was cut off in its middle
                    entry.group, entry.position = left[1], left[0]
                entry.end = max(entry.end, entry.position)
            entry.abandoned = entry.abandoned or gone
            if not gone or entry.has_effect:
                self.entries.append(entry)
        return self.entries


_STATUSES: Final = frozenset({"ok", "error", "unknown", "not_started"})
_JOIN: Final[dict[str, Any]] = {
    "kind": "branch", "version": "", "args": {}, "effect": "write",
}  # fmt: skip


def load(
    lineage: Iterable[tuple[str, bytes]], *, offline: bool, retry_failed: bool | None
) -> Recording:
    """The recording of a lineage, given as (name for messages, whole lines), oldest first.

    Raises:
        TraceCorrupt: a line that breaks the chain, or is no event of this format.
    """
    entries: list[Entry] = []
    settings: dict[str, Any] = {}
    for number, (where, data) in enumerate(lineage):
        generation = _Generation(number, {(e.run, e.step): e for e in entries})
        for line, event in read_events(data, where):
            try:
                generation.read(event)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise TraceCorrupt(where, line, f"not an event of this format: {error!r}") from None
        entries, settings = generation.merged(), generation.settings
    recording = Recording()
    recording.run_settings = settings
    strict = settings.get("chain") == "all"
    branches: dict[str, list[Entry]] = {}
    for entry in entries:
        branches.setdefault(entry.branch, []).append(entry)
    for steps in branches.values():
        _mark_frontier(steps, retry_failed=retry_failed)
    for entry in entries:
        if entry.kind == "model" and _holds(entry, offline=offline):
            recording.models.setdefault(entry.key, deque()).append(entry)
        elif not strict and _is_pure(entry) and entry.status in ("ok", "error"):
            known = recording.pure.get(entry.key)
            if known is None or known.status == "error":
                recording.pure[entry.key] = entry
    for branch, steps in branches.items():
        recording.paths[branch] = Path(
            [
                entry
                for entry in _with_ends(steps)
                if entry.kind != "model"
                and (strict or not _is_pure(entry))
                and _holds(entry, offline=offline)
            ],
            strict=strict,
        )
    return recording


def _is_pure(entry: Entry) -> bool:
    """Whether a step is found by its key alone, in any world."""
    return entry.kind == "tool" and entry.effect == "pure" and entry.status != "blocked"


def _mark_frontier(steps: list[Entry], *, retry_failed: bool | None) -> None:
    """Mark the steps that no tool call of a later turn, or of their own slot, came after."""
    if retry_failed is not None:
        for entry in steps:
            entry.frontier = retry_failed
        return
    last: int | None = None
    seats: set[int] = set()
    for entry in reversed(steps):
        if entry.status == "blocked" or entry.abandoned:
            continue
        if entry.kind == "model":
            entry.frontier = last is None
        elif entry.kind == "tool":
            if last is not None and entry.era != last:
                break
            last = entry.era
            entry.frontier = entry.seat not in seats  # else it was retried in its own slot
            seats.add(entry.seat)


def _with_ends(steps: list[Entry]) -> list[Entry]:
    """Let each read hold up to the end of the batch that its turn wrote in."""
    last: dict[int, int] = {}
    for entry in steps:
        if entry.effect in ("write", "scope") and entry.status != "blocked":
            last[entry.group] = max(last.get(entry.group, 0), entry.position + 1)
    if last:
        for entry in steps:
            if entry.effect not in ("write", "scope") or entry.status == "blocked":
                entry.end = max(entry.end, last.get(entry.group, 0))
    return steps


def _holds(entry: Entry, *, offline: bool) -> bool:
    """Whether a recorded step can be a candidate at all."""
    if entry.status == "blocked":
        return offline  # today's gate decides anew
    if entry.effect in ("pure", "read"):
        if entry.status in ("unknown", "not_started"):
            return False  # it just runs again
        # What failed at the frontier runs again, and a stream that was left there is read anew.
        cut = entry.status == "error" or "cut" in entry.outcome
        return offline or not (cut and entry.frontier)
    return True


# --- saying what is missing ----------------------------------------------------------------------


def nearest(
    entries: Iterable[Entry], name: str, version: str, args: Mapping[str, Any]
) -> tuple[Entry, str] | None:
    """The recorded call most like a given one, and the field in which it differs."""
    best: tuple[tuple[int, int, int], Entry, str] | None = None
    for entry in entries:
        if entry.kind == "branch":
            continue
        differing = _difference(entry, name, version, args)
        score = (entry.name == name, -len(differing), not entry.used)
        if best is None or score > best[0]:
            state = "already replayed" if entry.used else "recorded in another world"
            place = f"nothing but its place: the same call is {state}"
            best = (score, entry, "; ".join(differing) or place)
    return None if best is None else (best[1], best[2])


def _difference(entry: Entry, name: str, version: str, args: Mapping[str, Any]) -> list[str]:
    if entry.name != name:
        return [f"the tool: recorded {entry.name!r}, asked for {name!r}"]
    found = []
    if entry.version != version:
        found.append(f"the version: recorded {entry.version!r}, asked for {version!r}")
    for field in sorted({*entry.args, *args}):
        was, now = entry.args.get(field, _ABSENT), args.get(field, _ABSENT)
        if was != now or type(was) is not type(now):
            found.append(f"argument {field!r}: recorded {_show(was)}, asked for {_show(now)}")
    return found


_ABSENT: Final = object()


def _show(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, dict) and value.get(TAG) in ("secret", "redacted"):
        return "a secret"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
