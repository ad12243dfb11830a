"""Loop detection: an agent that repeats the same call, or alternates between two."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final

from rollcage.gate import Verdict

from rollcage_policy.bounds import AskedCall
from rollcage_policy.limits import Loops

__all__ = ["Circles", "Seen"]

_LINES: Final = 4096  # agents and branches whose calls are remembered


class Seen:
    """A call that was made: its key, and its place if the framework has one."""

    __slots__ = ("key", "name", "place")

    def __init__(self, key: str, name: str, place: Hashable) -> None:
        self.key = key
        self.name = name
        self.place = place


class _Line:
    """The last calls of one agent in one branch, and their loop, if any."""

    __slots__ = ("calls", "circle", "verdict")

    def __init__(self, window: int) -> None:
        self.calls: deque[Seen] = deque(maxlen=window)
        self.circle: frozenset[str] = frozenset()  # the loop's keys, until another call is made
        self.verdict: Verdict | None = None


class Circles:
    """The last calls of each agent, in each branch. The caller holds the meter's lock."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        self._window = max(loops.same or 0, (loops.within or 1) - 1, 2 * (loops.alternating or 0))
        self._lines: OrderedDict[tuple[str, str, str], _Line] = OrderedDict()

    def look(self, view: AskedCall, place: Hashable) -> tuple[Verdict | None, Seen | None]:
        """Return the verdict on the next call, and the entry to note if the call is made."""
        if any(fnmatchcase(view.name, glob) for glob in self._loops.ignore):
            return None, None
        if not view.key:
            raise ValueError("loop detection needs the key of each call, and this one has none")
        seen = Seen(view.key, view.name, place)
        line = self._lines.get((view.kind, view.agent, view.branch))
        if line is None:
            return None, seen
        if place is not None and any(
            each.place == place and each.key == view.key for each in line.calls
        ):
            return None, None  # the framework repeats the same call: it is noted already
        if view.key not in line.circle:
            found = self._row(line.calls, seen) or self._turns(line.calls, seen)
            if found is None:
                return None, seen
            line.circle, line.verdict = found
        return line.verdict, seen

    def note(self, view: AskedCall, seen: Seen) -> None:
        """Note a call that is made."""
        at = view.kind, view.agent, view.branch
        line = self._lines.get(at)
        if line is None:
            line = self._lines[at] = _Line(self._window)
            while len(self._lines) > _LINES:
                self._lines.popitem(last=False)
        else:
            self._lines.move_to_end(at)
        line.calls.append(seen)
        if seen.key not in line.circle:
            line.circle = frozenset()

    def forget(self, view: AskedCall, seen: Seen) -> None:
        """Forget a call that was not made after all."""
        line = self._lines.get((view.kind, view.agent, view.branch))
        if line is not None and seen in line.calls:
            line.calls.remove(seen)

    def _row(self, past: deque[Seen], seen: Seen) -> tuple[frozenset[str], Verdict] | None:
        """Return the loop of a call that is repeated."""
        same, within = self._loops.same, self._loops.within
        if same is None:
            return None
        last = list(islice(reversed(past), same if within is None else within - 1))
        if sum(each.key == seen.key for each in last) < same:
            return None
        how = "in a row" if within is None else f"within the last {within - 1} calls"
        times = "once" if same == 1 else f"{same} times"
        reason = f"{seen.name} was called with these very arguments {times} {how}"
        return frozenset({seen.key}), self._verdict("loop_same", reason)

    def _turns(self, past: deque[Seen], seen: Seen) -> tuple[frozenset[str], Verdict] | None:
        """Return the loop of two alternating calls: A-B-A-B, and A is next."""
        rounds = self._loops.alternating
        if rounds is None or len(past) < 2 * rounds or past[-1].key == seen.key:
            return None
        keys = past[-1].key, seen.key
        last = islice(reversed(past), 2 * rounds)
        if any(each.key != keys[number % 2] for number, each in enumerate(last)):
            return None
        times = "once" if rounds == 1 else f"{rounds} times"
        reason = f"{seen.name} and {past[-1].name} have taken turns {times} with the same arguments"
        return frozenset(keys), self._verdict("loop_alternating", reason)

    def _verdict(self, code: str, reason: str) -> Verdict:
        loops = self._loops
        remedy = loops.remedy or "Do something else, or finish and say what is missing."
        return Verdict(loops.decision, loops.reason or reason, code, loops.id, remedy)
