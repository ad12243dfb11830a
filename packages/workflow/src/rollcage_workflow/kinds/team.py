"""`team:` runs its members concurrently, towards one result: of all, of the first, of a quorum."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollcage_workflow.errors import StepFailed
from rollcage_workflow.failures import type_name
from rollcage_workflow.flow import (
    NO_FAILURES,
    Flow,
    Lost,
    NotReached,
    Waits,
    breakable,
    cancelling,
    cut_off,
    ending,
    raise_first,
    raise_halts,
)
from rollcage_workflow.graph import Node
from rollcage_workflow.kinds.members import Member, side_by_side
from rollcage_workflow.plan import Team
from rollcage_workflow.records import UNTOLD, container
from rollcage_workflow.schemas import ANY, Shape, nullable, table

if TYPE_CHECKING:
    from rollcage import BranchHandle

    from rollcage_workflow.check.checking import Around, Checking
    from rollcage_workflow.files import Path
    from rollcage_workflow.flow import BlockPlace
    from rollcage_workflow.interpret import Interpreter

__all__ = ["check", "run"]


def check(checking: Checking, node: Node, path: Path, around: Around) -> tuple[Node, Shape]:
    """See `Kind.check`."""
    team = node.step.team
    assert team is not None
    at = (*path, "team")
    if (team.quorum is None) == (team.mode == "quorum"):
        message = "says how many, where the mode is quorum" if team.quorum else "is missing"
        checking.find((*at, "quorum"), "invalid", message)
    elif team.quorum is not None and team.quorum > len(team.members):
        checking.find((*at, "quorum"), "invalid", f"there are only {len(team.members)} members")
    is_race = team.mode != "all" or team.time_limit is not None
    if is_race:
        where = f"a {team.mode}" if team.mode != "all" else "a team with a time limit"
        around = dataclasses.replace(
            around, undone=f"in {where} the steps of a late member are undone"
        )
    graph, results = checking.block(team.members, (*at, "members"), around, apart=True)
    for name, member in team.members.items():
        if member.next is not None or member.after:
            checking.find(
                (*at, "members", name), "invalid", "a member takes neither next: nor after:"
            )
    if team.mode == "all":
        shape = table({name: nullable(each) for name, each in results.items()} if is_race
                      else results)  # fmt: skip
    elif team.mode == "race":
        winner = Shape.of({"type": "string", "enum": sorted(team.members)})
        shape = table({"winner": winner, "value": ANY})
    else:
        shape = Shape.of({"type": "object"})
    return dataclasses.replace(node, inner=graph), shape


async def run(interpreter: Interpreter, node: Node, place: BlockPlace) -> Any:
    """See `Kind.run`."""
    team, graph = node.step.team, node.inner
    assert team is not None
    assert graph is not None
    members = {unit.name: unit for unit in graph.units if isinstance(unit, Node)}
    path = f"{place.path}{node.name}"

    async def body(**_: object) -> Any:
        async with interpreter.undoing(UNTOLD, where=graph.undoes):
            if team.mode == "all" and team.time_limit is None:
                return await _all(interpreter, team, members, place, path)
            until = None
            if team.time_limit is not None:
                until = await interpreter.ends_at(path, team.time_limit)
            found = await _first(interpreter, team, members, place, path, until)
        if team.mode != "race":
            return found
        winner, value = next(iter(found.items()))
        return {"winner": winner, "value": value}

    named = {"step": node.name, "members": sorted(members), "mode": team.mode}
    return await interpreter.session.arun_call(container("team"), named, body)


async def _all(
    interpreter: Interpreter, team: Team, members: Mapping[str, Node], place: BlockPlace, path: str
) -> dict[str, Any]:
    names = list(members)
    values = await side_by_side(
        interpreter,
        [Member(name, f"{path}.") for name in names],
        team.max_concurrent,
        place,
        lambda n, here: _value_of(interpreter, members[names[n]], here),
    )
    return dict(zip(names, values, strict=True))


async def _value_of(interpreter: Interpreter, node: Node, place: BlockPlace) -> Any:
    if node.step.retry is not None:  # each attempt has a branch of its own
        place = dataclasses.replace(place, in_row=False)
    return (await interpreter.step(node, place)).value


class _Others:
    """Members that wait until no other member runs: `count` is the number of all members."""

    def __init__(self, count: int) -> None:
        self._going_on = count
        self._may: asyncio.Event = asyncio.Event()

    async def wait(self) -> None:
        """Wait until all other members have ended, wait too, or have lost."""
        self.ended()
        try:
            await self._may.wait()
        finally:
            self._going_on += 1

    def ended(self) -> None:
        """Note that a member has stopped."""
        self._going_on -= 1
        if self._going_on <= 0:
            self.go_on()

    def go_on(self) -> None:
        """Wake all waiting members."""
        self._may.set()


async def _first(
    interpreter: Interpreter,
    team: Team,
    members: Mapping[str, Node],
    place: BlockPlace,
    path: str,
    until: float | None,
) -> dict[str, Any]:
    """Return the results of the first members to succeed; undo the others.

    The others begin no further step; calls that change nothing are interrupted, writes end.

    Args:
        interpreter: the interpreter of the plan.
        team: the team.
        members: its members, by name.
        place: its place.
        path: its path, for messages.
        until: when its time is up (Unix, seconds); None: never.
    """
    race = _Race(interpreter, team, members, place, path, until)
    with interpreter.session.turn(opens=dict.fromkeys(members, ())):
        runs = [race.run_clock(), *(race.run(name) for name in members)]
        tasks = [asyncio.create_task(each) for each in runs]
        with cancelling(tasks):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    found, failures = race.found, race.failures
    stopped = [each for each in ended if isinstance(each, BaseException)]
    raise_halts(stopped)
    if len(found) >= race.wanted or (race.is_late and team.mode == "all" and not failures):
        return {name: found.get(name) for name in members if name in found or team.mode == "all"}
    if team.mode == "all":
        raise_first(failures.values())
    waits = [each for each in stopped if isinstance(each, Waits)]
    if waits and not race.is_lost:
        raise Waits.both(waits)
    raise_first(each for each in stopped if isinstance(each, NotReached))
    message = f"{path}: {len(found)} of {race.wanted} needed members succeeded"
    if race.is_late:
        message += f" within {team.time_limit:g} s"
    told = [f"{name} failed: {type_name(each)}: {each}" for name, each in failures.items()]
    raise StepFailed("; ".join([message, *(f"{name} succeeded" for name in found), *told]))


class _Race:
    """Concurrent members, each in a transaction, until as many as are wanted have succeeded.

    Attributes:
        found: their results, by name.
        failures: the errors of members, by name.
        wanted: how many are wanted.
        is_late: whether the time was up before so many had succeeded.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        team: Team,
        members: Mapping[str, Node],
        place: BlockPlace,
        path: str,
        until: float | None,
    ) -> None:
        self.found: dict[str, Any] = {}
        self.failures: dict[str, Exception] = {}
        self.wanted = {"all": len(members), "race": 1, "quorum": team.quorum or 1}[team.mode]
        self.is_late = False
        self._interpreter, self._members, self._until = interpreter, members, until
        self._room = asyncio.Semaphore(team.max_concurrent)
        self._flow = Flow(place.flow, is_race=True)
        self._others = _Others(len(members) + 1)
        self._place = dataclasses.replace(
            place, flow=self._flow, path=f"{path}.", after=(), suffix="", in_row=False, round=""
        )

    @property
    def is_lost(self) -> bool:
        """Whether too few members are left."""
        return self.is_late or len(self._members) - len(self.failures) < self.wanted

    async def run_clock(self) -> None:
        """End the race when its time is up.

        Raises:
            Waits: that is later than the attempt stays for it.
        """
        try:
            if self._until is None:
                return
            left = self._until - self._interpreter.now()
            if left > self._interpreter.patience:
                raise Waits([], self._until)
            if left > 0:
                await breakable(asyncio.sleep(left), self._flow, "sleeps")
            self.is_late = True
            self._end()
        except NotReached:  # it was decided in time
            return
        finally:
            self._others.ended()

    async def run(self, name: str) -> None:
        """Run a member.

        Raises:
            Lost: others were first, or the time was up; the member is undone.
            Waits: the member waits, and nothing is decided; its effects stay.
        """
        try:
            with ending(self._flow):
                async with self._room, self._interpreter.session.transaction(name) as block:
                    with cut_off():
                        value = await self._value(name, block)
                    if self._is_decided or (self.is_late and not block.had_ended):
                        raise Lost
                    self.found[name] = value
                    if self._is_decided:
                        self._end()
        except NO_FAILURES:
            raise
        except Exception as error:  # noqa: BLE001 - it counts if too few members are left
            self.failures[name] = error
            if self.is_lost:
                self._end()
        finally:
            self._others.ended()

    @property
    def _is_decided(self) -> bool:
        return len(self.found) >= self.wanted

    def _end(self) -> None:
        self._flow.end(calls=True)
        self._others.go_on()

    async def _value(self, name: str, block: BranchHandle) -> Any:
        """Return a member's result, in its transaction: a member that has lost fails there."""
        place = self._place
        try:
            if block.had_ended:  # it is replayed, also when the time is up by now
                place = dataclasses.replace(place, flow=Flow(self._flow.around, is_race=True))
            place.flow.check()
            if block.was_undone:
                # The member had lost, or failed, in an earlier attempt. The winner is replayed
                # first, or this member would get farther than recorded.
                await self._step_aside()
                place.flow.check()
            return await _value_of(self._interpreter, self._members[name], place)
        except Waits:
            await self._step_aside()  # another member may still be first
            if not self._has_ended:
                raise
        except NotReached:
            if not self._has_ended:
                raise
        raise Lost

    @property
    def _has_ended(self) -> bool:
        return self._is_decided or self.is_lost

    async def _step_aside(self) -> None:
        """Let the others run until none runs, or the race is decided."""
        self._room.release()
        try:
            await self._others.wait()
        finally:
            await self._room.acquire()
