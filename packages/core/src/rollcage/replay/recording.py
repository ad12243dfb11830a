"""What a lineage of traces holds: the steps that may stand for a call, branch by branch.

Nothing here does I/O.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from rollcage.errors import TraceCorrupt
from rollcage.replay.frontier import (
    forked_off,
    forks_of,
    is_pure,
    mark_frontier,
    mark_frontiers,
    undone_as_recorded,
)
from rollcage.replay.generation import Generation
from rollcage.replay.path import Entry, Path, Taken
from rollcage.replay.undone import Undone
from rollcage.trace.reader import read_events

__all__ = ["Lineage", "Recording", "load", "read", "recording_of", "undo_paths"]


class Recording:
    """What a lineage of traces holds for a session to replay.

    Attributes:
        paths: by branch.
        taken: what the session has made of the steps.
        entries: all of them, in their order.
        forks: by branch, the branches that were forked off it.
        opened: the branches of which a trace says that they were, whatever was done in them; each
            with the position of a framework with a memory by then: conversation and checkpoint.
        after: by branch, those that it comes after, of those that come after any.
        forked: by branch, the turn in which it was opened, of the trace that has opened it first.
        pure: by key; holds in any world, any number of times.
        models: by key; in any world, once each, first in first out: those used are at the end.
        rolled: the branches that were undone whole.
        rewinds: how often all that came after some step was undone.
        as_recorded: those of them that are replayed as they were, with nothing new.
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
        self.forked: dict[str, int] = {}
        self.pure: dict[str, Entry] = {}
        self.models: dict[str, deque[Entry]] = {}
        self.rolled: set[str] = set()
        self.rewinds = 0
        self.as_recorded: set[str] = set()
        self.run_settings: dict[str, Any] = {}
        self.half_undone: tuple[Entry, ...] = ()
        self.waits = ""
        self._began: dict[str, int] | None = None  # see `began`
        self._undone: dict[str, int] | None = None  # by branch, the first turn that was undone

    def began(self, branch: str) -> int | None:
        """The turn of the first step that holds of a branch, or of one below it; None: of none."""
        if self._began is None:
            self._began = {}
            for name, path in self.paths.items():
                held = (entry.era for entry in path.entries if path.tells(entry))
                first = min(held, default=None)
                if first is not None:
                    for each in (name, *forked_off(name)):
                        self._began[each] = min(self._began.get(each, first), first)
        return self._began.get(branch)

    def opened_after(self, branch: str) -> int | None:
        """The last turn that a branch was opened after; None: nothing is recorded of that.

        It may have been opened in a trace that was cut before its first step: by now, more is
        there of what was recorded next to it. If a turn before it was undone, it is opened anew.
        """
        began, forked = self.began(branch), self.forked.get(branch)
        if forked is None or self._first_undone(branch.rpartition("/")[0]) < forked:
            return began
        return forked - 1 if began is None else min(began, forked - 1)

    def _first_undone(self, branch: str) -> float:
        """The first turn of which anything was undone in a branch."""
        if self._undone is None:
            self._undone = {}
            for entry in self.entries:
                if entry.undone or entry.past or entry.abandoned:
                    first = self._undone.get(entry.branch, entry.era)
                    self._undone[entry.branch] = min(first, entry.era)
        return self._undone.get(branch, math.inf)

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
    """All that the traces of a lineage hold: the steps in effect, and what was undone."""

    entries: list[Entry]
    undone: Undone
    runs: list[str]  # oldest first
    settings: dict[str, Any]  # of the newest run
    last_step: int  # of the newest run, and its last turn
    last_turn: int
    waits: str  # see `Recording`
    opened: dict[str, tuple[str, str]]  # see `Recording`
    after: dict[str, tuple[str, ...]]  # see `Recording`
    forked: dict[str, int]  # see `Recording`

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
        TraceCorrupt: a line that breaks the chain, or is not an event of this format.
    """
    base = Lineage([], Undone(), [], {}, 0, 0, "", {}, {}, {}) if base is None else base
    entries, undone, runs, settings, steps, turns, waits, opened, after, forked = base
    for number, (where, data) in enumerate(lineage, start=len(runs)):
        older = {(e.run, e.step): e for e in entries}
        generation = Generation(number, older, undone, forked)
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
    return Lineage(entries, undone, runs, settings, steps, turns, waits, opened, after, forked)


def load(
    lineage: Iterable[tuple[str, bytes]], *, offline: bool, retry_failed: bool | None
) -> Recording:
    """The recording of a lineage, given as (name for messages, whole lines), oldest first.

    Raises:
        TraceCorrupt: a line that breaks the chain, or is not an event of this format.
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
    recording.rolled, recording.rewinds = whole.undone.rolled, whole.undone.rewinds
    strict = settings.get("chain") == "all"
    branches: dict[str, list[Entry]] = {}
    for entry in entries:
        branches.setdefault(entry.branch, []).append(entry)
    mark_frontiers(branches, whole.after, retry_failed=retry_failed)
    recording.forks = forks_of(branches)
    recording.opened, recording.after = whole.opened, whole.after
    recording.forked = whole.forked
    as_recorded = recording.as_recorded = undone_as_recorded(
        branches, recording.forks, whole.after, whole.undone.rolled, offline=offline
    )
    for branch in as_recorded:
        for entry in branches.get(branch, ()):
            entry.frontier = False
    for entry in entries:
        if entry.past or (entry.undone and entry.branch not in as_recorded):
            continue
        if entry.kind == "model" and _holds(entry, offline=offline):
            recording.models.setdefault(entry.key, deque()).append(entry)
        elif entry.effect == "pure" and not strict and is_pure(entry) and entry.is_settled:
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
                and (strict or entry.effect != "pure" or not is_pure(entry))
                and (
                    (entry.effect == "write" and entry.status == "ok")
                    or _holds(entry, offline=offline)
                )
            ],
            recording.taken,
            strict=strict,
            was_undone=branch in as_recorded,
        )
    return recording


def undo_paths(entries: Iterable[Entry]) -> dict[str, Path]:
    """The paths of what earlier undos did, by branch, so that none of it is done twice."""
    branches: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.undoes is not None:
            branches.setdefault(entry.branch, []).append(entry)
    for steps in branches.values():
        mark_frontier(steps, retry_failed=None)
    taken = Taken()
    return {
        branch: Path(
            [e for e in _with_ends(steps) if e.kind != "model" and _holds(e, offline=False)],
            taken,
            strict=False,
        )
        for branch, steps in branches.items()
    }


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
