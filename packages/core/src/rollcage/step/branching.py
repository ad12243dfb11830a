"""Branches of a run are forked and joined: what is recorded of that, and what is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollcage.fingerprint.identity import key_digest, link
from rollcage.replay.ahead import Standing
from rollcage.replay.branches import Branches
from rollcage.replay.finding import Finder
from rollcage.replay.world import Turn, union
from rollcage.step import halts, journal
from rollcage.trace.constructors import Event, branch_forked

__all__ = ["Branching"]


class Branching:
    """Forks and joins the branches of one run.

    Args:
        run: its id.
        at: what a command line needs to find the store.
        branches: those of the run.
        finder: finds what is recorded.
        number: the next step's.
        is_fork: whether the run is a fork (see `rollcage.Fork`), which goes its own way.
    """

    def __init__(
        self,
        run: str,
        at: str,
        branches: Branches,
        finder: Finder,
        number: Callable[[], int],
        *,
        is_fork: bool,
    ) -> None:
        self._run = run
        self._at = at
        self._branches = branches
        self._finder = finder
        self._number = number
        self._is_fork = is_fork

    def fork(
        self,
        parent: str,
        name: str,
        turn: Turn | None,
        now: int,
        standing: Standing | None = None,
        after: Sequence[str] = (),
    ) -> tuple[str, Event]:
        """Start a branch off another one: its full name, and what is written of it.

        It begins after what was done in those that it comes `after`.
        """
        forked = self._branches.fork(parent, name, turn, standing, after)
        conversation, checkpoint = forked.at
        return forked.name, branch_forked(
            time=now,
            name=forked.name,
            branch=parent,
            turn=forked.turn.number,
            conversation=conversation,
            checkpoint=checkpoint,
            after=after,
        )

    def join(self, parent: str, name: str, turn: Turn | None, now: int) -> Event | None:
        """Join a branch: what it wrote becomes one write of its parent.

        Raises:
            Diverged: it was undone when it ran, and is not replayed as it was recorded.
        """
        child, branch = self._branches.named(name), self._branches.named(parent)
        self._branches.came_back(child)
        final = child.final_world()
        if final is None:
            return None
        turn = turn or self._branches.new_turn()
        start = branch.arrive(turn)[1]
        slot = turn.take_slot(None)
        key = key_digest("branch", name, "", b"")
        path, entry = branch.path, None
        if path is not None and child.at_path_end() and branch.may_follow(turn):
            entry = path.find(key.hex(), start, slot)
            if entry is not None and entry.digest != final.hex():
                entry = None
        # As it was, before it was undone.
        as_recorded = child.path is not None and child.path.was_undone
        if entry is None and as_recorded and not self._is_fork:
            raise halts.undone_branch(name, self._run, self._at)
        # What is recorded of branches that were open at the same time was recorded before this one
        # was joined, and still holds.
        leaves = (
            entry is None
            and not self._finder.orphans.in_siblings(name, path)
            and branch.leave_path(turn)
        )
        place = branch.place(turn, slot, key)
        place.since = min(place.since, child.forked_at)
        if entry is not None:
            assert path is not None
            if branch.following:
                place = union(place, entry)
            place.fingerprint = bytes.fromhex(entry.fingerprint)
            path.take(entry)
        event = journal.joined(
            self._number(),
            name,
            branch,
            place,
            key,
            final=final,
            now=now,
            leaves=leaves,
            entry=entry,
        )
        branch.replayed_write(turn, place.position, link(place.fingerprint, final))
        return event
