"""Parts that are done at once, each in a branch of its own."""

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
    """One of the parts that are done at once."""

    name: str
    path: str


async def side_by_side(
    interpreter: Interpreter,
    members: list[Member],
    most: int,
    place: BlockPlace,
    do: Callable[[int, BlockPlace], Awaitable[Any]],
) -> list[Any]:
    """Do parts at once, each in a branch of its own; their results, in order."""
    room = asyncio.Semaphore(most)
    flow = Flow(place.flow)

    async def one(number: int) -> Any:
        member = members[number]
        async with room:
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

    with interpreter.session.turn(opens={member.name: () for member in members}):
        tasks = [asyncio.create_task(one(number)) for number in range(len(members))]
        with cancelling(tasks):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            raise_first(ended)
    return list(ended)
