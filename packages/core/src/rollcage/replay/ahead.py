"""The recorded steps that nobody has asked for: what a framework's own memory may hold of them.

A framework with a memory (a checkpointer, a saved state) goes on by itself where it was, and never
asks for what its history shows as answered. Those steps are *seen*: they are used up in their
recorded order, as if they had been asked for. Which they are is decided here; nothing does I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Protocol

from rollcage.replay.path import Entry
from rollcage.replay.recording import Recording

__all__ = ["Ahead", "Memory", "Place", "Standing", "family"]


Place = tuple[str, str]
"""Where a step stands in a framework's memory: conversation and checkpoint."""


class Standing(Protocol):
    """Where a framework stands, in a memory of its own that outlives the process.

    Attributes:
        conversation: the thread that it goes on with.
        checkpoint: the place in it; opaque, but the same wherever the same work is done again.
        at_once: what names the work that is done together with that of this place, by others; empty
            where nobody can tell.
    """

    @property
    def conversation(self) -> str:
        """See above."""
        ...

    @property
    def checkpoint(self) -> str:
        """See above."""
        ...

    @property
    def at_once(self) -> str:
        """See above."""
        ...

    def is_beside(self, checkpoint: str) -> bool:
        """Whether a recorded step's place is of work that is done together with that of this."""
        ...

    def held(self, places: Iterable[Place]) -> frozenset[Place]:
        """Of the places of recorded steps, in their order, those that the memory holds as done."""
        ...

    async def aheld(self, places: Iterable[Place]) -> frozenset[Place]:
        """The same, where the memory has to be awaited."""
        ...


class Memory(Protocol):
    """A framework's own memory, as its adapter reads it. See `Session.follow`."""

    def here(self) -> Standing | None:
        """Where the framework stands in this context; None outside of it, or without a memory."""
        ...


def family(branch: str) -> str:
    """The step inside of whose body a branch is, as the name of that body's own; empty: of none."""
    return branch.partition("/")[0] if branch.startswith("#") else ""


class Ahead:
    """What of a recording nobody has asked for, in its recorded order."""

    def __init__(self, recording: Recording | None) -> None:
        self._left: list[Entry] = []
        self._first = 0
        self._given: Counter[tuple[str, str]] = Counter()
        if recording is not None:
            self._load(recording)

    def _load(self, recording: Recording) -> None:
        held = {id(entry) for path in recording.paths.values() for entry in path.entries}
        held |= {id(entry) for queue in recording.models.values() for entry in queue}
        held |= {id(entry) for entry in recording.pure.values()}
        self._left = [
            entry
            for entry in recording.entries
            if id(entry) in held and entry.status in ("ok", "error") and not entry.used
        ]

    def __bool__(self) -> bool:
        left = self._left
        while self._first < len(left) and left[self._first].used:
            self._first += 1
        return self._first < len(left)

    def give(self, conversation: str, call_id: str) -> None:
        """A call of this id was asked for, or seen."""
        if call_id and self._left:
            self._given[conversation, call_id] += 1

    def places(self, inside: str) -> Iterator[Place]:
        """The places of what is left of the steps of some body (see `family`), in order."""
        last: Place = ("", "")
        for entry in self._of(inside):
            place = entry.conversation, entry.checkpoint
            if entry.checkpoint and place != last:
                last = place
                yield last

    def at(
        self, places: Container[Place], inside: str, came_back: Callable[[str], bool]
    ) -> Iterator[Entry]:
        """The steps at places that a memory holds as done; each is to be used up before the next.

        Args:
            places: those places.
            inside: see `family`: the steps of which bodies.
            came_back: whether a branch of this name was opened for such steps, and is used up.
        """
        for entry in self._of(inside):
            if entry.kind == "branch":
                if came_back(entry.name):
                    yield entry
            elif entry.checkpoint and (entry.conversation, entry.checkpoint) in places:
                yield entry

    def answered(self, ids: Iterable[str], conversation: str, inside: str) -> Iterator[Entry]:
        """The steps that a history of messages holds; each is to be used up before the next.

        Args:
            ids: of the calls that it shows as answered, as often as it does. An id that the
                session has given as often is that of another call.
            conversation: whose history it is.
            inside: see `family`: the steps of which bodies.
        """
        shown = Counter(ids)
        before: list[Entry] = []  # answers of models, which a seen step came after
        for entry in self._of(inside):
            if entry.conversation != conversation or entry.checkpoint or entry.kind == "branch":
                continue
            if entry.kind == "model":
                before.append(entry)
            elif shown[entry.call_id] > self._given[conversation, entry.call_id]:
                yield from (each for each in before if each.branch == entry.branch)
                before.clear()
                yield entry
            elif entry.call_id and entry.call_id not in shown:
                return  # a history has no holes: nor does it hold what came later

    def _of(self, inside: str) -> Iterator[Entry]:
        if not self:
            return
        for at in range(self._first, len(self._left)):
            entry = self._left[at]
            if not entry.used and family(entry.branch) == inside:
                yield entry
