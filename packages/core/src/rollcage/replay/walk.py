"""Walk along the recorded steps of a branch, and find the step that answers a call.

`look` decides and changes nothing, however often it is asked; `move` and `take` apply the decision.
Nothing is hashed before a new step needs a world.

**Following.** At its position, a branch has a batch of writes: ended writes, running writes, and
recorded writes still to come. While calls of any turn match writes still to come, the batch stays
open. When the whole recorded batch is used up and no write is running, the next position begins. A
write without an answer joins the batch of its own turn. A write of another turn closes the batch,
and leaves the recorded path if recorded writes were still to come.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rollcage.fingerprint.identity import next_world
from rollcage.trace.run import CHANGES, Run, Step

__all__ = ["FOLDS", "REOPENS", "STAYS", "Branch", "Look", "Turn"]

STAYS: Final = 0
FOLDS: Final = 1  # the call closes the batch, and stands at the next position
REOPENS: Final = -1  # the call continues the previous batch, which a crash cut

_tuple: Final = tuple.__new__  # makes a named tuple without a call of Python's

_OPENED: Final = (  # left alone by an undo
    "_run", "_seed", "_users", "beside", "ends", "exited", "name", "ok", "open_turn", "opened_in",
    "opening", "outer", "preparing", "running", "was",
)  # fmt: skip


_Asked = dict[str, tuple["Turn", int]]  # by key, the last turn that asked for it, and its rank


class Turn:
    """Hold the calls that one message issued together.

    Attributes:
        n: the number in the run; 0 until the turn's first line.
        slots: how many slots its calls have taken.
        starts: by branch, the position at which the turn began there.
        opens: by name, the branches that the turn will open, with the branches on which each
            depends.
        follows: the recorded turns whose steps have answered calls of this turn.
        ranks: by branch and key, the rank among the turns that asked for the key in a world, where
            another turn has asked for it since.
        calls: the calls of the message by slot, each a tool's name and its arguments, as the
            framework has them; None if unknown.
        arrived: the keys of the calls that have arrived, by declared slot.
    """

    __slots__ = ("arrived", "calls", "follows", "n", "opens", "ranks", "slots", "starts")

    def __init__(self, opens: dict[str, frozenset[str]] | None = None) -> None:
        self.n = self.slots = 0
        self.starts: dict[str, int] = {}
        self.opens = opens or {}
        self.follows: frozenset[int] = _NONE
        self.ranks: dict[tuple[str, str], tuple[_Asked, int]] | None = None
        self.calls: Sequence[tuple[str, Any]] | None = None
        self.arrived: dict[int, str] = {}

    def has_moved(self, recorded: int, slot: int) -> bool:
        """Tell whether a call of this message was recorded in a slot that has another call now."""
        calls = self.calls
        if calls is None or slot >= len(calls):
            return False
        return recorded >= len(calls) or calls[recorded] != calls[slot]


class Look(NamedTuple):
    """Describe the recorded answer to a call.

    Attributes:
        step: the recorded step that answers the call; None without one.
        start: the position at which the call's turn began in this branch.
        move: the effect of the call's arrival on the batch: `STAYS`, `FOLDS` or `REOPENS`.
    """

    step: Step | None
    start: int
    move: int


_NONE: Final[frozenset[Any]] = frozenset()
_NOWHERE: Final[Mapping[Any, Any]] = {}


class Branch:
    """Hold an attempt's position in a branch.

    Attributes:
        pos: the current position.
        batch: the steps of the current batch that have ended or were used up.
        turn: the turn of the batch.
        running: how many writes and blocks are running or waiting.
        preparing: how many arrived calls are in preparation before they may begin.
        left_at: the position at which the branch left the recorded path; None while it follows.
        open_turn: the turn of the running or prepared calls; a call without a turn joins it.
        opening: of a block, the step that opened the branch; `outer` is the branch around it.
        was: the recorded state of the block: `new`, `cut` or `whole`.
        ends: the last worlds of the branches on which this branch depends.
        opened_in: the turn in which the block was opened.
        beside: whether that turn had begun the batch when the block was opened, or the block was
            recorded: then recorded siblings may still come.
        exited: whether the block has been left; the branch is joined once nothing runs in it.
        ok: whether the block was left without an error.
        unrecorded: the last turn whose first call here was a new one.
    """

    def __init__(
        self,
        name: str,
        seed: bytes,
        run: Run,
        users: dict[int, Turn],
    ) -> None:
        self.name, self.pos = name, 0
        self._run, self._users = run, users
        self._seed = self._world = seed
        self._folded: list[list[Step]] = []
        self._hashed = 0  # how many of the folded batches are in `_world`
        self._folded_turn: Turn | None = None  # whose batch was folded when all of it was used up
        self.batch: list[Step] = []
        self.turn: Turn | None = None
        self.unrecorded: Turn | None = None
        self.open_turn: Turn | None = None
        self.running = self.preparing = 0
        self.left_at: int | None = None
        self._asked: _Asked = {}  # in this world; it holds no turn that another one came after
        self._writes: Mapping[int, dict[str, deque[Step]]] = _NOWHERE
        self._to_come: Mapping[int, list[Step]] = _NOWHERE
        self._reads: Mapping[str, deque[Step]] = _NOWHERE
        self.opening: Step | None = None
        self.outer: Branch | None = None
        self.was = ""
        self.ends: frozenset[str] = _NONE
        self.opened_in: Turn | None = None
        self.beside = self.exited = self.ok = False
        recorded = run.branches.get(name, ())
        self._has_recording = bool(recorded)
        if recorded:
            self._index(recorded)

    def _index(self, recorded: Sequence[Step]) -> None:
        """Sort its recorded steps by the place at which a call looks for them."""
        writes: dict[int, dict[str, deque[Step]]] = {}
        to_come: dict[int, list[Step]] = {}
        reads: dict[str, deque[Step]] = {}
        for step in sorted(recorded, key=_in_order):
            changes = step.changes
            if changes or self._goes_on(step):
                at = writes.setdefault(step.pos, {})
                at.setdefault(step.key, deque()).append(step)
                to_come.setdefault(step.pos, []).append(step)
            if not changes:
                reads.setdefault(step.key, deque()).append(step)
        self._writes, self._to_come, self._reads = writes, to_come, reads

    def _goes_on(self, step: Step) -> bool:
        """Tell whether a block failed before its first change, and may yet change something."""
        is_failed = step.effect == "branch" and step.status == "error"
        return is_failed and self._run.goes_on(step)

    @classmethod
    def of(cls, run: Run, name: str, seed: bytes, users: dict[int, Turn]) -> Branch:
        """Stand before the first step of a branch that this attempt has not used up.

        Args:
            run: the run.
            name: the name of the branch.
            seed: the world in which the branch starts.
            users: by number of a recorded turn, the turn of this attempt that first used it.
        """
        branch = cls(name, seed, run, users)
        if any(step.taken for step in run.branches.get(name, ())):
            branch._pass_taken()
        return branch

    def _pass_taken(self) -> None:
        """Pass the used up batches: a framework has started this branch over."""
        while used := [
            step
            for steps in self._writes.get(self.pos, {}).values()
            for step in steps
            if step.taken and not step.passed
        ]:
            is_open = [s.status in ("unknown", "waiting") for s in used]
            if self.running and any(is_open):  # a block, or a call that waits
                self.batch = [s for s, still in zip(used, is_open, strict=True) if not still]
                self.turn = self.open_turn
                return
            self.batch = used
            if self.is_to_come(self.pos):
                self.turn = Turn()
                return
            self.fold()

    def rewind(self) -> None:
        """Go back to the last used up step that still holds: the later steps were undone."""
        kept = {name: getattr(self, name) for name in _OPENED}
        vars(self).clear()
        Branch.__init__(self, kept["name"], kept["_seed"], kept["_run"], kept["_users"])
        vars(self).update(kept)
        self._pass_taken()

    # --- worlds ----------------------------------------------------------------------------------

    def world(self) -> bytes:
        """Return the world at the current position."""
        folded = self._folded
        if self._hashed == len(folded):
            return self._world
        world = self._world
        for batch in folded[self._hashed :]:
            if batch:
                world = next_world(world, map(Step.link, batch))
        self._world, self._hashed = world, len(folded)
        return world

    def rehash(self) -> None:
        """Discard the hashed world, because the link of a step in it has changed."""
        self._world, self._hashed = self._seed, 0

    def fold(self, turn: Turn | None = None) -> None:
        """Close the batch and begin the next position.

        With recorded writes still to come, the branch leaves the recorded path.

        Args:
            turn: the turn whose batch was used up, if any.
        """
        may_leave = turn is None and self._to_come and self.left_at is None
        if may_leave and self.is_to_come(self.pos, effects=True):
            self.left_at = self.pos
        self._folded.append(self.batch)
        self.batch, self.turn, self._folded_turn = [], None, turn
        self.pos += 1
        if self._asked:
            self._asked = {}  # another one: ranks in the world before are void

    def _unfold(self, turn: Turn) -> None:
        self.batch = self._folded.pop()
        self.turn, self._folded_turn = turn, None
        self.pos -= 1
        if self._hashed > len(self._folded):
            self.rehash()

    def rank(self, key: str, turn: Turn) -> int:
        """Return the rank of a turn among the turns that asked for a key in this world."""
        asked = self._asked
        last = asked.get(key)
        if last is None:
            asked[key] = turn, 0
            return 0
        other, rank = last
        if other is turn:
            return rank
        place = self.name, key
        known = None if turn.ranks is None else turn.ranks.get(place)
        if known is not None and known[0] is asked:
            return known[1]
        if other.ranks is None:
            other.ranks = {}
        other.ranks[place] = asked, rank
        asked[key] = turn, rank + 1
        return rank + 1

    # --- looking ---------------------------------------------------------------------------------

    def is_to_come(self, pos: int, *, effects: bool = False) -> bool:
        """Tell whether recorded writes of a position are to come; `effects`: begun writes only."""
        steps = self._to_come.get(pos)
        if not steps:
            return False
        while steps and (steps[-1].taken or steps[-1].is_used):
            steps.pop()
        if effects:
            return any(
                not step.is_used and step.status != "waiting" and step.changes for step in steps
            )
        return bool(steps)

    def is_beyond(self, move: int) -> bool:
        """Tell whether a call with this effect on the batch stands behind the recorded path."""
        left = self.left_at
        if left is None and move == FOLDS and self.is_to_come(self.pos, effects=True):
            left = self.pos
        return left is not None and left < self.pos + move

    def look(self, key: str, effect: str, turn: Turn, slot: int | None) -> Look:
        """Return the recorded step that answers a call, and the call's place. Changes nothing.

        Args:
            key: the key of the call.
            effect: the effect of the call.
            turn: the turn of the call.
            slot: the slot, if the caller named one.
        """
        if not self._has_recording:
            folds = self.batch and self.turn is not turn and not self.running
            seen = self.pos + 1 if folds else self.pos
            start = min(turn.starts.get(self.name, seen), seen)  # an undo may have gone back
            return _tuple(Look, (None, start, FOLDS if folds else STAYS))
        pos, left, owner, move = self.pos, self.left_at, self.turn, STAYS
        changes = effect in CHANGES
        seen = pos
        if self.batch:
            if owner is not turn and not self.running:
                seen = pos + 1
                stays_open = left is None and self.is_to_come(pos)
                if stays_open and changes:
                    stays_open = self._write_at(pos, key, effect, turn, slot) is not None or (
                        effect == "branch"
                        and self._read_between(key, pos, seen, None, turn, slot) is not None
                    )
                if not stays_open:
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
        start = min(turn.starts.get(self.name, seen), seen)
        found = self._find(key, effect, turn, slot, start, pos, left, owner)
        return _tuple(Look, (found, start, move))

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
        """Return the write with a key at a position.

        Of the same slot, or else the first one whose own slot can't ask for it.
        """
        at = self._writes.get(pos)
        steps = None if at is None else at.get(key)
        if not steps:
            return None
        while steps and steps[0].is_used:
            steps.popleft()
        in_batch = self.turn is turn and pos == self.pos
        first = None
        for step in steps:
            if not step.is_open:
                continue
            if slot is None or not step.declared:  # it answers a call of any slot, in its order
                return first or step
            if self._is_later(step, first):
                break
            if step.slot == slot:
                return step
            if first is None and effect != "branch":
                is_free = turn.has_moved(step.slot, slot) or (
                    not in_batch and self._is_regrouped(step, turn)
                )
                first = step if is_free else None
        return first

    def _read_between(
        self, key: str, start: int, until: int, left: int | None, turn: Turn, slot: int | None
    ) -> Step | None:
        """Return the read with a key that holds between two positions, chosen likewise."""
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
                if first is None and self._users.get(step.turn, turn) is not turn:
                    return self._read_meanwhile(steps, step, start, until)
                return first or step
            if self._is_later(step, first):
                break
            is_regrouped = step.effect != "branch" and self._is_regrouped(step, turn)
            if step.slot == slot and not (
                is_regrouped and self._is_regrouped(step, turn, surely=True)
            ):
                return first if self._is_amid(first, step, turn) else step
            if is_regrouped or (step.effect != "branch" and turn.has_moved(step.slot, slot)):
                first = first or step
        return first

    def _read_meanwhile(self, steps: Sequence[Step], late: Step, start: int, until: int) -> Step:
        """The read of a later turn that was on record before this one; else this one.

        A turn of this attempt goes the way of its turn, and may still ask for it: the two turns
        went on at the same time.
        """
        for step in steps:
            if step.turn <= late.turn:
                continue
            if step.n > late.n:
                break
            holds = step.is_open and step.start <= until and step.reach >= start
            if holds and step.turn not in self._users:
                return step
        return late

    def _is_amid(self, first: Step | None, step: Step, turn: Turn) -> bool:
        """Tell whether the branch is amid the turn in which a read was recorded.

        It is, until the batch beside that read is used up: another read, which holds behind the
        batch only, is not asked for yet. It may be, behind a turn that is not recorded.
        """
        if first is not None and self.unrecorded not in (None, turn):
            return True
        pos = self.pos
        if first is None or not self.batch or first.start > pos or step.start <= pos:
            return False
        return self.left_at is None and self.is_to_come(pos)

    def _is_regrouped(self, step: Step, turn: Turn, *, surely: bool = False) -> bool:
        """Tell whether a step was recorded in another turn, although the turn asks for its key.

        Slots then mean nothing, and identical calls are answered in order. A turn that asks for the
        first time counts as the recorded turn: the call of the recorded slot may still come.

        Args:
            step: the step.
            turn: the turn.
            surely: a turn that follows an earlier attempt's turn may have gone on with this step.
        """
        user = self._users.get(step.turn)
        if user is not None and user is not turn:
            return True
        attempt = self._attempt(step.turn)
        others = [self._attempt(each) for each in turn.follows if each != step.turn]
        return attempt in others if surely else any(other <= attempt for other in others)

    def _is_later(self, step: Step, first: Step | None) -> bool:
        """Tell whether a step was recorded by a later attempt than another that answers as well.

        The other one would have answered before this one was recorded.
        """
        return first is not None and self._attempt_of(step) > self._attempt_of(first)

    def _attempt_of(self, step: Step) -> int:
        """Return the attempt in which a step was recorded, counted from 0."""
        return step.late[-1] if step.late else self._attempt(step.turn)

    def _attempt(self, turn: int) -> int:
        """Return the attempt in which a turn was recorded, counted from 0."""
        return bisect_left(self._run.last_turns, turn)

    # --- moving ----------------------------------------------------------------------------------

    def move(self, look: Look, turn: Turn) -> None:
        """Put a call at the place that a look has found."""
        if look.move == FOLDS:
            self.fold()
        elif look.move == REOPENS:
            self._unfold(turn)
        turn.starts[self.name] = look.start

    def use(self, step: Step, turn: Turn) -> None:
        """Move on by a recorded step that was taken as an answer."""
        self.follow(step, turn)
        if step.effect == "write" or step.changes:
            if not self.batch and not self.running:
                self.turn = turn
            self.batch.append(step)
            self._settle(turn)
        elif turn is self._folded_turn and step.start >= self.pos:
            self._folded_turn = None  # it holds behind the batch only, so the turn is past it

    def put_back(self, step: Step) -> None:
        """Mark a waiting write as still to come, because its call has been given up."""
        writes, to_come = dict(self._writes), dict(self._to_come)
        at = writes.setdefault(step.pos, {})
        at.setdefault(step.key, deque()).append(step)
        to_come.setdefault(step.pos, []).append(step)
        self._writes, self._to_come, self._has_recording = writes, to_come, True

    def follow(self, step: Step, turn: Turn) -> None:
        """Note that a turn follows a recorded turn."""
        if step.turn not in turn.follows:
            turn.follows |= {step.turn}
            self._users.setdefault(step.turn, turn)

    def begin(self, turn: Turn) -> None:
        """Count a write or block as running: it begins, goes on, or waits."""
        if not self.batch and not self.running:
            self.turn = turn
        self.open_turn = turn
        self.running += 1

    def end(self, step: Step | None) -> None:
        """Count a write or block as ended; None: the call did not happen."""
        self.running -= 1
        if step is not None and (step.effect == "write" or step.changes):
            self.batch.append(step)
        if self._to_come:
            self._settle(self.open_turn)

    def _settle(self, turn: Turn | None) -> None:
        """Fold a batch once all its recorded writes are used up and nothing is running.

        One more write of the turn that used up the batch opens the batch again.
        """
        if not self._to_come or not self.batch or self.running or self.left_at is not None:
            return
        if self.pos in self._to_come and not self.is_to_come(self.pos):
            self.fold(turn)


def _in_order(step: Step) -> tuple[int, int, int]:
    """Return the place of a step in the order of all turns and attempts."""
    late = step.late
    return (late[0], late[1], step.slot) if late else (step.turn, 0, step.slot)
