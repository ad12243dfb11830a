"""The live world of a run: its turns, its branches, and how batches of writes move them on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from types import MappingProxyType

from rollcage.fingerprint.identity import fingerprint, next_world
from rollcage.replay.path import Entry, Path

__all__ = ["Branch", "Place", "Turn"]


class Turn:
    """The calls that one model message issued together.

    Slots are given in order of arrival, unless a call brings its own.
    """

    __slots__ = ("asking", "number", "opens", "slots", "starts", "worlds")

    def __init__(
        self, number: int, opens: Mapping[str, Collection[str]] = MappingProxyType({})
    ) -> None:
        self.number = number
        # The branches that are opened in it, by their own names, and those that each comes after.
        self.opens = opens
        self.slots = 0
        # by branch: its position, and its recorded path's, when the turn's first call arrived
        self.starts: dict[str, tuple[int, int]] = {}
        self.worlds: dict[str, bytes] = {}  # by branch: the world that it was in by then
        # By slot: a call whose probe is being asked; the later slots wait until that is known.
        self.asking: dict[int, Future[None]] = {}

    def may_open(self, name: str, other: str) -> bool:
        """Whether a branch is recorded as opened in it, and not after the `other` one."""
        waiting, seen = [name], {name}
        while waiting:
            before = set(self.opens.get(waiting.pop(), ())) - seen
            seen |= before
            waiting += before
        return name in self.opens and other not in seen

    def take_slot(self, wanted: int | None) -> int:
        """The slot of the next call."""
        slot = self.slots if wanted is None else wanted
        if slot >= self.slots:
            self.slots = slot + 1
        return slot

    def before(self, slot: int) -> Future[None] | None:
        """What a call of this slot has to wait for, if anything."""
        return next((asked for at, asked in self.asking.items() if at < slot), None)

    def asked(self, slot: int) -> None:
        """What a probe was asked for is known, or never will be: let later slots go on."""
        future = self.asking.pop(slot, None)
        if future is not None:
            future.set_result(None)


class Place:
    """The place of a call in its run."""

    __slots__ = (
        "again", "fingerprint", "joined", "position", "rank", "since", "slot", "turn", "world",
    )  # fmt: skip

    turn: Turn
    slot: int
    world: str
    position: int
    since: int
    joined: bool
    rank: int
    again: int
    fingerprint: bytes

    @property
    def occurrence(self) -> list[int]:
        """As the trace has it."""
        return [self.rank, self.slot, self.again] if self.again else [self.rank, self.slot]


class Branch:
    """A world line. While `following`, it moves along its recorded path; then on its own.

    A batch is what `links` holds for a position: writes that were issued together. It is folded
    into the next world when a call of a later turn arrives and nothing of it is in flight.
    """

    __slots__ = (
        "_asked", "_batch_turn", "_in_flight", "_links", "begins_after", "closer", "following",
        "forked_at", "forked_in", "forks", "inside", "joined", "name", "path", "position", "world",
        "world_hex",
    )  # fmt: skip

    def __init__(self, name: str, world: bytes, path: Path | None) -> None:
        self.name = name
        self.path = path
        self.following = path is not None
        self.forked_at = 0  # the position of the branch that it was forked off, by then
        self.forked_in: Turn | None = None
        self.begins_after: frozenset[bytes] = (
            frozenset()
        )  # the last worlds of those that it comes after
        self.joined = False
        self.closer: Turn | None = None  # the turn that left the path: its other calls may follow
        self.position = 0 if path is None else path.position
        self.world = world
        self.world_hex = world.hex()
        self.forks: dict[str, int] = {}
        self.inside: list[str] = []  # the full names of those that were forked off it
        self._links: dict[int, list[bytes]] = {}
        self._in_flight = 0
        self._batch_turn = 0
        # In this world, by key: the last turn that asked, its rank, and how often each of its slots
        # has asked; that is a mere slot, until the turn asks again.
        self._asked: dict[bytes, tuple[int, int, int | dict[int, int]]] = {}

    def arrive(self, turn: Turn) -> tuple[int, int]:
        """A tool call of `turn` is here: fold what it can't be part of. Where its turn started."""
        if (
            not self.following
            and not self._in_flight
            and turn.number > self._batch_turn
            and self._links.get(self.position)
        ):
            self._fold()
        start = turn.starts.get(self.name)
        if start is None:
            path = self.path
            start = self.position, self.position if path is None else path.position
            turn.starts[self.name] = start
            turn.worlds[self.name] = self.world
        return start

    @property
    def busy(self) -> bool:
        """Whether a write is in flight here."""
        return self._in_flight > 0

    @property
    def open_batch(self) -> bool:
        """Whether writes were issued here that are not folded into the world yet."""
        return self._in_flight > 0 or bool(self._links.get(self.position))

    def place(self, turn: Turn, slot: int, key: bytes, known: bytes | None = None) -> Place:
        """The place of a call that has arrived; `known` is the fingerprint it was recorded with."""
        asked = self._asked.get(key)
        again = 0
        if asked is not None and asked[0] == turn.number:
            rank, counts = asked[1], self._counts(key)
            again = counts.get(slot, 0)
            counts[slot] = again + 1
        else:
            rank = 0 if asked is None else asked[1] + 1
            self._asked[key] = turn.number, rank, slot
        place = Place()
        place.turn = turn
        place.slot = slot
        place.world = self.world_hex
        place.position = self.position
        started = turn.starts.get(self.name)
        place.since = self.position if started is None else started[0]
        place.joined = self._in_flight > 0 or bool(self._links.get(self.position))
        place.rank = rank
        place.again = again
        place.fingerprint = known or fingerprint(key, self.world, rank, slot, again)
        return place

    def asked_as(self, turn: Turn, slot: int, key: bytes) -> bytes:
        """The fingerprint of a call in the world that its turn started in; nothing is placed.

        In a resumed run too: what the turn has written meanwhile may be folded there by now.
        """
        asked = self._asked.get(key)
        rank = again = 0
        if asked is not None and asked[0] == turn.number:
            rank, again = asked[1], self._counts(key).get(slot, 0)
        elif asked is not None:
            rank = asked[1] + 1
        world = turn.worlds.get(self.name, self.world)
        return fingerprint(key, world, rank, slot, again)

    def set_apart(self, place: Place, key: bytes) -> None:
        """Give a new step a fingerprint of its own where a recorded one has that of its place.

        That one answered an identical call of another slot, and may have changed the world under
        the idempotency key which follows from it.
        """
        assert self.path is not None
        while self.path.holds(place.fingerprint.hex()):
            place.again += 1
            self._counts(key)[place.slot] = place.again + 1
            place.fingerprint = fingerprint(key, self.world, place.rank, place.slot, place.again)

    def _counts(self, key: bytes) -> dict[int, int]:
        """How often each slot of the turn that asked last has asked for this key."""
        turn, rank, slots = self._asked[key]
        if isinstance(slots, int):
            slots = {slots: 1}
            self._asked[key] = turn, rank, slots
        return slots

    def may_follow(self, turn: Turn) -> bool:
        """Whether a call of this turn may be answered from the recorded path."""
        return self.following or (self.path is not None and self.closer is turn)

    def leave_path(self, turn: Turn) -> bool:
        """A write that is not replayed: what was recorded later holds no longer.

        False where the branch was on its own already.
        """
        if not self.following:
            return False
        self.following = False
        self.closer = turn
        early = [each for at, some in self._links.items() if at > self.position for each in some]
        here = self._links.get(self.position, [])
        self._links = {self.position: here + early}
        if here and not early and turn.number > self._batch_turn and not self._in_flight:
            started = turn.starts.get(self.name)
            whole = started is None or started[0] == self.position
            self._fold()
            if whole:  # the turn started after that part of the batch, not in front of it
                turn.starts[self.name] = self.position, self.path.position if self.path else 0
        return True

    def begin_write(self, turn: Turn) -> None:
        """A write of this turn is in flight."""
        self._in_flight += 1
        self._batch_turn = max(self._batch_turn, turn.number)

    def end_write(self, position: int, link: bytes | None) -> None:
        """It ended, with a link into the world (none if it never started)."""
        self._in_flight -= 1
        if link is not None:
            self._add(position, link)
        if self.path is not None:
            self._follow(self.path)

    def replayed_write(self, turn: Turn, position: int, link: bytes) -> None:
        """A recorded write answered a call."""
        self._batch_turn = max(self._batch_turn, turn.number)
        self._add(position, link)
        if self.path is not None:
            self._follow(self.path)

    def _add(self, position: int, link: bytes) -> None:
        at = position if self.following else self.position
        self._links.setdefault(at, []).append(link)

    def _follow(self, path: Path) -> None:
        """Move on over each recorded batch that is used up; off the path, only point past it."""
        if self.following and self._in_flight:
            return  # the batch's last link is still to come
        while path.exhausted():
            path.position += 1
            if self.following:
                self._fold()

    def _fold(self) -> None:
        links = self._links.pop(self.position, None)
        if links:
            self.world = next_world(self.world, links)
            self.world_hex = self.world.hex()
        self.position += 1
        self._asked.clear()

    def final_world(self) -> bytes | None:
        """The world with all that was written here; None if nothing was."""
        links = [each for some in self._links.values() for each in some]
        world = next_world(self.world, links) if links else self.world
        return world if links or self.position else None

    @property
    def as_recorded(self) -> bool:
        """Whether all that is recorded here was asked for, and nothing else done."""
        return self.path is not None and self.at_path_end()

    def last_worlds(self) -> frozenset[bytes]:
        """What a branch that comes after this one begins after."""
        final = self.final_world()
        return self.begins_after if final is None else frozenset([final])

    def at_path_end(self) -> bool:
        """Whether everything recorded here was replayed, and nothing else written."""
        return self.path is None or (self.following and not self.path.ahead)


def union(place: Place, entry: Entry) -> Place:
    """The place of a replayed step on its recorded path: it holds where both of them hold."""
    place.since = min(place.since, entry.since)
    place.joined = place.joined or entry.joined
    if entry.position > place.position or entry.effect in ("write", "scope"):
        place.position, place.world = entry.position, entry.world
    return place
