"""Blocks that fail, in some attempts, before or behind any of their calls.

They stand in a row, in a declared turn (in any order), or in a gather that nobody declared. However
often they fail: nothing is done twice, and the program goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rollcage import Diverged, Session, SessionHalted, compensate, tool

from tests.laws.lab import folder
from tests.laws.law import LAW, chances
from tests.laws.programs import seeds

pytestmark = pytest.mark.law

Node = tuple[str, tuple["Node", ...]]  # what it is, and what stands in it
Place = tuple[int, ...]  # where a node stands in its program

ATTEMPTS = (0.3, 0.2, 0.1, *[0.0] * 5)  # how probably a node fails; a roll-back takes one attempt
BLOCKS = ("branch", "transaction", "session", "scope")
TOGETHER = ("turn", "gather")
WRITE: Node = ("write", ())
READ: Node = ("read", ())

done: list[str] = []
bodies: dict[str, Callable[[], Awaitable[None]]] = {}


class Fails(Exception):
    """Ends a block, and the attempt behind all of its siblings."""


@tool(name="failing.put_back", idempotent=True)
async def put_back(name: str) -> None:
    done.remove(name)


@tool(name="failing.put", undo=lambda args: [compensate(put_back, name=args["name"])])
async def put(name: str) -> str:
    await asyncio.sleep(0)
    done.append(name)
    return name


@tool(name="failing.look", effect="read")
async def look(name: str) -> str:
    await asyncio.sleep(0)
    return name


@tool(name="failing.scope", effect="scope")
async def scope(name: str) -> str:
    await bodies[name]()
    return name


class Job:
    """One job, over all of its attempts.

    Attributes:
        failing: how probably a node fails in this attempt, if it never went on before.
    """

    def __init__(self, root: Path, program: Sequence[Node], chance: random.Random) -> None:
        self.root, self.program, self.chance = root, program, chance
        self.failing = 0.0
        self._passed: set[Place] = set()
        self._met: set[Place] = set()
        self._to_meet: dict[Place, Callable[[], Awaitable[None]]] = {}

    async def attempt(self, failing: float) -> bool:
        """Run or resume the job; tell whether it went through."""
        self.failing = failing
        try:
            async with Session("job", store=self.root, replay="continue") as session:
                await self.row(session, self.program, ())
        except Fails:
            return False
        except Diverged as error:
            if "the next attempt makes it anew" not in str(error):
                raise
            return False
        return True

    async def replayed(self) -> None:
        """Replay the job."""
        async with Session("job", store=self.root, replay="offline") as session:
            await self.row(session, self.program, ())

    async def row(self, session: Session, nodes: Sequence[Node], path: Place) -> None:
        if path in self._to_meet:
            await self._to_meet.pop(path)()
        for number, node in enumerate(nodes):
            here = (*path, number)
            self.fail(here)
            await self.node(session, node, here)

    def fail(self, path: Place) -> None:
        if path not in self._passed and self.chance.random() < self.failing:
            raise Fails
        self._passed.add(path)

    async def node(self, session: Session, node: Node, path: Place) -> None:
        (kind, nodes), name = node, ".".join(map(str, path))
        if kind == "write":
            await put(name)
        elif kind == "read":
            await look(name)
        elif kind == "turn":
            await self.turn(session, nodes, path)
        elif kind == "gather":
            await self.gather(session, nodes, path)
        elif kind == "scope":
            bodies[name] = lambda: self.row(session, nodes, path)
            await scope(name)
        elif kind == "session":
            async with Session(name, store=self.root) as inner:
                await self.row(inner, nodes, path)
        elif kind == "transaction":
            async with session.transaction():
                await self.row(session, nodes, path)
        else:
            with session.branch(name):
                await self.row(session, nodes, path)

    async def turn(self, session: Session, nodes: Sequence[Node], path: Place) -> None:
        """Make calls and open blocks in their slots, in any order."""
        failed: Fails | None = None
        names = [".".join(map(str, (*path, n))) for n in range(len(nodes))]
        opens = {name: () for name, node in zip(names, nodes, strict=True) if node[0] == "branch"}
        with session.turn(opens=opens) as turn:
            for number in self.chance.sample(range(len(nodes)), len(nodes)):
                try:
                    self.fail((*path, number))
                    with turn.slot(number):
                        await self.node(session, nodes[number], (*path, number))
                except Fails as error:
                    failed = error
        if failed is not None:
            raise failed

    async def gather(self, session: Session, nodes: Sequence[Node], path: Place) -> None:
        """Gather calls and blocks without a turn.

        The first time, a block goes on once all of them have begun: no record would tell a block
        that fails before from one that had failed before its sibling was thought of.
        """
        left, all_met = len(nodes), asyncio.Event()

        def meet() -> None:
            nonlocal left
            left -= 1
            if not left:
                all_met.set()

        async def wait() -> None:
            meet()
            await all_met.wait()

        async def member(number: int) -> None:
            here = (*path, number)
            if path in self._met or nodes[number][0] in ("write", "read"):
                meet()
            else:
                self._to_meet[here] = wait
            try:
                await self.node(session, nodes[number], here)
            finally:
                if self._to_meet.pop(here, None) is not None:  # it was answered
                    meet()

        members = (member(number) for number in range(len(nodes)))
        ended = await asyncio.gather(*members, return_exceptions=True)
        self._met.add(path)
        raised = [error for error in ended if isinstance(error, BaseException)]
        if raised:
            raise min(raised, key=lambda e: (isinstance(e, Fails), isinstance(e, SessionHalted)))


def writes(nodes: Sequence[Node], path: Place = ()) -> Iterator[str]:
    """Yield the names of all writes of a program."""
    for number, (kind, inner) in enumerate(nodes):
        if kind == "write":
            yield ".".join(map(str, (*path, number)))
        yield from writes(inner, (*path, number))


def nodes(depth: int, among: Sequence[str]) -> st.SearchStrategy[Node]:
    """Draw a node with at most so many blocks in one another."""
    if not depth:
        return st.sampled_from([WRITE, WRITE, READ])
    row = st.lists(nodes(depth - 1, (*BLOCKS, *TOGETHER)), min_size=1, max_size=2).map(tuple)
    members = st.lists(nodes(depth - 1, BLOCKS), min_size=2, max_size=3).map(tuple)
    kinds = {kind: st.tuples(st.just(kind), row) for kind in BLOCKS} | {
        kind: st.tuples(st.just(kind), members) for kind in TOGETHER
    }
    return st.one_of(st.sampled_from([WRITE, READ]), *(kinds[kind] for kind in among))


@LAW
@example([("turn", (("branch", (WRITE, WRITE)), ("branch", (WRITE, WRITE))))], 0)
@given(st.lists(nodes(3, (*BLOCKS, *TOGETHER)), min_size=1, max_size=3), seeds)
def test_blocks_that_fail_go_on(program: list[Node], seed: int) -> None:
    done.clear()
    with folder() as root:
        job = Job(root, program, chances(seed))
        went = [asyncio.run(job.attempt(failing)) for failing in ATTEMPTS]
        assert went[-1]
        assert sorted(done) == sorted(writes(program))
        asyncio.run(job.replayed())
