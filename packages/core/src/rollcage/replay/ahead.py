"""The recorded steps that nobody has asked for: what a framework's own memory may hold of them.

A framework with a memory (a checkpointer, a saved state) goes on by itself where it was, and never
asks for what its history shows as answered. Those steps are *seen*: they are used up in their
recorded order, as if they had been asked for. Which they are is decided here; nothing does I/O.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Final, NamedTuple, Protocol

from rollcage.replay.path import Entry
from rollcage.replay.recording import Recording

__all__ = ["Ahead", "Histories", "Memory", "Spot", "Standing", "WorkAttempt", "family"]


_HALTS: Final = frozenset(
    {"approval_required", "diverged", "halted", "not_replayable", "outcome_unknown", "replay_miss"}
)
Histories = Mapping[str, Collection[str]]
"""By conversation, the ids of the calls that its history shows as answered, as often as it does."""

Spot = tuple[str, str]
"""Where a step stands in a framework's memory: conversation and checkpoint."""


class WorkAttempt(NamedTuple):
    """One run of a piece of work (a node, a task) that a framework may start over.

    Attributes:
        work: names it: the same in each attempt, and another for other work.
        path: its name, and those of the works around it that have names, from the outermost: the
            same where those are started over, and make other works of the same names.
        by: what has begun the attempt: the same object for all that are retries of one another;
            another one where the framework went on from its memory.
        number: distinguishes retries.
    """

    work: str
    path: tuple[str, ...]
    by: object
    number: int


class Standing(Protocol):
    """Where a framework stands, in a memory of its own that outlives the process.

    Attributes:
        conversation: the thread that it goes on with.
        checkpoint: the place in it; opaque, but the same wherever the same work is done again.
        at_once: what names the work that is done together with that of this place, by others; empty
            if that is unknown.
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

    def held(self, places: Iterable[Spot]) -> frozenset[Spot]:
        """Of the places of recorded steps, in their order, those that the memory holds as done."""
        ...

    async def aheld(self, places: Iterable[Spot]) -> frozenset[Spot]:
        """The same, where the memory has to be awaited."""
        ...


class Memory(Protocol):
    """A framework's own memory, as its adapter reads it. See `Session.follow`."""

    def here(self) -> Standing | None:
        """Where the framework stands in this context; None outside of it, or without a memory."""
        ...

    def attempts(self) -> Sequence[WorkAttempt]:
        """The pieces of work around this context, from the outermost; none if that is unknown.

        What a call came to in an earlier attempt of this session is what it comes to again.
        """
        ...

    def waits(self) -> str | None:
        """What the framework waits for, in a few words, as the session is left; None: nothing.

        Asked where the session ends well: what waits, ends it `paused`.
        """
        ...

    async def awaits(self) -> str | None:
        """The same, where the session is left in asyncio."""
        ...


def family(branch: str) -> str:
    """The step inside of whose body a branch is, as the name of that body's own; empty: of none."""
    return branch.partition("/")[0] if branch.startswith("#") else ""


