"""`team:` runs its members concurrently, towards one result: of all, of the first, of a quorum."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollcage_workflow.flow import (
    Flow,
    Lost,
    NotReached,
    Waits,
    cancelling,
    raise_first,
    raise_halts,
)
from rollcage_workflow.graph import Node
from rollcage_workflow.kinds.members import Member, side_by_side
from rollcage_workflow.plan import Team
from rollcage_workflow.records import container
from rollcage_workflow.schemas import ANY, Shape, table

if TYPE_CHECKING:
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
    if team.mode != "all":
        around = dataclasses.replace(
            around, undone=f"in a {team.mode} the steps of a late member are undone"
        )
    graph, results = checking.block(team.members, (*at, "members"), around, apart=True)
    for name, member in team.members.items():
        if member.next is not None or member.after:
            checking.find(
                (*at, "members", name), "invalid", "a member takes neither next: nor after:"
            )
    if team.mode == "all":
        shape = table(results)
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

    async def body(**_: object) -> Any:
        if team.mode == "all":
            names = list(members)
            values = await side_by_side(
                interpreter,
                [Member(name, f"{place.path}{node.name}.") for name in names],
                team.max_concurrent,
                place,
                lambda n, here: _value_of(interpreter, members[names[n]], here),
            )
            return dict(zip(names, values, strict=True))
        wanted = 1 if team.mode == "race" else team.quorum or 1
        found = await _first(interpreter, team, members, wanted, place, f"{place.path}{node.name}.")
        if team.mode == "quorum":
            return found
        winner, value = next(iter(found.items()))
        return {"winner": winner, "value": value}

    named = {"step": node.name, "members": sorted(members), "mode": team.mode}
    return await interpreter.session.arun_call(container("team"), named, body)


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
    wanted: int,
    place: BlockPlace,
    path: str,
) -> dict[str, Any]:
    """Return the results of the first members to succeed; undo the others.

    The others begin no further step; calls that change nothing are interrupted, writes end.
    """
    race = _Race(interpreter, team, members, wanted, place, path)
    with interpreter.session.turn(opens=dict.fromkeys(members, ())):
        tasks = [asyncio.create_task(race.run(name)) for name in members]
        with cancelling(tasks):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    found = race.found
    failed = [each for each in ended if isinstance(each, BaseException)]
    raise_halts(failed)
    if len(found) < wanted:
        waits = [each for each in failed if isinstance(each, Waits)]
        if len(found) + len(waits) >= wanted:  # enough members may still succeed
            raise Waits.both(waits)
        raise_first([each for each in failed if not isinstance(each, Lost)])
    return {name: found[name] for name in members if name in found}


class _Race:
    """Concurrent members, each in a transaction, until as many as are wanted have succeeded.

    Attributes:
        found: their results, by name.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        team: Team,
        members: Mapping[str, Node],
        wanted: int,
        place: BlockPlace,
        path: str,
    ) -> None:
        self.found: dict[str, Any] = {}
        self._interpreter, self._members, self._wanted = interpreter, members, wanted
        self._room = asyncio.Semaphore(team.max_concurrent)
        self._flow = Flow(place.flow, is_race=True)
        self._others = _Others(len(members))
        self._place = dataclasses.replace(
            place, flow=self._flow, path=path, after=(), suffix="", in_row=False
        )

    async def run(self, name: str) -> None:
        """Run a member.

        Raises:
            Lost: others were first; the member is undone.
            Waits: the member waits, and none was first; its effects stay.
        """
        try:
            async with self._room, self._interpreter.session.transaction(name) as block:
                value = await self._value(name, was_undone=block.was_undone)
                if self._is_decided:
                    raise Lost
                self.found[name] = value
                if self._is_decided:
                    self._flow.end(calls=True)
                    self._others.go_on()
        finally:
            self._others.ended()

    @property
    def _is_decided(self) -> bool:
        return len(self.found) >= self._wanted

    async def _value(self, name: str, *, was_undone: bool) -> Any:
        """Return a member's result, in its transaction: a member that has lost fails there."""
        try:
            self._flow.check()
            if was_undone:
                # The member had lost, or failed, in an earlier attempt. The winner is replayed
                # first, or this member would get farther than recorded.
                await self._step_aside()
                self._flow.check()
            return await _value_of(self._interpreter, self._members[name], self._place)
        except Waits:
            await self._step_aside()  # another member may still be first
            if not self._is_decided:
                raise
        except NotReached:
            if not self._is_decided:
                raise
        raise Lost

    async def _step_aside(self) -> None:
        """Let the others run until none runs, or the race is decided."""
        self._room.release()
        try:
            await self._others.wait()
        finally:
            await self._room.acquire()
