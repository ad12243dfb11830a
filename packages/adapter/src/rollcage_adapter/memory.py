"""A framework's own memory, as a stage: the framework continues from it, or starts work over.

A framework with a memory (such as a checkpointer) does not repeat the calls in its memory. Before a
call or a block gets its place, the recorded steps that were not requested are looked up in the
memory, and the steps that it holds as done are *seen*: used up in their recorded order. For that,
the line of each step has its place in the memory. A step that is found at another place than before
is *moved*, at once, because after a kill the memory knows only the new place.

A framework that retries a piece of work, or continues it after a person's answer, starts the work
over: the steps of the work are requested again.

Concurrent pieces of work, each with calls of its own, are branches, named for the work; the works
of one round are in one turn, which announces their names, because a resume may begin with any of
them.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakSet

from rollcage import Session, Stage
from rollcage.session.adapters import (
    Attempt,
    Branch,
    Call,
    Event,
    Match,
    Outcome,
    Place,
    Step,
    Turn,
    Work,
    adrive,
    begin_block,
    drive,
    enter,
    leave_block,
    restart,
    see,
)

__all__ = [
    "FrameworkMemory",
    "FrameworkWork",
    "MemoryStage",
    "Spot",
    "Standing",
    "alook_back",
    "follow",
    "look_back",
]

Spot = tuple[str, str]
"""The place of a step in a framework's memory: the thread, and the place in it."""


class FrameworkWork(NamedTuple):
    """A piece of work (a node, a task) that a framework is doing.

    Attributes:
        name: its name in this process: the same if it is started over, another for other work; the
            names of inner works begin with it and `|`.
        by: the origin of this try: the same object for all retries;
            another one if the framework continued from its memory.
        number: distinguishes retries.
        round: names the concurrent works: works of one round do not wait for one another.
        apart: whether there are concurrent works, so that it gets a branch of its own.
        task: its name among them, the same in each attempt at a run.
        slot: its place among them, the same in each attempt.
        beside: the names of all of them, as far as they are known.
    """

    name: str
    by: object
    number: int
    round: str = ""
    apart: bool = False
    task: str = ""
    slot: int = 0
    beside: tuple[str, ...] = ()


class Standing(Protocol):
    """A framework's position, in a memory of its own that outlives the process.

    Attributes:
        spot: the thread that it continues, and the place in it: opaque, but the same whenever
            the same work is repeated.
    """

    @property
    def spot(self) -> Spot:
        """See above."""
        ...

    def round_of(self, spot: Spot) -> str:
        """Name the round of the step at a place: the same in each attempt."""
        ...

    def held(self, spots: Iterable[Spot]) -> frozenset[Spot]:
        """Return the recorded places, in their order, that the memory holds as done."""
        ...

    async def aheld(self, spots: Iterable[Spot]) -> frozenset[Spot]:
        """Do the same as `held`, for a memory that has to be awaited."""
        ...


class FrameworkMemory:
    """A framework's own memory, read by its adapter. Every method is optional."""

    def here(self) -> Standing | None:
        """Return the framework's position in this context; None outside of it, or of a memory."""
        return None

    def works(self) -> Sequence[FrameworkWork]:
        """Return the pieces of work around this context, the outermost first."""
        return ()

    def waits(self) -> str | None:
        """Return the framework's wait, in a few words; None: it waits for nothing.

        It is asked when the session is left without an error: a wait ends the run `paused`.
        """
        return None

    async def awaits(self) -> str | None:
        """Do the same as `waits`, for a session that is left in asyncio."""
        return self.waits()


def follow(session: Session, memory: FrameworkMemory) -> None:
    """Add a framework's memory to a session; the first one counts."""
    with _LOCK:
        if session in _FOLLOWING or session.outermost in _FOLLOWING:
            return
        _FOLLOWING.update((session, session.outermost))
    session.add(MemoryStage(memory))


