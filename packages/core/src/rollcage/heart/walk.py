"""An attempt's walk along what is recorded of a branch: where it stands, and what answers a call.

`look` decides and changes nothing, however often it is asked; `move` and `take` follow it. Nothing
is hashed before a new step needs a world.

**Following.** At its position, a branch has a batch of writes: those that have ended, those that
run, and those that are recorded and still to come. While calls of any turn match writes that are
to come, the batch stays open. When all that is recorded of it is used up and nothing of it runs,
the next position begins. A write that nothing answers joins the batch of its own turn; one of
another turn closes it and, if recorded writes were still to come, leaves the recorded path there.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Final

from rollcage.fingerprint.identity import next_world
from rollcage.heart.run import CHANGES, Run, Step

__all__ = ["AT_REST", "FOLDS", "REOPENS", "STAYS", "Branch", "Look", "Turn"]

STAYS: Final = 0
FOLDS: Final = 1  # the call closes the batch, and stands at the next position
REOPENS: Final = -1  # it goes on with the batch before, which a crash cut


_OPENED: Final = (  # what an undo changes nothing of
    "_ends", "_seed", "_users", "beside", "ends", "exited", "name", "ok", "open_turn", "opened_in",
    "opening", "outer", "running", "was",
)  # fmt: skip


class Turn:
    """Calls that one message issued together.

    Attributes:
        n: its number in the run; 0 until its first line.
        slots: how many places its calls have been given.
        starts: by branch, the position at which it began there.
        opens: by name, the branches that are opened in it, with the names that each comes after.
        follows: the recorded turns whose steps have answered its calls.
    """

    __slots__ = ("follows", "n", "opens", "slots", "starts")

    def __init__(self, opens: dict[str, frozenset[str]] | None = None) -> None:
        self.n = self.slots = 0
        self.starts: dict[str, int] = {}
        self.opens = opens or {}
        self.follows: set[int] = set()


@dataclasses.dataclass(slots=True)
class Look:
    """What a look at the recording says of a call.

    Attributes:
        step: the recorded step that answers it; None if there is none.
        start: the position at which its turn began in this branch.
        move: `STAYS`, `FOLDS` or `REOPENS`: what its arrival does with the batch.
    """

    step: Step | None
    start: int
    move: int


AT_REST: Final = Look(None, 0, STAYS)
"""The look of a call that waits: it has its place."""


class Branch:
    """An attempt's place in a branch.

    Attributes:
        pos: the position where it stands.
        batch: the steps of the batch there that have ended, or were used up.
        turn: whose batch it is.
        running: how many of its writes and blocks are running, or wait.
        preparing: how many of its calls have arrived, and wait for something before they may begin.
        left_at: the position at which it left the recorded path; None if it follows it.
        open_turn: the turn of what runs or is prepared, which a call without a turn joins.
        opening: the step that opened the branch, if it is a block; `outer` is the branch around it.
        was: what was recorded of the block: `new`, `cut` or `whole`.
        ends: the last worlds of the branches that it comes after.
        opened_in: the turn in which it was opened.
        beside: whether that turn had begun the batch when the block was opened, or the block was
            recorded: then its recorded siblings may still come.
        exited: whether its block has been left; it is joined when nothing of it runs.
        ok: whether it was left well.
    """

    def __init__(
        self,
        name: str,
        seed: bytes,
        recorded: Sequence[Step],
        users: dict[int, Turn],
        ends: Sequence[int],
    ) -> None:
        self.name, self.pos = name, 0
        self._users, self._ends = users, ends
        self._seed = self._world = seed
        self._folded: list[list[Step]] = []
        self._hashed = 0  # how many of the folded batches are in `_world`
        self._folded_turn: Turn | None = None  # whose batch was folded when all of it was used up
        self.batch: list[Step] = []
        self.turn: Turn | None = None
        self.open_turn: Turn | None = None
        self.running = self.preparing = 0
        self.left_at: int | None = None
        self._asked: dict[str, dict[Turn, int]] = {}  # in this world, by key: each turn's rank
        self._writes: dict[int, dict[str, deque[Step]]] = {}
        self._to_come: dict[int, list[Step]] = {}
        self._reads: defaultdict[str, deque[Step]] = defaultdict(deque)
        self.opening: Step | None = None
        self.outer: Branch | None = None
        self.was = ""
        self.ends: frozenset[str] = frozenset()
        self.opened_in: Turn | None = None
        self.beside = self.exited = self.ok = False
        self._has_recording = bool(recorded)
        for step in sorted(recorded, key=_in_order):
            if step.changes:
                at = self._writes.setdefault(step.pos, {})
                at.setdefault(step.key, deque()).append(step)
                self._to_come.setdefault(step.pos, []).append(step)
            else:
                self._reads[step.key].append(step)

    @classmethod
    def of(cls, run: Run, name: str, seed: bytes, users: dict[int, Turn]) -> Branch:
        """Stand before the first step of a branch that this attempt has not used up.

        Args:
            run: the run.
            name: of the branch.
            seed: the world in which it starts.
            users: by its number, the turn of this attempt that a recorded turn was first used by.
        """
        recorded = run.branches.get(name, ())
        branch = cls(name, seed, recorded, users, run.last_turns)
        if any(step.taken for step in recorded):
            branch._pass_taken()
        return branch

    def _pass_taken(self) -> None:
        """Pass the batches that were used up: a framework has started this branch over."""
        while used := [s for q in self._writes.get(self.pos, {}).values() for s in q if s.taken]:
            if self.running and any(s.status == "unknown" for s in used):  # a block that is open
                self.batch = [s for s in used if s.status != "unknown"]
                self.turn = self.open_turn
                return
            self.batch = used
            if self.is_to_come(self.pos):
                self.turn = Turn()
                return
            self.fold()

    def rewind(self, recorded: Sequence[Step]) -> None:
        """Go back to where what was used up, and still holds, ends: the rest was undone."""
        kept = {name: getattr(self, name) for name in _OPENED}
        vars(self).clear()
        opened = (kept["name"], kept["_seed"], recorded, kept["_users"], kept["_ends"])
        Branch.__init__(self, *opened)
        vars(self).update(kept)
        self._pass_taken()

    # --- worlds ----------------------------------------------------------------------------------

    @property
    def world(self) -> bytes:
        """The world at its position."""
        folded = self._folded
        while self._hashed < len(folded):
            batch = folded[self._hashed]
            if len(batch) == 1:  # most have one write
                self._world = next_world(self._world, (batch[0].link,))
            elif batch:
                self._world = next_world(self._world, [step.link for step in batch])
            self._hashed += 1
        return self._world

    def rehash(self) -> None:
        """Have the world be hashed anew: the link of a step in it has changed."""
        self._world, self._hashed = self._seed, 0

    def fold(self) -> None:
        """Close the batch: the next position begins.

        Left with recorded writes still to come, the branch leaves the recorded path.
        """
        if self.left_at is None and self._to_come and self.is_to_come(self.pos, effects=True):
            self.left_at = self.pos
        self._go_on(None)

    def _go_on(self, turn: Turn | None) -> None:
        """Stand at the next position. `turn`: whose batch was used up, if it was."""
        self._folded.append(self.batch)
        self.batch, self.turn, self._folded_turn = [], None, turn
        self.pos += 1
        if self._asked:
            self._asked.clear()

    def _unfold(self, turn: Turn) -> None:
        self.batch = self._folded.pop()
        self.turn, self._folded_turn = turn, None
        self.pos -= 1
        if self._hashed > len(self._folded):
            self.rehash()

    def rank(self, key: str, turn: Turn) -> int:
        """The rank of a turn among those that asked for a key in this world."""
        ranks = self._asked.setdefault(key, {})
        return ranks.setdefault(turn, len(ranks))

    # --- looking ---------------------------------------------------------------------------------

    def is_to_come(self, pos: int, *, effects: bool = False) -> bool:
        """Whether recorded writes of a position are to come; `effects`: that have begun."""
        steps = self._to_come.get(pos)
        if not steps:
            return False
        while steps and (steps[-1].taken or steps[-1].is_used):
            steps.pop()
        if effects:
            return any(not step.is_used and step.status != "waiting" for step in steps)
        return bool(steps)

    def look(self, key: str, effect: str, turn: Turn, slot: int | None) -> Look:
        """Say which recorded step answers a call, and where the call stands. Changes nothing.

        Args:
            key: the call's.
            effect: of the call.
            turn: of the call.
            slot: the call's place in its turn, if the caller named it.
        """
        if not self._has_recording:
            folds = self.batch and self.turn is not turn and not self.running
            seen = self.pos + 1 if folds else self.pos
            start = turn.starts.get(self.name, seen)
            return Look(None, start, FOLDS if folds else STAYS)
        pos, left, owner, move = self.pos, self.left_at, self.turn, STAYS
        changes = effect in CHANGES
        seen = pos
        if self.batch:
            if owner is not turn and not self.running:
                seen = pos + 1
                follows = left is None and self.is_to_come(pos)
                if follows and changes:
                    follows = self._write_at(pos, key, effect, turn, slot) is not None or (
                        effect == "branch"
                        and self._read_between(key, pos, seen, None, turn, slot) is not None
                    )
                if not follows:
                    if left is None and self.is_to_come(pos, effects=True):
                        left = pos
                    pos, owner, move = pos + 1, None, FOLDS
        elif (
            changes
            and turn is self._folded_turn
            and not self.running
            and left is None
            and self._write_at(pos, key, effect, turn, slot) is None
            and not any(step.is_open and step.reach >= pos for step in self._reads.get(key, ()))
        ):
            pos, owner, move = pos - 1, turn, REOPENS
            seen = pos
        start = turn.starts.get(self.name, seen)
        return Look(self._find(key, effect, turn, slot, start, pos, left, owner), start, move)

    def _find(
        self,
        key: str,
        effect: str,
        turn: Turn,
        slot: int | None,
        start: int,
        pos: int,
        left: int | None,
        owner: Turn | None,
    ) -> Step | None:
        until = pos
        if self.batch and owner is not None and owner is not turn:
            until += 1
        if effect not in CHANGES:
            return self._read_between(key, start, until, left, turn, slot)
        found = None
        if left is None or (pos == left and owner is turn):
            found = self._write_at(pos, key, effect, turn, slot)
        if effect != "branch":
            return found
        unchanged = self._read_between(key, start, until, left, turn, slot)
        if found is None or unchanged is None:
            return found or unchanged
        return min(found, unchanged, key=_in_order)

    def _write_at(
        self, pos: int, key: str, effect: str, turn: Turn, slot: int | None
    ) -> Step | None:
        """The write of a key at a position: that of the same slot, else the first."""
        at = self._writes.get(pos)
        steps = None if at is None else at.get(key)
        if not steps:
            return None
        while steps and steps[0].is_used:
            steps.popleft()
        in_batch = self.turn is turn and pos == self.pos
        first = None
        for step in steps:
            if step.taken or not step.is_open:
                continue
            if slot is None or not step.declared:  # it answers a call of any slot, in its order
                return first or step
            if step.slot == slot:
                return step
            if first is None and effect != "branch" and not in_batch:
                first = step if self._is_regrouped(step, turn) else None
        return first

    def _read_between(
        self, key: str, start: int, until: int, left: int | None, turn: Turn, slot: int | None
    ) -> Step | None:
        """The first read of a key that holds between two positions, likewise."""
        steps = self._reads.get(key)
        if not steps:
            return None
        if left is not None:
            if start > left:
                return None
            until = min(until, left)
        while steps and steps[0].is_used:
            steps.popleft()
        first = None
        for step in steps:
            if not step.is_open or step.start > until or step.reach < start:
                continue
            if slot is None or not step.declared:  # it answers a call of any slot, in its order
                return first or step
            if first is not None and self._attempt(step.turn) > self._attempt(first.turn):
                break  # an earlier attempt's would have answered before this one was recorded
            if step.effect != "branch" and self._is_regrouped(step, turn):
                first = first or step
            elif step.slot == slot:
                return step
        return first

    def _is_regrouped(self, step: Step, turn: Turn) -> bool:
        """Whether a turn is not the one that a step was recorded in, though it asks for its key.

        Then slots say nothing, and identical calls are answered in order. A turn that asks for the
        first time is taken for the recorded one: the call of the recorded slot may still come.
        """
        user = self._users.get(step.turn)
        if user is not None and user is not turn:
            return True
        attempt = self._attempt(step.turn)
        return any(each != step.turn and self._attempt(each) <= attempt for each in turn.follows)

    def _attempt(self, turn: int) -> int:
        """The attempt that a turn was recorded in: the first is 0."""
        return bisect_left(self._ends, turn)

    # --- moving ----------------------------------------------------------------------------------

    def move(self, look: Look, turn: Turn) -> None:
        """Have a call stand where a look said that it does."""
        if look.move == FOLDS:
            self.fold()
        elif look.move == REOPENS:
            self._unfold(turn)
        turn.starts.setdefault(self.name, look.start)

    def use(self, step: Step, turn: Turn) -> None:
        """Move on by a recorded step that answers a call; it was taken."""
        turn.follows.add(step.turn)
        self._users.setdefault(step.turn, turn)
        if step.effect == "write" or step.changes:
            if not self.batch and not self.running:
                self.turn = turn
            self.batch.append(step)
            self._settle(turn)

    def put_back(self, step: Step) -> None:
        """Have a write that waits in the batch be to come again: nobody makes its call any more."""
        at = self._writes.setdefault(step.pos, {})
        at.setdefault(step.key, deque()).append(step)
        self._to_come.setdefault(step.pos, []).append(step)
        self._has_recording = True

    def follow(self, step: Step, turn: Turn) -> None:
        """Note that a turn goes the way of a recorded one."""
        turn.follows.add(step.turn)
        self._users.setdefault(step.turn, turn)

    def begin(self, turn: Turn) -> None:
        """Count a write or a block that begins, goes on, or waits."""
        if not self.batch and not self.running:
            self.turn = turn
        self.open_turn = turn
        self.running += 1

    def end(self, step: Step | None) -> None:
        """Count one that has ended; None if it did not happen."""
        self.running -= 1
        if step is not None and (step.effect == "write" or step.changes):
            self.batch.append(step)
        if self._to_come:
            self._settle(self.open_turn)

    def _settle(self, turn: Turn | None) -> None:
        """Fold a batch of which all that is recorded was used up and nothing runs.

        One more write of the turn that used it up opens it again.
        """
        if not self._to_come or not self.batch or self.running or self.left_at is not None:
            return
        if self.pos in self._to_come and not self.is_to_come(self.pos):
            self._go_on(turn)


def _in_order(step: Step) -> tuple[int, int]:
    return step.turn, step.slot
