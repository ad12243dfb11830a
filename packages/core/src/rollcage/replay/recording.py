"""What a lineage of traces holds: the steps that may stand for a call, branch by branch.

Nothing here does I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from rollcage.errors import TraceCorrupt
from rollcage.replay.generation import Generation
from rollcage.replay.path import Entry, Path, Taken
from rollcage.replay.undone import Undone
from rollcage.trace.reader import read_events

__all__ = ["Lineage", "Recording", "is_fork", "load", "read", "recording_of", "undo_paths"]


class Recording:
    """What a lineage of traces holds for a session to replay.

    Attributes:
        paths: by branch.
        taken: what the session has made of the steps.
        entries: all of them, in their order.
        forks: by branch, the branches that were forked off it.
        opened: the branches of which a trace says that they were, whatever was done in them; each
            with where a framework with a memory stood by then: conversation and checkpoint.
        after: by branch, those that it comes after, of those that come after any.
        pure: by key; holds in any world, any number of times.
        models: by key; in any world, once each, first in first out: those used are at the end.
        rolled: the branches that were undone whole.
        half_undone: the steps whose undo began and did not come to an end.
        waits: for what the newest run waits, where it ended paused; else empty.
    """

    def __init__(self) -> None:
        self.paths: dict[str, Path] = {}
        self.taken = Taken()
        self.entries: list[Entry] = []
        self.forks: dict[str, list[str]] = {}
        self.opened: dict[str, tuple[str, str]] = {}
        self.after: dict[str, tuple[str, ...]] = {}
        self.pure: dict[str, Entry] = {}
        self.models: dict[str, deque[Entry]] = {}
        self.rolled: set[str] = set()
        self.run_settings: dict[str, Any] = {}
        self.half_undone: tuple[Entry, ...] = ()
        self.waits = ""
        self._began: dict[str, int] | None = None  # see `began`

    def began(self, branch: str) -> int | None:
        """The turn of the first step that holds of a branch, or of one below it; None: of none."""
        if self._began is None:
            self._began = {}
            for name, path in self.paths.items():
                held = (entry.era for entry in path.entries if path.tells(entry))
                first = min(held, default=None)
                if first is not None:
                    for each in (name, *_around(name)):
                        self._began[each] = min(self._began.get(each, first), first)
        return self._began.get(branch)

    def next_answer(self, key: str, past: Collection[Entry] = ()) -> Entry | None:
        """The next recorded step of a model call, but for those that are past; None: no more."""
        for entry in self.models.get(key, ()):
            if entry in self.taken.used:
                return None
            if entry not in past:
                return entry
        return None

    def use_answer(self, entry: Entry) -> None:
        """Use up a recorded step of a model call, wherever it stands."""
        queue = self.models[entry.key]
        queue.remove(entry)
        queue.append(entry)
        self.taken.used.add(entry)


# --- loading -------------------------------------------------------------------------------------


class Lineage(NamedTuple):
    """All that the traces of a lineage tell: the steps that stand, and what was undone."""

    entries: list[Entry]
    undone: Undone
    runs: list[str]  # oldest first
    settings: dict[str, Any]  # of the newest run
    last_step: int  # of the newest run, and its last turn
    last_turn: int
    waits: str  # see `Recording`
    opened: dict[str, tuple[str, str]]  # see `Recording`
    after: dict[str, tuple[str, ...]]  # see `Recording`

    @property
    def half_undone(self) -> tuple[Entry, ...]:
        """The steps whose undo began and did not come to an end."""
        open_ = self.undone.begun - self.undone.done
        return tuple(
            entry
            for entry in self.entries
            if (entry.run, entry.step) in open_ and entry.undoes is None and not entry.undone
        )


def read(lineage: Iterable[tuple[str, bytes]], base: Lineage | None = None) -> Lineage:
    """Read a lineage, given as (name for messages, whole lines), oldest first.

    What was read before of its oldest traces is its `base`, which is used up by this.

    Raises:
        TraceCorrupt: a line that breaks the chain, or is no event of this format.
    """
    base = Lineage([], Undone(), [], {}, 0, 0, "", {}, {}) if base is None else base
    entries, undone, runs, settings, steps, turns, waits, opened, after = base
    for number, (where, data) in enumerate(lineage, start=len(runs)):
        generation = Generation(number, {(e.run, e.step): e for e in entries}, undone)
        steps = turns = 0
        for line, event in read_events(data, where):
            try:
                generation.read(event)
                if (step := event.get("step", 0)) > steps:
                    steps = step
                if (turn := event.get("turn", 0)) > turns:
                    turns = turn
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise TraceCorrupt(where, line, f"not an event of this format: {error!r}") from None
        entries, settings = generation.merged(), generation.settings
        runs.append(generation.run)
        waits = generation.waits
        opened |= generation.opened
        after |= generation.after
    return Lineage(entries, undone, runs, settings, steps, turns, waits, opened, after)


def load(
    lineage: Iterable[tuple[str, bytes]], *, offline: bool, retry_failed: bool | None
) -> Recording:
    """The recording of a lineage, given as (name for messages, whole lines), oldest first.

    Raises:
        TraceCorrupt: a line that breaks the chain, or is no event of this format.
    """
    return recording_of(read(lineage), offline=offline, retry_failed=retry_failed)


def recording_of(whole: Lineage, *, offline: bool, retry_failed: bool | None) -> Recording:
    """What a lineage holds for a session to replay."""
    entries = [e for e in whole.entries if e.undoes is None and e.accepted is None]
    settings = whole.settings
    recording = Recording()
    recording.run_settings = settings
    recording.half_undone = whole.half_undone
    recording.waits = whole.waits
    recording.entries = entries
    recording.rolled = whole.undone.rolled
    strict = settings.get("chain") == "all"
    branches: dict[str, list[Entry]] = {}
    for entry in entries:
        branches.setdefault(entry.branch, []).append(entry)
    _mark_frontiers(branches, whole.after, retry_failed=retry_failed)
    recording.forks = _forks(branches)
    recording.opened, recording.after = whole.opened, whole.after
    told = _told_as_it_was(
        branches, recording.forks, whole.after, whole.undone.rolled, offline=offline
    )
    for branch in told:
        for entry in branches.get(branch, ()):
            entry.frontier = False
    for entry in entries:
        if entry.past or (entry.undone and entry.branch not in told):
            continue
        if entry.kind == "model" and _holds(entry, offline=offline):
            recording.models.setdefault(entry.key, deque()).append(entry)
        elif not strict and _is_pure(entry) and entry.status in ("ok", "error"):
            known = recording.pure.get(entry.key)
            if known is None or known.status == "error":
                recording.pure[entry.key] = entry
            if entry.decided is not None and "asked" in entry.decided:
                recording.pure.setdefault(entry.decided["asked"], entry)
    for branch, steps in branches.items():
        recording.paths[branch] = Path(
            [
                entry
                for entry in _with_ends(steps)
                if entry.kind != "model"
                and (strict or not _is_pure(entry))
                and _holds(entry, offline=offline)
            ],
            recording.taken,
            strict=strict,
            taken_back=branch in told,
        )
    return recording


def _mark_frontiers(
    branches: dict[str, list[Entry]],
    after: dict[str, tuple[str, ...]],
    *,
    retry_failed: bool | None,
) -> None:
    """Mark in each branch the steps that nothing came after."""
    went_on = _went_on(branches, after)
    joined = _joined(branches)
    for name, steps in branches.items():
        if name in joined and retry_failed is None:
            continue
        _mark_frontier(steps, retry_failed=retry_failed, went_on=went_on.get(name))


def _joined(branches: dict[str, list[Entry]]) -> set[str]:
    """The branches that came back: whoever worked there has gone on."""
    every = (entry for steps in branches.values() for entry in steps if entry.kind == "branch")
    return {entry.name for entry in every if not (entry.undone or entry.abandoned)}


def is_fork(branch: str) -> bool:
    """Whether a branch was forked off another one: not the first one, nor that of a body."""
    return "/" in branch or (branch != "" and not branch.startswith("#"))


def _around(branch: str) -> Iterator[str]:
    """What a branch was forked off, and what that was, and so on."""
    while is_fork(branch):
        branch = branch.rpartition("/")[0]
        yield branch


def _forks(branches: Iterable[str]) -> dict[str, list[str]]:
    """By branch, those that were forked off it."""
    forks: dict[str, list[str]] = {}
    for branch in filter(is_fork, branches):
        forks.setdefault(branch.rpartition("/")[0], []).append(branch)
    return forks


def _told_as_it_was(
    branches: dict[str, list[Entry]],
    forks: dict[str, list[str]],
    after: dict[str, tuple[str, ...]],
    rolled: set[str],
    *,
    offline: bool,
) -> set[str]:
    """The branches that were undone whole, and that the agent has left behind by then.

    As a failure that something came after, each is given back as it was; one that nothing came
    after is run again, in whole.
    """
    told: set[str] = set()
    joined = _joined(branches)
    came_after = _came_after(branches, after)
    for branch in rolled:
        parent = branch.rpartition("/")[0] if is_fork(branch) else None
        if parent in rolled:
            continue  # it is one with that
        block = {branch, *(each for each in rolled if each.startswith(f"{branch}/"))}
        steps = [entry for each in block for entry in branches.get(each, ()) if not entry.past]
        last = max((entry.era for entry in steps), default=0)
        beside: list[str] = []
        if parent is not None:
            beside = [parent, *(each for each in forks.get(parent, ()) if each != branch)]
        went_on = not joined.isdisjoint(_around(branch))
        went_on = went_on or any(came_after.get(each, 0) > last for each in _around(branch))
        went_on = went_on or any(
            entry.era > last
            and entry.kind != "model"
            and entry.status != "blocked"
            and not _is_pure(entry)
            and not entry.abandoned
            and not entry.undone
            for each in beside
            for entry in branches.get(each, ())
        )
        if (offline or went_on) and not any(entry.has_effect for entry in steps):
            told |= block
    inside = {f"#{e.fingerprint}" for each in told for e in branches.get(each, ())}
    return told | (inside & rolled)


def undo_paths(entries: Iterable[Entry]) -> dict[str, Path]:
    """The paths of what earlier undos did, by branch, so that none of it is done twice."""
    branches: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.undoes is not None:
            branches.setdefault(entry.branch, []).append(entry)
    for steps in branches.values():
        _mark_frontier(steps, retry_failed=None)
    taken = Taken()
    return {
        branch: Path(
            [e for e in _with_ends(steps) if e.kind != "model" and _holds(e, offline=False)],
            taken,
            strict=False,
        )
        for branch, steps in branches.items()
    }


def _is_pure(entry: Entry) -> bool:
    """Whether a step is found by its key alone, in any world."""
    return entry.kind == "tool" and entry.effect == "pure" and entry.status != "blocked"


def _mark_frontier(
    steps: list[Entry], *, retry_failed: bool | None, went_on: int | None = None
) -> None:
    """Mark the steps that no tool call of a later turn, or of their own slot, came after.

    `went_on` is the last turn of what was forked off their branch, if anything was. A pure step of
    an older trace says nothing: it holds anywhere, wherever it stands among what is left of that.
    """
    if retry_failed is not None:
        for entry in steps:
            entry.frontier = retry_failed
        return
    last: int | None = None
    pure: list[tuple[int, int]] = []  # the pure steps so far: their traces, and their turns
    seats: set[int] = set()
    for entry in reversed(steps):
        if entry.status == "blocked" or entry.abandoned or entry.undone:
            continue
        if entry.kind == "model":
            entry.frontier = last is None and not pure
            continue
        if last is not None and entry.era != last:
            break
        later = any(made >= entry.generation and era != entry.era for made, era in pure)
        later = later or (went_on is not None and went_on > entry.era)
        entry.frontier = not later and entry.seat not in seats  # else: retried in its own slot
        if _is_pure(entry):
            pure.append((entry.generation, entry.era))
            continue
        last = entry.era
        seats.add(entry.seat)


def _went_on(branches: dict[str, list[Entry]], after: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """By branch, the last turn of what was forked off it, or comes after, and changed something."""
    last = _came_after(branches, after)
    for branch in filter(is_fork, branches):
        turn = _last_change(branches[branch])
        for around in _around(branch) if turn else ():
            last[around] = max(last.get(around, 0), turn)
    return last


def _came_after(
    branches: dict[str, list[Entry]], after: dict[str, tuple[str, ...]]
) -> dict[str, int]:
    """By branch, the last turn of what comes after it and changed something."""
    last: dict[str, int] = {}
    changed: dict[str, int] = {}  # the last turn in which a branch, or one off it, did
    for branch, steps in branches.items() if after else ():
        turn = _last_change(steps)
        for each in (branch, *_around(branch)):
            changed[each] = max(changed.get(each, 0), turn)
    for branch, comes_after in after.items():
        turn = changed.get(branch, 0)
        before = set(comes_after) if turn else set[str]()
        waiting = [*before]
        while waiting:
            each = waiting.pop()
            last[each] = max(last.get(each, 0), turn)
            more = set(after.get(each, ())) - before
            before |= more
            waiting += more
    return last


def _last_change(steps: Iterable[Entry]) -> int:
    """The last turn in which one of these steps changed something; 0: none did."""
    return max((e.era for e in steps if e.has_effect and not e.abandoned), default=0)


def _with_ends(steps: list[Entry]) -> list[Entry]:
    """Let each read hold up to the end of the batch that its turn wrote in."""
    others = [e for e in steps if e.effect not in ("write", "scope") or e.status == "blocked"]
    if not others:
        return steps
    last: dict[int, int] = {}
    for entry in steps:
        if entry.effect in ("write", "scope") and entry.status != "blocked":
            last[entry.group] = max(last.get(entry.group, 0), entry.position + 1)
    for entry in others:
        entry.end = max(entry.end, last.get(entry.group, 0))
    return steps


def _holds(entry: Entry, *, offline: bool) -> bool:
    """Whether a recorded step can be a candidate at all."""
    if entry.effect == "write" and entry.status == "ok":
        return True
    if entry.status == "blocked":  # today's gate decides anew, but nobody is asked twice
        rejected = entry.decided is not None and "rejected_by" in entry.decided
        return offline or (rejected and entry.undoes is None)
    if entry.effect in ("pure", "read"):
        if entry.status in ("unknown", "not_started"):
            return False  # it just runs again
        if offline or not entry.frontier:
            return True
        # What failed at the frontier runs again, and a stream that was left there is read anew.
        return entry.status != "error" and "cut" not in entry.outcome
    return True
