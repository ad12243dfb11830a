"""What was undone, one step or a whole branch, and what holds no longer since.

A step that was undone holds no longer, nor does what came after it in its branch. An effect of
that is left behind, an orphan; anything else is as if it had been undone. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from rollcage.replay.path import UNKNOWN, UNKNOWN_DIGEST, Entry
from rollcage.replay.steps import Origin, TraceSteps, around

__all__ = ["Undone", "UndoneSteps", "holds_anywhere", "outermost"]

Seat = tuple[int, int]
"""Where a step was recorded last: by the trace, the newest first, and by the turn in it."""


class Undone:
    """What a lineage says of undos, by the steps that they were to undo.

    Attributes:
        done: they were undone.
        begun: an undo of them began and has not come to an end, or failed on its way.
        attempts: how often their undo was carried out and did not bring back what was before.
        rolled: the branches that were undone whole, as a transaction that raises is.
        rewinds: how often all that came after some step was undone, or tried to be.
    """

    def __init__(self) -> None:
        self.rewinds = 0
        self.done: set[Origin] = set()
        self.begun: set[Origin] = set()
        self.attempts: dict[Origin, int] = {}
        self.rolled: set[str] = set()

    def read(self, event: dict[str, Any]) -> bool:
        """Take an event of an undo in; whether it says that a step was undone."""
        run, step = event["of"]
        if event["event"] == "undo.started":
            self.begun.add((run, step))
            return False
        if event["status"] in ("verified", "compensated"):
            self.done.add((run, step))
            return True
        if event["status"] == "failed" and event.get("differs") is not None:
            self.attempts[run, step] = self.attempts.get((run, step), 0) + 1
            self.begun.discard((run, step))
        return False


class UndoneSteps:
    """What the undos in one trace have left of its steps and of the older ones."""

    def __init__(self, steps: TraceSteps, undone: Undone) -> None:
        self._steps = steps
        self._undone = undone
        # Branches in which steps were undone, and the position of the first of those.
        self._cuts: dict[str, int] = {}
        self._seats: dict[str, Seat] = {}  # the same, by when the first of those was recorded last
        self._reopened: list[Entry] = []  # scopes in whose bodies steps were undone
        self._rolled: set[str] = set()  # branches that were undone whole in this very trace

    def mark_undone(self, origin: Origin) -> None:
        """A step was undone: it holds no longer, nor does what came after it in its branch."""
        entry = self._steps.find(origin)
        if entry is None or entry.undone:  # None: of a run that is not read
            return
        bodies = [each for each in around(entry, self._steps.bodies()) if each.is_settled]
        self._mark(entry)
        for body in bodies:  # it had ended with what is gone
            self._cut_at(body)
            if body.effect == "scope":
                self._reopened.append(body)
                self._mark(self._steps.joins.get(body.branch))
            else:
                _let_go(body)

    def cut(self, *, whole: bool = False) -> None:
        """Let go what was recorded so far after the steps that were undone.

        `whole`: their undo came to its end; else it was cut off, and the blocks that were undone
        after them before that no longer count.
        """
        if not self._cuts:
            return
        cuts, self._cuts = self._cuts, {}
        seats, self._seats = self._seats, {}
        forgotten = set[str]() if whole else self._forgotten(seats)
        came_back: set[str] = set()  # after what was undone: not what had been forked before that
        for join in self._steps:
            at = None if join.kind != "branch" or join.past else cuts.get(join.branch)
            if at is not None and join.since > at:
                came_back |= self._steps.below(join.name) or set()
        came_back |= forgotten

        def is_forgotten(entry: Entry) -> bool:
            return (entry.name if entry.kind == "branch" else entry.branch) in forgotten

        def is_after(entry: Entry) -> bool:
            at = cuts.get(entry.branch)
            gone = at is not None and entry.since > at  # else: of a turn that began before that
            return gone or entry.branch in came_back or is_forgotten(entry)

        self._let_go(is_after, self._steps.own, list(self._steps.older.values()))
        self._undone.rolled -= forgotten
        for entry in self._steps if forgotten else ():
            entry.past = entry.past or (entry.undone and is_forgotten(entry))
        standing = self._standing()
        for scope in self._reopened:
            if scope.fingerprint in standing and not scope.abandoned:  # it is entered again
                scope.status, scope.outcome, scope.digest = "unknown", UNKNOWN, UNKNOWN_DIGEST
            else:
                _let_go(scope, standing)
        self._reopened.clear()

    def rewind(self, to: int, branch: str, *, again: bool = False) -> None:
        """What was recorded so far after step `to`, or in a branch, holds no longer.

        `again`: the run was stopped in the midst of that branch, so none of it counts.
        """
        self.cut(whole=True)
        steps = self._steps
        names = steps.below(branch)
        if names is None:
            self._forget_blocks(to)
        elif again:
            self._rolled -= names
            self._undone.rolled -= names
        else:
            self._rolled |= names
            self._undone.rolled |= names
        bodies = steps.bodies()
        kept = {e.fingerprint for e in steps.own if e.number <= to and e.is_settled}

        def is_after(entry: Entry) -> bool:
            if names is not None and entry.branch not in names:
                return False
            return not any(outer.fingerprint in kept for outer in around(entry, bodies))

        # What this run never came to lies after all that it did.
        own = [entry for entry in steps.own if entry.number > to and is_after(entry)]
        rest = [entry for entry in steps.older.values() if is_after(entry)]
        self._let_go(lambda _: True, own, rest)
        if names is None or again:  # the run stops there: what was undone is not replayed
            for entry in (*own, *rest):
                entry.past = entry.past or (entry.undone and entry.undoes is None)

    def begun_anew(self, names: set[str]) -> None:
        """Branches are run again: what was undone of them before that no longer counts."""
        self._undone.rolled -= names - self._rolled

    def mark_calls(self) -> None:
        """What the body of a step had called is undone with it: its plan stands for that."""
        if not self._undone.done:
            return
        bodies = self._steps.bodies()
        taken = {f for f, e in bodies.items() if e.undone and self._was_undone(e)}
        for entry in self._steps:
            if any(outer.fingerprint in taken for outer in around(entry, bodies)):
                entry.undone, entry.abandoned = True, False

    def _mark(self, entry: Entry | None) -> None:
        """A step holds no longer, nor how its branch came back, which it did with what is gone."""
        while entry is not None and not entry.undone:
            entry.undone = True
            self._cut_at(entry)
            entry = self._steps.joins.get(entry.branch)

    def _cut_at(self, entry: Entry) -> None:
        first = self._cuts.get(entry.branch, entry.position)
        self._cuts[entry.branch] = min(first, entry.position)
        seat = _recorded(entry)
        self._seats[entry.branch] = min(self._seats.get(entry.branch, seat), seat)

    def _standing(self) -> set[str]:
        """The fingerprints of the steps in whose bodies something was changed that stands."""
        bodies = self._steps.bodies()
        found: set[str] = set()
        for entry in bodies.values():
            writes = (entry.kind, entry.effect) == ("tool", "write") and entry.undoes is None
            if not (writes and entry.has_effect and entry.branch):
                continue
            outers = list(around(entry, bodies))
            if not any(outer.undone and self._was_undone(outer) for outer in outers):
                found.update(outer.fingerprint for outer in outers)
        return found

    def _was_undone(self, entry: Entry) -> bool:
        """Whether a step was undone itself, and all that its body had called with it."""
        return (entry.run, entry.step) in self._undone.done

    def _forgotten(self, seats: Mapping[str, Seat]) -> set[str]:
        """The branches with no effect left that were begun after what was undone around them.

        `seats` gives, by branch, the seat of the first step that was undone there.
        """
        began: dict[str, Seat] = {}
        kept: set[str] = set()
        for entry in self._steps:
            if entry.undoes is not None or entry.past:
                continue
            branch, seat = entry.branch, _recorded(entry)
            while "/" in branch or branch[:1] not in ("", "#"):
                began[branch] = min(began.get(branch, seat), seat)
                if entry.kind == "tool" and entry.has_effect:
                    kept.add(branch)
                branch = branch.rpartition("/")[0]
        names: set[str] = set()
        for branch, seat in began.items():
            cut = seats.get(branch.rpartition("/")[0])
            if cut is not None and seat > cut and branch not in kept:
                names |= self._steps.below(branch) or set()
        return names

    def _forget_blocks(self, to: int) -> None:
        """What was undone whole after step `to` no longer counts: the run stops before it."""
        steps = self._steps
        own = {entry.branch for entry in steps.own}
        later = {entry.branch for entry in steps.own if entry.number > to}
        later |= {entry.branch for entry in steps.older.values() if entry.branch not in own}
        rolled = self._undone.rolled
        tops = {outermost(name, rolled) for name in later & rolled}
        gone = {name for name in rolled if outermost(name, rolled) in tops}
        rolled -= gone
        for entry in steps:
            if entry.branch in gone and entry.undone:
                entry.past = True

    def _let_go(
        self, is_after: Callable[[Entry], bool], own: list[Entry], older: list[Entry]
    ) -> None:
        """Of what holds no longer, effects are left behind; the rest is as if undone."""
        standing = self._standing()
        for entry in (*own, *older):
            if entry.undone or entry.undoes is not None or not is_after(entry):
                continue
            if entry.kind == "tool" and entry.effect == "pure":
                continue
            _let_go(entry, standing)


def outermost(branch: str, rolled: Container[str]) -> str:
    """The block that a branch was undone with; `rolled` are the branches that were undone whole."""
    while (outer := branch.rpartition("/")[0]) in rolled:
        branch = outer
    return branch


def holds_anywhere(entry: Entry) -> bool:
    """Whether a step may be given back in any world."""
    return entry.kind == "model" or (entry.kind == "tool" and entry.effect == "pure")


def _recorded(entry: Entry) -> Seat:
    """The place of a step in the order of what was recorded last.

    What the newest trace did not come to again lies after all that it did.
    """
    return -entry.generation, entry.group


def _let_go(entry: Entry, standing: Container[str] = ()) -> None:
    """A step holds no longer: its effect, its own or of a call in its body, is left behind.

    `standing` are the fingerprints of the steps in whose bodies such calls were made.
    """
    writes = entry.kind == "tool" and (entry.effect == "write" or entry.fingerprint in standing)
    if (writes and entry.has_effect) or entry.half_done:
        entry.abandoned = True
    else:
        entry.undone = True