class Ahead:
    """What of a recording nobody has asked for, in its recorded order.

    The recording is looked through when a memory is first asked about: most runs have none.
    """

    def __init__(self, recording: Recording | None) -> None:
        self._recording = recording  # until it was looked through
        self._used: set[Entry] = set() if recording is None else recording.taken.used
        self._left: list[Entry] = []
        self._unknown: list[Entry] = []  # no memory knows of these, but their place counts
        self._first = 0
        self._given: Counter[tuple[str, str]] = Counter()
        self._answers: Counter[tuple[str, str]] = Counter()  # recorded ones, and what has none
        self._unanswered: dict[tuple[str, str], Entry] = {}

    def _look(self) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        held = {
            id(entry)
            for path in recording.paths.values()
            for entry in path.entries
            if path.was_undone or not entry.abandoned
        }
        held |= {id(entry) for queue in recording.models.values() for entry in queue}
        held |= {id(entry) for entry in recording.pure.values()}
        self._left = [
            entry
            for entry in recording.entries
            if id(entry) in held and entry not in self._used
            if entry.status in ("ok", "error") or _refused(entry)
        ]
        self._unknown = [
            entry
            for entry in recording.entries
            if id(entry) in held and entry.status == "unknown" and entry.checkpoint
        ]
        for entry in recording.entries:
            call = entry.conversation, entry.call_id
            halted = entry.status == "blocked" and entry.outcome.get("code") in _HALTS
            if entry.call_id and (halted or (entry.status == "unknown" and entry.has_effect)):
                self._unanswered[call] = entry
            elif entry.call_id and entry.status in ("ok", "error"):
                self._answers[call] += 1
        if not self._left and not self._unanswered:
            self._given.clear()

    @property
    def recorded(self) -> bool:
        """Whether there is anything that a history could say something of."""
        return bool(self) or bool(self._unanswered)

    def __bool__(self) -> bool:
        """Whether there is anything."""
        self._look()
        left = self._left
        while self._first < len(left) and left[self._first] in self._used:
            self._first += 1
        return self._first < len(left)

    @property
    def has_places(self) -> bool:
        """Whether `places` has any, of whichever body."""
        return bool(self) or any(entry not in self._used for entry in self._unknown)

    def left(self) -> Iterator[Entry]:
        """What is left that was asked for in no other step's body, in the recorded order."""
        self._look()
        for entry in itertools.islice(self._left, self._first, None):
            if entry in self._used or entry.kind == "branch" or family(entry.branch):
                continue
            if entry.status != "blocked":
                yield entry

    def give(self, conversation: str, call_id: str) -> None:
        """A call of this id was asked for, or seen."""
        if call_id and (self._left or self._unanswered or self._recording is not None):
            self._given[conversation, call_id] += 1

    def places(self, inside: str) -> Iterator[Spot]:
        """The places of what is left of the steps of some body (see `family`), in order.

        Behind them stand those of the steps of unknown outcome: whether the superstep of one was
        lost, or is done at once with another, is found out with the rest.
        """
        self._look()
        last: Spot = ("", "")
        unknown = (e for e in self._unknown if e not in self._used and family(e.branch) == inside)
        for entry in itertools.chain(self._of(inside), unknown):
            place = entry.conversation, entry.checkpoint
            if entry.checkpoint and place != last:
                last = place
                yield last

    def at(
        self, places: Container[Spot], inside: str, came_back: Callable[[str], bool]
    ) -> Iterator[Entry]:
        """The steps at places that a memory holds as done; each is to be used up before the next.

        Calls that were refused in a branch are among them: it was there, if nothing else was done.

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

    def answered(self, histories: Histories, inside: str) -> Iterator[Entry]:
        """The steps that histories of messages hold; each is to be used up before the next.

        An id that the session has given as often as a history shows it is that of another call.

        Args:
            histories: see `Histories`.
            inside: see `family`: the steps of which bodies.
        """
        shown = {conversation: Counter(ids) for conversation, ids in histories.items()}
        before: list[Entry] = []  # answers of models, which a seen step came after
        for entry in self._of(inside):
            ids = shown.get(entry.conversation)
            if ids is None or entry.checkpoint or entry.kind == "branch":
                continue
            call = entry.conversation, entry.call_id
            if entry.kind == "model":
                before.append(entry)
            elif ids[entry.call_id] > self._given[call]:
                along = entry.branch, entry.conversation
                yield from (e for e in before if (e.branch, e.conversation) == along)
                before = [e for e in before if e not in self._used]
                yield entry
            elif entry.call_id and entry.call_id not in ids:
                del shown[entry.conversation]  # a history has no holes
                if not shown:
                    return

    def contradicted(self, histories: Histories) -> Entry | None:
        """A recorded call without an answer that a history shows as answered, if there is one."""
        self._look()
        for conversation, ids in histories.items():
            for call_id, count in Counter(ids).items():
                call = conversation, call_id
                entry = self._unanswered.get(call)
                if entry is not None and not self._given[call] and count > self._answers[call]:
                    return entry
        return None

    def _of(self, inside: str) -> Iterator[Entry]:
        """What is left of some body; see `family`."""
        if not self:
            return
        for at in range(self._first, len(self._left)):
            entry = self._left[at]
            if entry not in self._used and family(entry.branch) == inside:
                yield entry


def _refused(entry: Entry) -> bool:
    """Whether a call was refused in a branch, and a framework can have gone on after it."""
    if entry.status != "blocked" or not entry.branch or not entry.checkpoint:
        return False
    return entry.outcome.get("code") not in _HALTS
