"""Concurrent parts, each in a branch of its own."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from rollcage_workflow.flow import Flow, NotReached, Waits, cancelling, raise_first

if TYPE_CHECKING:
    from rollcage_workflow.flow import BlockPlace
    from rollcage_workflow.interpret import Interpreter

__all__ = ["Member", "side_by_side"]


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One of the concurrent parts."""

    name: str
    path: str


async def side_by_side(
    interpreter: Interpreter,
    members: list[Member],
    most: int,
    place: BlockPlace,
    do: Callable[[int, BlockPlace], Awaitable[Any]],
) -> list[Any]:
    """Run parts concurrently, each in a branch of its own; return their results, in order.

    Args:
        interpreter: the interpreter of the plan.
        members: the parts.
        most: so many at once. The others cost nothing until their turn.
        place: their place.
        do: runs the part with this number.
    """
    flow = Flow(place.flow)
    ended: list[Any] = [None] * len(members)
    left = iter(range(len(members)))

    async def one(number: int) -> Any:
        member = members[number]
        flow.check()
        here = dataclasses.replace(
            place, flow=flow, path=member.path, after=(), suffix="", in_row=True, round=""
        )
        try:
            with interpreter.session.branch(member.name):
                return await do(number, here)
        except (NotReached, Waits):
            raise
        except BaseException:
            flow.end()
            raise

    async def in_turn() -> None:
        for number in left:
            # a task for each, so that none sees the context of another
            task = asyncio.create_task(one(number))
            (ended[number],) = await asyncio.gather(task, return_exceptions=True)

    with interpreter.session.turn(opens={member.name: () for member in members}):
        tasks = [asyncio.create_task(in_turn()) for _ in range(min(most, len(members)))]
        with cancelling(tasks):
            turns = await asyncio.gather(*tasks, return_exceptions=True)
            raise_first([*ended, *turns])
    return ended
