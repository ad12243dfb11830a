"""The recorded effects that nobody has asked for, and in which branches and bodies they are.

What a new write would leave behind is an orphan. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rollcage.replay.frontier import is_fork
from rollcage.replay.path import Entry, Path
from rollcage.replay.recording import Recording
from rollcage.replay.steps import branches_below
from rollcage.replay.world import Branch

__all__ = ["Orphans"]


class Orphans:
    """Knows which recorded effects nobody has asked for.

    Args:
        recording: what is recorded; None where nothing is.
        branches: those of the run that are open, by name.
    """

    def __init__(self, recording: Recording | None, branches: Mapping[str, Branch]) -> None:
        self._recording = recording
        self._branches = branches
        self._ended_bodies: list[Path] = []  # what nobody asks for any more, if anything is left

    def left(self) -> list[Entry]:
        """The recorded effects that the run has not asked for."""
        if self._recording is None:
            return []
        return [
            entry
            for name, path in self._recording.paths.items()
            if path.ahead and (name in self._branches or not name.startswith("#"))
            for entry in path.left()
        ]

    def in_siblings(self, name: str, path: Path | None) -> bool:
        """Whether effects are recorded, and not taken yet, of branches forked off the same one.

        Or of how they came back, in the `path` of that one.
        """
        if self._recording is None:
            return False
        if path is not None and path.ahead and any(e.kind == "branch" for e in path.left()):
            return True
        around = name.rpartition("/")[0]
        return any(
            other.ahead and _is_sibling(each, name, around)
            for each, other in self._recording.paths.items()
        )

    def unopened(self, name: str) -> list[Entry]:
        """The recorded effects of unopened branches next to this one, or below it.

        A branch that was renamed would do all of it again. One that was opened before has kept
        its name.
        """
        recording = self._recording
        if recording is None:
            return []
        paths, forks = recording.paths, recording.forks
        around = [name]
        if is_fork(name) and name not in paths and name not in recording.opened:
            around.append(name.rpartition("/")[0])
        return [
            entry
            for parent in around
            for other in forks.get(parent, ())
            if paths[other].ahead and other not in self._branches and not other.startswith("#")
            if not self._may_be_opened(other, name)
            for entry in paths[other].left()
        ]

    def after(self, name: str) -> list[Entry]:
        """The recorded effects of the branches that come after this one, and nobody asked for."""
        if self._recording is None or not self._recording.after:
            return []
        paths, after = self._recording.paths, self._recording.after
        here = {name}
        while "/" in name:
            name = name.rpartition("/")[0]
            here.add(name)
        later: set[str] = set()
        for other, before in after.items():  # in the order in which they were opened
            if not here.isdisjoint(before) or not later.isdisjoint(before):
                later.add(other)
        return [
            entry
            for other, path in paths.items()
            if path.ahead and _is_in(other, later)
            for entry in path.left()
        ]

    def body_ended(self, fingerprint: bytes) -> None:
        """The body of a step has ended: nobody asks any more for what is recorded inside of it."""
        recording = self._recording
        waiting = [f"#{fingerprint.hex()}"]
        while recording is not None and waiting:
            name = waiting.pop()
            path = recording.paths.get(name)
            if path is not None and path.ahead:
                self._ended_bodies.append(path)
            waiting += recording.forks.get(name, ())

    def in_ended_bodies(self) -> list[Entry]:
        """The recorded effects in bodies that were entered again, and no longer did them."""
        return [each for path in self._ended_bodies for each in path.left()]

    def inside_of(self, orphans: Collection[Entry]) -> list[Entry]:
        """The recorded effects in branches that came back in these, in bodies of scopes, and below.

        The body of any other step is part of that step's recorded effect.
        """
        if self._recording is None:
            return []
        names: set[str] = set()
        for entry in orphans:
            if entry.kind == "branch" or entry.effect == "scope":
                names |= branches_below(_below(entry), self._recording.entries) or set()
        return [
            entry
            for name, path in self._recording.paths.items()
            if path.ahead and name in names
            for entry in path.left()
            if entry not in orphans
        ]

    def _may_be_opened(self, other: str, name: str) -> bool:
        """Whether a sibling of this branch was opened in the turn that opened this.

        It has to be the next one of its name there.
        """
        turn = self._branches[name].forked_in if name in self._branches else None
        (around, _, own), (here, _, this) = other.rpartition("/"), name.rpartition("/")
        if turn is None or here != around:
            return False
        plain, _, count = own.partition("#")
        following = self._branches[here].forks.get(plain, 0) + 1
        return int(count or 1) == following and turn.may_open(plain, this.partition("#")[0])


def _below(entry: Entry) -> str:
    """The branch that came back with a step, or in which its body has called."""
    return entry.name if entry.kind == "branch" else f"#{entry.fingerprint}"


def _is_in(branch: str, names: set[str]) -> bool:
    """Whether a branch is one of these, or was forked off one."""
    return branch in names or any(branch.startswith(f"{name}/") for name in names)


def _is_sibling(branch: str, other: str, around: str) -> bool:
    """Whether a branch was forked off the same one (`around`) as the other, or in such a one."""
    if not is_fork(branch) or branch == other or branch.startswith(f"{other}/"):
        return False
    return branch.startswith(f"{around}/") if around else not branch.startswith("#")
