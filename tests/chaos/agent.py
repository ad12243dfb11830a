"""Carries a plan out in a session: one agent for sync and async."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import Any

from rollcage import Session

from tests.chaos.faults import Fault, now
from tests.chaos.place import Place, Tool
from tests.chaos.work import Op, Part


class ChangedItsMind(Exception):
    """What the agent itself raises, in a transaction that it gives up."""


class Agent:
    """Works at a plan.

    Args:
        waits: use the async forms; tools then run in threads, those of a turn at once.
        fault: what is to go wrong.
    """

    def __init__(
        self,
        session: Session,
        place: Place,
        tools: Mapping[str, Tool],
        *,
        waits: bool,
        fault: Fault | None = None,
    ) -> None:
        self._session = session
        self._place = place
        self._tools = tools
        self._waits = waits
        self._fault = fault
        self._made = 0

    def run(self, plan: Sequence[Part], *, whole: bool, gives_up: bool = False) -> None:
        """Do all of it, `whole`: in one transaction, which it may give up at the end."""
        work = self._all(plan, whole=whole, gives_up=gives_up)
        if self._waits:
            asyncio.run(work)
        else:
            _finish(work)

    async def _all(self, plan: Sequence[Part], *, whole: bool, gives_up: bool) -> None:
        if not whole:
            await self._each(plan)
            return
        async with self._transaction():
            await self._each(plan)
            self._agent_fails()
            if gives_up:
                raise ChangedItsMind

    async def _each(self, parts: Sequence[Part]) -> None:
        for part in parts:
            await self._one(part)

    async def _one(self, part: Part) -> None:
        if part.kind == "block":
            with contextlib.suppress(ChangedItsMind):
                async with self._transaction():
                    await self._each(part.parts)
                    if part.fails:
                        raise ChangedItsMind
        elif part.kind == "call":
            await self._call(part.ops[0])
        else:
            await self._turn(part.ops)

    async def _turn(self, ops: Sequence[Op]) -> None:
        with self._session.turn() as turn:
            if not self._waits:
                for op in ops:
                    await self._call(op)
                return

            async def one(slot: int, op: Op, number: int) -> None:
                with turn.slot(slot):
                    await self._acall(op, number)

            first, self._made = self._made, self._made + len(ops)
            if self._fault is not None and first <= self._fault.at < self._made:
                self._agent_fails(self._fault.at)
            calls = [one(slot, op, first + slot) for slot, op in enumerate(ops)]
            ended = await asyncio.gather(*calls, return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each

    def _agent_fails(self, number: int | None = None) -> None:
        fault, number = self._fault, self._made if number is None else number
        if fault is not None and fault.when == "agent" and fault.at == number:
            fault.come()

    async def _call(self, op: Op) -> None:
        self._agent_fails()
        number, self._made = self._made, self._made + 1
        await self._acall(op, number)

    async def _acall(self, op: Op, number: int) -> None:
        tool, arguments = self._tools[op.tool], self._place.arguments(op.tool, op.args)
        token = now.set(number)
        try:
            if self._waits:
                await self._session.acall(tool, **arguments)
            else:
                self._session.call(tool, **arguments)
        finally:
            now.reset(token)

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[None]:
        if self._waits:
            async with self._session.transaction():
                yield
        else:
            with self._session.transaction():
                yield


def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Run what never waits, without a loop."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("a sync agent waited")


def calls_of(parts: Sequence[Part]) -> list[Op]:
    """All calls of a plan, in order; what comes behind a failing end of a block included."""
    found: list[Op] = []
    for part in parts:
        found += [*part.ops, *calls_of(part.parts)]
    return found


def drawn_fault(calls: Sequence[Op], chance: random.Random) -> Fault:
    """An error somewhere in a plan."""
    from tests.chaos.faults import Injected

    at = chance.randrange(len(calls))
    return Fault(
        at=at,
        when=chance.choice(["agent", "before", "middle", "behind"]),
        error=chance.choice([Injected, OSError, KeyError, TimeoutError, ConnectionResetError]),
        depth=chance.randrange(6),
        wire=chance.choice(["refused", "lost", "broken", "silent"]),
    )
