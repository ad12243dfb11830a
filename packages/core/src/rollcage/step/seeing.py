"""Uses up the recorded steps that a framework's own memory holds, as if they were asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rollcage.fingerprint.identity import link
from rollcage.replay.ahead import Ahead, Histories, Spot
from rollcage.replay.branches import Branches
from rollcage.replay.path import Entry
from rollcage.replay.recording import Recording
from rollcage.replay.world import Branch, Turn, union
from rollcage.step import journal
from rollcage.step.stats import Stats
from rollcage.trace.constructors import Event

__all__ = ["Seeing"]


class Seeing:
    """Consumes the steps of a recording that are seen in a run.

    Args:
        recording: what is recorded; None if nothing is.
        branches: those of the run.
        ahead: the recorded steps that nobody has asked for.
        stats: counts what is seen.
        number: the next step's.
    """

    def __init__(
        self,
        recording: Recording | None,
        branches: Branches,
        ahead: Ahead,
        stats: Stats,
        number: Callable[[], int],
    ) -> None:
        self._recording = recording
        self._used: set[Entry] = set() if recording is None else recording.taken.used
        self._branches = branches
        self._ahead = ahead
        self._stats = stats
        self._number = number
        self._turns: dict[int, Turn] = {}  # of seen steps, by the turn that they were of
        self._opened: set[str] = set()  # branches for seen steps, not forked by anybody

    def held(self, places: frozenset[Spot], histories: Histories, inside: str) -> Iterable[Entry]:
        """The steps that are to be seen, each before the next; `inside`: see `family`."""
        if places:
            return self._ahead.at(places, inside, self._came_back)
        return self._ahead.answered(histories, inside)

    def see(
        self, entries: Iterable[Entry], parent: int | None, now: int
    ) -> Iterator[tuple[Event, Entry]]:
        """Use up these steps, up to the first that does not hold here: their events.

        Args:
            entries: the steps.
            parent: the step in whose body they are seen.
            now: in µs.
        """
        for entry in entries:
            if entry.status == "blocked":  # the next branch of this name is another one
                self._branch(entry.branch)
                self._used.add(entry)
                continue
            event = self._see(entry, parent, now)
            if event is None:
                return  # it can't be taken as done, nor what came after it
            self._ahead.give(entry.conversation, entry.call_id)
            yield event, entry

    def _see(self, entry: Entry, parent: int | None, now: int) -> Event | None:
        """Use up one recorded step that nobody asks for; None if it does not hold here."""
        branch = self._branch(entry.branch)
        turn = self._turns.get(entry.group)
        if turn is None:
            turn = branch.closer if not branch.following else None
            turn = self._turns[entry.group] = turn or self._branches.new_turn()
        placed = entry.kind != "model" and (self._branches.strict or entry.effect != "pure")
        path = branch.path
        if placed and (path is None or entry.since > path.position or not branch.may_follow(turn)):
            return None
        slot = turn.take_slot(entry.slot)
        if placed:
            branch.arrive(turn)
        place = branch.place(turn, slot, bytes.fromhex(entry.key))
        if placed and path is not None:
            if branch.following:
                place = union(place, entry)
            path.take(entry)
            if path.advances(entry):
                made = link(bytes.fromhex(entry.fingerprint), bytes.fromhex(entry.digest))
                branch.replayed_write(turn, entry.position, made)
        elif entry.kind == "model" and self._recording is not None:
            self._recording.use_answer(entry)
        self._used.add(entry)
        if entry.kind == "branch":
            return journal.joined_again(self._number(), branch, place, entry, now)
        self._count(entry)
        return journal.seen(self._number(), branch, place, entry, parent=parent, now=now)

    def _branch(self, name: str) -> Branch:
        """A branch in which steps were seen; opened if nobody has forked it."""
        branch = self._branches.by_name.get(name)
        if branch is None:
            self._branch(name.rpartition("/")[0])
            branch = self._branches.open_seen(name)
            self._opened.add(name)
        return branch

    def _came_back(self, name: str) -> bool:
        """Whether a branch was seen from its fork to its end."""
        path = self._branches.by_name[name].path if name in self._opened else None
        return path is not None and not path.ahead

    def _count(self, entry: Entry) -> None:
        self._stats.seen += 1
        self._stats.seconds_saved += entry.duration / 1e6
        usage = entry.outcome.get("usage")
        if usage:
            self._stats.tokens_saved += sum(usage.values())
