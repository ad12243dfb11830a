"""Threads, asyncio and branches: each call gets its own result back, whoever finished first."""

import asyncio
import itertools
import tempfile
from concurrent.futures import ThreadPoolExecutor

from rollcage import Session, tool

numbers = itertools.count(1)
ran = 0


@tool(effect="write")
def take_ticket() -> int:
    """Take the next ticket: every call is the same, every result another."""
    global ran  # noqa: PLW0603 - counts what really runs
    ran += 1
    return next(numbers)


@tool(effect="read")
async def look_up(word: str) -> str:
    """Look a word up; the last one asked for is the first to be done."""
    global ran  # noqa: PLW0603 - counts what really runs
    ran += 1
    await asyncio.sleep(0.03 / len(word))
    return word.upper()


@tool(effect="write")
async def book(room: str, after: str = "") -> str:
    """Book a room, after an earlier booking."""
    global ran  # noqa: PLW0603 - counts what really runs
    ran += 1
    await asyncio.sleep(0)  # the other worker's turn
    return f"{after}{room}{next(numbers)};"


def in_threads(session: Session) -> list[int]:
    """Five identical calls of one turn, in five threads."""
    with session.turn() as turn, ThreadPoolExecutor(5) as pool:

        def one(slot: int) -> int:
            with turn.slot(slot):
                return take_ticket()

        return list(pool.map(one, range(5)))


async def in_tasks(session: Session) -> list[str]:
    """Three calls of one turn, in three tasks."""
    with session.turn():
        return await asyncio.gather(*(look_up(word) for word in ("a", "roll", "cage-bar")))


async def in_branches(session: Session) -> list[str]:
    """Two workers at once; what one of them writes depends on its own writes only."""

    async def worker(name: str) -> str:
        with session.branch(name):
            first = await book(f"{name}-a")
            return await book(f"{name}-b", after=first)

    with session.turn():
        return list(await asyncio.gather(worker("ann"), worker("bob")))


async def everything(session: Session) -> list[object]:
    """All three stories in one run."""
    return [in_threads(session), await in_tasks(session), await in_branches(session)]


async def main() -> None:
    """Record once, replay ten times."""
    with tempfile.TemporaryDirectory() as store:
        async with Session("parallel", store=store) as session:
            recorded = await everything(session)
        for story in recorded:
            print("recorded:", story)
        calls = ran
        for _ in range(10):
            async with Session("parallel", store=store, replay="offline") as session:
                assert await everything(session) == recorded
                assert session.stats.hits == session.stats.calls == calls
        assert ran == calls
        print(f"replayed ten times: {calls} calls, each its own result, no tool ran")


if __name__ == "__main__":
    asyncio.run(main())
