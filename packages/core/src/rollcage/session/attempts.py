"""Work that a framework starts over within one session: what was done before is not done again.

A retry policy, an interrupt that was answered, or an error that somebody has dealt with, starts a
node from its first line. That is a resume, in one process: calls that ended are not made again.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rollcage.replay.ahead import WorkAttempt
from rollcage.session.once import is_failure
from rollcage.step import halts
from rollcage.step.call import Progress
from rollcage.step.driver import Driver
from rollcage.step.requests import Flow, Raised, Returned, Stop

__all__ = ["Attempts"]

_REMEMBERED: Final = 1024  # pieces of work that may be started over, however many calls each made

Key = tuple[Any, ...]


class _Ended(NamedTuple):
    """A call that ended, with what it came to."""

    order: int
    key: Key  # with the names of the works that it is in, below the one that holds this
    origin: tuple[str, int]
    answer: Returned | Raised
    name: str
    is_write: bool


class _TriedWork:
    """What was done of one piece of work: in earlier attempts, and in the present one."""

    def __init__(self, attempt: WorkAttempt) -> None:
        self.attempt = attempt
        self.left: list[_Ended] = []
        self.made: list[_Ended] = []
        self.asked: set[Key] = set()  # in either, whatever became of it

    def orphans(self, key: Key) -> list[_Ended]:
        """The writes that a new write would leave behind; one asked for before is not new."""
        if key in self.asked:
            return []
        return [each for each in self.left if each.is_write and each.key[0] == key[0]]

    def take(self, key: Key) -> _Ended | None:
        """Use up the first call of this key that an earlier attempt has left."""
        for place, each in enumerate(self.left):
            if each.key == key:
                return self.left.pop(place)
        return None


class Attempts:
    """Gives a call the outcome that it had in an earlier attempt at the work it belongs to.

    Args:
        driver: of the run.
        run: the run's id.
        at: what a command line needs to find the store.
        halts: whether a write that leaves writes of an earlier attempt behind halts the session.
    """

    def __init__(self, driver: Driver, run: str, at: str, *, halts: bool) -> None:
        self._driver = driver
        self._run = run
        self._at = at
        self._halts = halts
        self._works: OrderedDict[tuple[str, ...], _TriedWork] = OrderedDict()
        self._order = itertools.count()
        self._lock = threading.Lock()

    def flow(self, progress: Progress, flow: Flow, attempts: Sequence[WorkAttempt]) -> Flow:
        """The flow of a call in a piece of work; one that ended before is not run."""
        call = progress.call
        around = None if call.parent is None else call.parent.call.key
        key: Key = (around, _plain(call.branch, inside=around is not None), call.key)
        is_write = call.contract.effect == "write" and call.kind == "tool"
        if self._driver.ledger.halted is not None:
            return (yield from flow)
        with self._lock:
            works = self._begun(attempts)
            own = works[-1]
            keys = [(attempts[-1].path[len(each.attempt.path) :], *key) for each in works]
            found = (
                each.take(it) for each, it in zip(reversed(works), reversed(keys), strict=True)
            )
            ended = next((each for each in found if each is not None), None)
            if ended is not None:
                own.made.append(ended._replace(order=next(self._order), key=keys[-1]))
            orphans = [e for each, it in zip(works, keys, strict=True) for e in each.orphans(it)]
            own.asked.add(keys[-1])
        if ended is not None:
            return ended.answer
        if orphans and is_write and self._halts:
            error = halts.started_over(
                call.contract.name,
                call.arguments.canonical,
                attempts[-1].path[-1],
                [(each.name, *each.origin) for each in orphans],
                self._run,
                self._at,
            )
            yield Stop(error)
            return Raised(error)
        answer: Returned | Raised = yield from flow
        if answer.cut if isinstance(answer, Returned) else not is_failure(progress, answer.error):
            return answer
        entry = progress.recorded
        origin = (self._run, progress.number) if entry is None else (entry.run, entry.step)
        done = is_write and isinstance(answer, Returned)
        name = call.contract.name
        with self._lock:
            own.made.append(_Ended(next(self._order), keys[-1], origin, answer, name, done))
        return answer

    def _begun(self, attempts: Sequence[WorkAttempt]) -> list[_TriedWork]:
        """The works around a call, from the outermost; those that are started over begin again."""
        works: list[_TriedWork] = []
        place: tuple[str, ...] = ()
        undone = self._driver.ledger.branches.undone
        for attempt in attempts:
            place = (*place, attempt.work)
            work = self._works.get(place)
            if work is None:
                work = self._works[place] = _TriedWork(attempt)
                while len(self._works) > _REMEMBERED:
                    self._works.popitem(last=False)
            elif attempt.by is not work.attempt.by or attempt.number != work.attempt.number:
                self._start_over(place, work, attempt)
            if work.left:  # what was undone, and whatever came after it, no longer holds
                holds = itertools.takewhile(lambda each: each.origin not in undone, work.left)
                work.left = [*holds]
            works.append(work)
        return works

    def _start_over(self, place: tuple[str, ...], work: _TriedWork, attempt: WorkAttempt) -> None:
        """Leave what was done to the next attempt; a failure that nothing came after runs again.

        A retry starts all the works inside of it over, too. One that resumes from a memory does
        not: that memory holds what they did.
        """
        ended = [*work.made, *work.left]
        is_retry = attempt.by is work.attempt.by
        inside = [each for each in self._works if len(each) > len(place) and is_retry]
        for each in inside:
            if each[: len(place)] == place:
                gone = self._works.pop(each)
                names = gone.attempt.path[len(work.attempt.path) :]
                ended += [e._replace(key=_below(names, e.key)) for e in (*gone.made, *gone.left)]
                work.asked |= {_below(names, key) for key in gone.asked}
        ended.sort(key=lambda each: each.order)
        while ended and isinstance(ended[-1].answer, Raised):
            ended.pop()
        work.attempt, work.left, work.made = attempt, ended, []


def _below(names: tuple[str, ...], key: Key) -> Key:
    """The key of a call in works of these names, for the work around them."""
    return ((*names, *key[0]), *key[1:])


def _plain(branch: str, *, inside: bool) -> tuple[str, ...]:
    """The names of the branches that a call is in, without how often each was opened."""
    names = branch.split("/") if branch else []
    return tuple(name.partition("#")[0] for name in names[1 if inside else 0 :])
