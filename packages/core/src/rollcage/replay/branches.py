"""The live branches and turns of a run: each branch, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rollcage.errors import SessionError
from rollcage.fingerprint.identity import branch_world, child_world, undo_world, world_zero
from rollcage.replay.ahead import Spot, Standing
from rollcage.replay.path import Path
from rollcage.replay.recording import Recording
from rollcage.replay.world import Branch, Turn

__all__ = ["Branches", "NewBranch"]


class NewBranch(NamedTuple):
    """A branch that was forked off another one.

    Attributes:
        name: its full name.
        parent: that of the other.
        turn: in which.
        at: the position of a framework with a memory by then: conversation and checkpoint.
    """

    name: str
    parent: str
    turn: Turn
    at: Spot


class Branches:
    """The branches of a run that are open, and its turns.

    Args:
        recording: what is recorded; None where nothing is.
        seed: of the first branch's world.
        strict: whether every tool step advances the world (`chain="all"`).
        turns: how many the run has already.

    Attributes:
        by_name: the branches.
        strict: see above.
        turns: how many turns the run has.
        undone: the steps (run, step) that were undone in this session.
    """

    def __init__(
        self, recording: Recording | None, seed: str, *, strict: bool, turns: int = 0
    ) -> None:
        self.by_name: dict[str, Branch] = {}
        self.undone: set[tuple[str, int]] = set()
        self.turns = turns
        self._recording = recording
        self.strict = strict
        self._undo_paths: dict[str, Path] = {}  # of what earlier undos did
        # Of the last call that brought no turn; and turns of what a framework does at once.
        self._implicit: tuple[Turn, Branch, str] | None = None
        self._turns_at: dict[tuple[str, str, int], Turn] = {}
        self._counts_at: dict[tuple[str, str], int] = {}
        self.open("", world_zero(seed), follows=True)

    # --- branches --------------------------------------------------------------------------------

    def open(self, name: str, world: bytes, *, follows: bool) -> Branch:
        """Open a branch that starts in a world; `follows`: along what is recorded of it."""
        path = self._undo_paths.get(name)
        if self._recording is not None and path is None:
            path = self._recording.paths.get(name) or Path(
                [], self._recording.taken, strict=self.strict
            )
            if name and follows:
                # A call that was refused is recorded without a world.
                begins = (each for each in path.entries if each.position == 0 and each.world)
                first = next(begins, None)
                if first is not None:
                    # Where it was forked inside a batch, this says how much of that was done.
                    world = bytes.fromhex(first.world)
        branch = Branch(name, world, path)
        branch.following = branch.following and follows
        self.by_name[name] = branch
        return branch

    def was_undone(self, name: str) -> bool:
        """Whether all that is recorded of this branch was undone when it ran."""
        return self._recording is not None and name in self._recording.rolled

    def replays_undone(self, name: str) -> bool:
        """Whether this branch is replayed as it was, for the run has gone on from its undo."""
        return self._recording is not None and name in self._recording.as_recorded

    def was_joined(self, name: str) -> bool:
        """Whether this branch is replayed up to here, and was joined when it ran."""
        if self._recording is None or not self.by_name[name].following:
            return False
        undone = self._recording.taken.undone
        return any(
            entry.kind == "branch" and entry.name == name
            for entry in self._recording.entries
            if not (entry.undone or entry.abandoned or entry.past or entry in undone)
        )

    def name_in(self, name: str, parent: tuple[str, bytes] | None) -> str:
        """The branch in which calls stand: inside of a step's body, one of its own.

        Or what was forked off that: there `name` is no longer the branch that the step stands in.
        `parent` is that branch's name, and the step's fingerprint.
        """
        if parent is None or name != parent[0]:
            return name
        name = f"#{parent[1].hex()}"
        if name not in self.by_name:
            self.open(name, child_world(parent[1]), follows=True)
        return name

    def fork(
        self,
        parent: str,
        name: str,
        turn: Turn | None,
        standing: Standing | None,
        after: Iterable[str] = (),
    ) -> NewBranch:
        """Start a branch off another one.

        It begins after what was done in those that it comes `after`: where one of these is not as
        it was recorded, nor is what comes after it.
        """
        branch = self.named(parent)
        turn = turn or self.new_turn()
        branch.arrive(turn)
        at = ("", "") if standing is None else (standing.conversation, standing.checkpoint)
        count = self._count_of(parent, name, at)
        count = count or self._next_count(parent, name, at, branch.forks.get(name, 0) + 1)
        branch.forks[name] = max(branch.forks.get(name, 0), count)
        own = _counted(name, count)
        full = f"{parent}/{own}" if parent else own
        others = [self._ended(each, parent, full) for each in after]
        ended = frozenset[bytes]().union(*(each.last_worlds() for each in others))
        follows = branch.may_follow(turn)  # other calls of the turn may have left the path by now
        follows = follows and all(each.as_recorded for each in others)
        fork = self.open(full, branch_world(branch.world, own, ended), follows=follows)
        branch.inside.append(full)
        fork.forked_at, fork.forked_in, fork.begins_after = branch.position, turn, ended
        opened = None if self._recording is None else self._recording.opened_after(full)
        if branch.path is not None and opened is not None:
            # It ran concurrently with what came to the other branch after it had been opened there.
            fork.forked_at = min(fork.forked_at, branch.path.position_at(opened))
        return NewBranch(full, parent, turn, at)

    def named(self, name: str) -> Branch:
        """The branch with this full name.

        Raises:
            SessionError: it was forked off one that has come back: see `came_back`.
        """
        branch = self.by_name.get(name)
        if branch is None:
            raise SessionError(
                f"the branch {name!r} has ended, and so has the one that it was forked off: no "
                f"call can be made in it any more"
            )
        return branch

    def came_back(self, branch: Branch) -> None:
        """A branch has ended: those that were forked off it are let go, for loops may have many.

        In a resumed run they stay: what is recorded is compared with what was opened.
        """
        branch.joined = True
        if self._recording is not None:
            return
        waiting, branch.inside = branch.inside, []
        while waiting:
            gone = self.by_name.pop(waiting.pop(), None)
            waiting += [] if gone is None else gone.inside

    def _ended(self, name: str, parent: str, full: str) -> Branch:
        """A branch that another one comes after."""
        found = self.by_name.get(name)
        if found is None or name.rpartition("/")[0] != parent or not found.joined:
            raise SessionError(
                f"the branch {full!r} can't come after {name!r}: that has to be a branch of the "
                f"same one, and its block has to have ended"
            )
        return found

    def _count_of(self, parent: str, name: str, at: Spot) -> int | None:
        """Which of the forks of a name one is that a framework with a memory makes again.

        Those that it made before, where it never comes back to, need not all be seen.
        """
        if self._recording is None or not at[1]:
            return None
        for known, place in self._recording.opened.items():
            around, _, own = known.rpartition("/")
            plain, _, count = own.partition("#")
            if place == at and (around, plain) == (parent, name) and known not in self.by_name:
                return int(count or 1)
        return None

    def _next_count(self, parent: str, name: str, at: Spot, count: int) -> int:
        """Which of the forks of a name one is that a framework with a memory makes anew.

        One that it made elsewhere, and in which nothing was done, it may never come back to.
        """
        recording = self._recording
        while recording is not None and at[1]:
            own = _counted(name, count)
            full = f"{parent}/{own}" if parent else own
            made = recording.opened.get(full, at)
            if made == at or not made[1] or recording.began(full) is not None:
                break
            count += 1
        return count

    def open_seen(self, name: str) -> Branch:
        """Open a branch that nobody has forked, for what is recorded in it."""
        parent, _, own = name.rpartition("/")
        around = self.by_name[parent]
        plain, _, count = own.partition("#")
        around.forks[plain] = max(around.forks.get(plain, 0), int(count or 1))
        return self.open(name, branch_world(around.world, own), follows=around.following)

    # --- turns -----------------------------------------------------------------------------------

    def new_turn(self, opens: Mapping[str, Collection[str]] = MappingProxyType({})) -> Turn:
        """The next turn, in which branches of these own names may be opened."""
        self.turns += 1
        return Turn(self.turns, opens)

    def implied_turn(self, branch: Branch, standing: Standing | None) -> Turn:
        """That of a call which brings none: its own, or that of the writes it overlaps with."""
        last, checkpoint = self._implicit, "" if standing is None else standing.checkpoint
        if last is not None and branch.busy and last[1:] == (branch, checkpoint):
            return last[0]
        turn = None if standing is None else self.turn_at(standing, branch.name)
        turn = turn or self.new_turn()
        self._implicit = turn, branch, checkpoint
        return turn

    def turn_at(self, standing: Standing | None, branch: str) -> Turn | None:
        """The turn of what a framework does at once: the first of each of those works, the second.

        None if it is unknown what is done at once.
        """
        if standing is None or not standing.at_once:
            return None
        place = branch, standing.checkpoint
        count = self._counts_at[place] = self._counts_at.get(place, 0) + 1
        key = branch, standing.at_once, count
        turn = self._turns_at.get(key)
        if turn is None:
            turn = self._turns_at[key] = self.new_turn()
        return turn

    # --- undo ------------------------------------------------------------------------------------

    def begin_undo(self, paths: dict[str, Path]) -> None:
        """An undo begins; `paths` say what earlier ones have done."""
        self._undo_paths = paths

    def undo_branch(self, fingerprint: str, attempt: int) -> str:
        """Open the branch in which a step is undone, from its start; its name."""
        name = f"#{fingerprint}#undo{attempt or ''}"
        self.open(name, undo_world(bytes.fromhex(fingerprint), attempt), follows=True)
        return name

    def mark_undone(self, run: str, step: int) -> None:
        """A step was undone: where its recording lies ahead, it holds no longer."""
        self.undone.add((run, step))
        if self._recording is not None:
            for path in self._recording.paths.values():
                path.mark_undone(run, step)

    def rewind(self) -> None:
        """What is recorded holds no longer: the world is not the one that it was recorded in."""
        if self._recording is None:
            return
        self._recording.models.clear()
        for name, path in self._recording.paths.items():
            branch = self.by_name.get(name)
            if branch is None:
                path.close()
            else:
                branch.leave_path(self.new_turn())


def _counted(name: str, count: int) -> str:
    """What the `count`-th fork of a name is called."""
    return name if count == 1 else f"{name}#{count}"