def look_back(session: Session) -> None:
    """Read a framework's memory, though no call is made here.

    It is for a framework's unguarded work: without it, a program that makes no further call would
    leave behind the steps in its memory.
    """
    place = session.place_here()
    for arriving in session.hooks.arriving:
        work = arriving(place, is_async=False)
        if work is not None:
            drive(work)


async def alook_back(session: Session) -> None:
    """Do the same as `look_back`, in asyncio."""
    place = session.place_here()
    for arriving in session.hooks.arriving:
        work = arriving(place, is_async=True)
        if work is not None:
            await adrive(work)


_FOLLOWING: Final[WeakSet[Session]] = WeakSet()
_LOCK: Final = threading.Lock()


class MemoryStage(Stage):
    """Sees the steps in a framework's memory, and lets restarted works request theirs again."""

    def __init__(self, memory: FrameworkMemory) -> None:
        self.memory = memory
        self._tries: dict[str, FrameworkWork] = {}
        self._made: dict[int, tuple[str, ...]] = {}  # by step of this attempt, its enclosing works
        self._blocks: dict[tuple[str, str, str], Branch] = {}  # by outer branch, round and task
        self._entered: dict[tuple[str, str], Branch] = {}  # by outer branch and task: seen, open
        self._turns: dict[tuple[str, str], Turn] = {}  # by outer branch and round
        self._seen_turns: dict[int, Turn] = {}  # by number
        self._left: deque[Step] | None = None

    # --- seeing ----------------------------------------------------------------------------------

    def arriving(self, place: Place, *, is_async: bool) -> Work | None:
        """Look up the steps that were not requested in the memory."""
        attempt = place.attempt
        if attempt.closed or attempt.halted is not None:
            return None
        with attempt.lock:
            if not self._rest(attempt):
                return None
        standing = self.memory.here()
        return None if standing is None else self._look(place, standing, is_async=is_async)

    def _look(self, place: Place, standing: Standing, *, is_async: bool) -> Work:
        attempt = place.attempt
        with attempt.lock:
            body = _body_around(attempt, place.branch)
            rest = [
                step
                for step in self._rest(attempt)
                if spot_of(step) is not None
                and not step.is_used
                and _body_around(attempt, step.branch) is body
            ]
        spots = _spots(rest)
        if is_async:
            held: frozenset[Spot] = yield lambda: standing.aheld(spots)
        else:
            held = yield lambda: standing.held(spots)
        if held:
            with attempt.lock:
                self._see(place, standing, [step for step in rest if spot_of(step) in held])

    def _see(self, place: Place, standing: Standing, steps: Iterable[Step]) -> None:
        """Use up steps, in their order; stop behind a step that is not at its branch's position."""
        attempt, stuck = place.attempt, set[str]()
        own = standing.round_of(standing.spot)
        for step in steps:
            if step.is_used or step.branch in stuck:
                continue
            spot = spot_of(step)
            assert spot is not None
            turn = self._turn(attempt, step)
            if place.turn is not None and standing.round_of(spot) == own:
                turn = self._seen_turns[step.turn] = place.turn  # its message continues
            if not self._enter(attempt, step.branch) or not see(attempt, step, turn):
                stuck.add(step.branch)
        self._leave_seen(attempt)

    def _turn(self, attempt: Attempt, step: Step) -> Turn:
        """Return the turn of this attempt in which a recorded step is seen."""
        found = self._seen_turns.get(step.turn)
        if found is None:
            found = self._seen_turns[step.turn] = attempt.users.get(step.turn) or Turn()
        return found

    def _enter(self, attempt: Attempt, name: str) -> bool:
        """Open the recorded blocks around a step; return whether they are where they should be."""
        block = attempt.run.owner(name)
        if block is None or block.effect != "branch" or block.taken:
            return True
        if not self._enter(attempt, block.branch):
            return False
        inner = enter(attempt, block, self._turn(attempt, block))
        if inner is None:
            return False
        self._entered[block.branch, block.name] = inner
        return True

    def _leave_seen(self, attempt: Attempt) -> None:
        """Leave the blocks that had ended on record, and whose steps were all seen."""
        for key, inner in list(self._entered.items()):
            untaken = (step for step in attempt.run.inside(inner.name) if not step.is_used)
            if inner.was == "whole" and not any(untaken):
                del self._entered[key]
                leave_block(attempt, inner, ok=True)

    def _rest(self, attempt: Attempt) -> deque[Step]:
        """Return the steps recorded before this attempt, and not used up by it yet, in order."""
        rest = self._left
        if rest is None:
            found = (attempt.run.steps[n] for n in sorted(attempt.run.steps))
            rest = self._left = deque(
                step
                for step in found
                if step.n <= attempt.recorded
                and spot_of(step) is not None
                and step.effect not in ("pure", "branch")
                and not step.gone
                and not step.compensates
                and step.status in ("ok", "error")
            )
        while rest and rest[0].is_used:
            rest.popleft()
        return rest

    # --- places of calls -------------------------------------------------------------------------

    def where(self, call: Call | None, place: Place) -> Place | None:
        """Return the place of a call: in the branch of its work, if others run at once with it."""
        attempt, works = place.attempt, self.memory.works()
        if call is not None:
            standing = self.memory.here()
            if standing is not None:
                call.keep("standing", standing)
            call.keep("works", tuple(work.name for work in works))
        branch, inside = place.branch, works[place.works :]
        if not inside:
            if not works:
                self._leave_rounds(attempt, branch, works)
            return None
        for work in inside:
            self._start_over(attempt, work)
        for at, work in enumerate(inside):
            self._leave_rounds(attempt, branch, works)
            is_stated = at == len(inside) - 1 and place.turn is not None
            if work.apart and not is_stated:
                branch = self._block(dataclasses.replace(place, branch=branch), work)
        return dataclasses.replace(place, branch=branch, works=len(works))

    def _block(self, place: Place, work: FrameworkWork) -> str:
        """Return the branch of a work with concurrent works; open it if needed."""
        attempt, outer = place.attempt, place.branch
        key = outer, work.round, work.task
        inner = self._blocks.get(key)
        if inner is None:
            inner = self._entered.pop((outer, work.task), None)
            if inner is None:
                turn = self._round_turn(attempt, outer, work)
                inner = begin_block(
                    dataclasses.replace(place, turn=turn, slot=work.slot), work.task
                )
            self._blocks[key] = inner
        return inner.name

    def _round_turn(self, attempt: Attempt, outer: str, work: FrameworkWork) -> Turn:
        """Return the turn of concurrent works, including the seen ones."""
        turn = self._turns.get((outer, work.round))
        if turn is None:
            pos = attempt.branch(outer).pos
            same = (
                self._seen_turns[step.turn]
                for step in attempt.run.branches.get(outer, ())
                if step.effect == "branch"
                and step.name in work.beside
                and step.turn in self._seen_turns
                and step.pos in (pos, pos - 1)
            )
            turn = self._turns[outer, work.round] = next(same, None) or Turn()
            turn.opens = {}
        for name in (work.task, *work.beside):
            turn.opens[name] = frozenset()
        return turn

    def _leave_rounds(self, attempt: Attempt, outer: str, works: Sequence[FrameworkWork]) -> None:
        """Leave the blocks of a branch whose rounds are over: the current works are of others."""
        rounds = {work.round for work in works}
        beside = {name for work in works for name in (work.task, *work.beside)}
        for key, inner in list(self._blocks.items()):
            if key[0] == outer and key[1] not in rounds:
                del self._blocks[key]
                self._leave(attempt, inner)
        for (branch, task), inner in list(self._entered.items()):
            if branch == outer and task not in beside:
                del self._entered[branch, task]
                self._leave(attempt, inner)

    def _leave(self, attempt: Attempt, inner: Branch, *, ok: bool = True) -> None:
        """Leave a block, and the blocks inside of it."""
        for key, each in list(self._blocks.items()):
            if key[0] == inner.name:
                del self._blocks[key]
                self._leave(attempt, each, ok=ok)
        leave_block(attempt, inner, ok=ok)

    # --- starting over ---------------------------------------------------------------------------

    def _start_over(self, attempt: Attempt, work: FrameworkWork) -> None:
        """Let the steps of a work be requested again if this is another try of it."""
        known = self._tries.get(work.name)
        self._tries[work.name] = work
        if known is None or (known.by is work.by and known.number == work.number):
            return
        # otherwise it continues from its memory, which has the inner steps
        is_retry = known.by is work.by
        inside = f"{work.name}|"
        if is_retry:
            for name in [name for name in self._tries if name.startswith(inside)]:
                del self._tries[name]
            for key, inner in list(self._blocks.items()):
                if key[1].startswith(inside) and self._blocks.pop(key, None) is not None:
                    self._leave(attempt, inner, ok=False)
        again = [
            n
            for n, works in self._made.items()
            if works[-1:] == (work.name,) or (is_retry and work.name in works)
        ]
        steps = [attempt.run.steps[n] for n in again if n in attempt.run.steps]
        for n in again:
            del self._made[n]
        held = [step for step in steps if step.taken and not step.gone]
        if held:
            restart(attempt, held)
            self._left = None

    # --- the record ------------------------------------------------------------------------------

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Record the new place of a step that answers a call, before the call returns."""
        if match.kind != "hit" or match.refusal is not None or call.effect == "pure":
            return None
        spot, step = _spot_of(call), match.step
        if spot is None or step is None or spot_of(step) == spot or "moved" in (call.kept or ()):
            return None
        return self._move(call, step, spot)

    def _move(self, call: Call, step: Step, spot: Spot) -> Work:
        call.keep("moved", spot)  # once: a place that quotes a secret is another one on record
        line: Event = {"event": "moved", "step": step.n, "memory": list(spot)}
        if call.place.call_id and call.place.call_id != step.call_id:
            line["call_id"] = call.place.call_id
        call.attempt.note(line)
        yield from call.attempt.settle(is_async=call.is_async)

    def marks(self, call: Call) -> Event | None:
        """Return a call's place in the memory."""
        spot = _spot_of(call)
        return None if spot is None else {"memory": list(spot)}

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> Event | None:  # noqa: ARG002 - of the seam
        """Note the works of a step of this attempt."""
        works = None if call is None else (call.kept or {}).get("works")
        if call is not None and works:
            self._made[call.event["step"] if step is None else step.n] = works
        return None

    # --- leaving ---------------------------------------------------------------------------------

    def leaving(self, session: Session, *, is_async: bool) -> Work | None:
        """Pause the run if the framework waits for something."""
        return self._pause(session, is_async=is_async)

    def _pause(self, session: Session, *, is_async: bool) -> Work:
        waits: str | None = yield self.memory.awaits if is_async else self.memory.waits
        if waits and not session.paused:
            session.pause(waits)

    def closed(self, session: Session, error: BaseException | None) -> None:
        """Leave the blocks that are open."""
        for inner in (*self._blocks.values(), *self._entered.values()):
            if not inner.exited:
                leave_block(session.attempt, inner, ok=error is None)


def _spot_of(call: Call) -> Spot | None:
    standing: Any = (call.kept or {}).get("standing")
    return None if standing is None else standing.spot


def spot_of(step: Step) -> Spot | None:
    """Return a recorded step's place in a framework's memory; None without one."""
    spot = (step.marks or {}).get("memory")
    return None if spot is None else (str(spot[0]), str(spot[1]))


def _spots(steps: Sequence[Step]) -> Iterator[Spot]:
    """Yield the places of steps, in their order, each once in a row."""
    last: Spot | None = None
    for step in steps:
        spot = spot_of(step)
        if spot is not None and spot != last:
            last = spot
            yield last


def _body_around(attempt: Attempt, branch: str) -> Step | None:
    """Return the step whose body contains a branch; None without one."""
    owner = attempt.run.owner(branch)
    while owner is not None and owner.effect == "branch":
        owner = attempt.run.owner(owner.branch)
    return owner
