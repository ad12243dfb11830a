"""Calls that come while another task or thread of the attempt takes effects back."""

import asyncio
import contextvars
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session, SessionHalted, UndoIncomplete, compensate, tool

KINDS = ("call", "turn", "branch", "transaction", "session")


class World:
    """What was booked, and what was taken back; and when that is under way."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.is_begun: Any = None


world = World()


@pytest.fixture(autouse=True)
def new_world() -> None:
    world.__init__()  # type: ignore[misc] # a new one of the same name


def booked(name: str) -> str:
    world.told.append(f"+{name}")
    return f"{name}, after {len(world.told) - 1}"


@tool(effect="write", idempotent=True)
async def acancel(name: str) -> None:
    """Cancel a booking, slowly."""
    world.is_begun.set()
    for _ in range(50):  # the other task goes as far as it can
        await asyncio.sleep(0)
    world.told.append(f"-{name}")


@tool(undo=lambda args: [compensate(acancel, name=args["name"])])
async def abook(name: str) -> str:
    """Book something."""
    return booked(name)


@tool(
    once="seat/{name}",
    undo=lambda args: [compensate(acancel, name=args["name"])],
)
async def aseat(name: str) -> str:
    """Book a seat, once."""
    return booked(name)


@tool(effect="write")
async def anew(name: str) -> str:
    """Do what was never recorded."""
    return booked(name)


async def within(kind: str, session: Session, root: Path, book: Any) -> Any:
    match kind:
        case "turn":
            with session.turn():
                return await book("a")
        case "branch":
            with session.branch("b"):
                return await book("a")
        case "transaction":
            async with session.transaction():
                return await book("a")
        case "session":
            async with Session("inner", store=root):
                return await book("a")
    return await book("a")


@pytest.mark.parametrize("book", [abook, aseat], ids=["", "once"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_being_undone_answers_no_call(tmp_path: Path, kind: str, book: Any) -> None:
    async def late(session: Session) -> Any:
        await world.is_begun.wait()
        return await within(kind, session, tmp_path, book)

    def session() -> Session:
        return Session("job", store=tmp_path, replay="continue", on_divergence="undo")

    world.is_begun = asyncio.Event()
    async with Session("job", store=tmp_path) as first:
        await within(kind, first, tmp_path, book)
    async with session() as second:
        given = await asyncio.gather(anew("b"), late(second))
    assert world.told[:2] == ["+a", "-a"]
    assert sorted(world.told[2:]) == ["+a", "+b"]
    assert all(int(each.rpartition(" ")[2]) >= 2 for each in given)
    async with session() as third:
        again = await asyncio.gather(anew("b"), late(third))
        assert (third.stats.hits, third.stats.misses) == (2, 0)
    assert again == given


async def test_a_new_effect_does_not_come_in_between(tmp_path: Path) -> None:
    async def late() -> Any:
        await world.is_begun.wait()
        return await abook("c")

    world.is_begun = asyncio.Event()
    async with Session("job", store=tmp_path):
        await abook("a")
        await abook("b")
    how: Any = {"replay": "continue", "on_divergence": "undo"}
    async with Session("job", store=tmp_path, **how):
        await asyncio.gather(anew("d"), late())
    assert world.told[:4] == ["+a", "+b", "-b", "-a"]
    assert sorted(world.told[4:]) == ["+c", "+d"]


async def test_a_call_that_is_cancelled_while_it_waits_leaves_the_undo_alone(
    tmp_path: Path,
) -> None:
    world.is_begun = asyncio.Event()
    async with Session("job", store=tmp_path):
        await abook("a")
    how: Any = {"replay": "continue", "on_divergence": "undo"}
    async with Session("job", store=tmp_path, **how):
        first = asyncio.ensure_future(anew("b"))
        await world.is_begun.wait()
        waits = asyncio.ensure_future(abook("a"))
        for _ in range(5):
            await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        await first
        await abook("a")
    assert world.told == ["+a", "-a", "+b", "+a"]


async def test_a_call_that_waits_is_told_when_the_undo_halts(tmp_path: Path) -> None:
    @tool(effect="write", idempotent=True)
    async def fails(name: str) -> None:
        """Cancel nothing."""
        await acancel(name)
        raise ValueError(name)

    @tool(undo=lambda args: [compensate(fails, name=args["name"])])
    async def booked_for_good(name: str) -> str:
        """Book what can't be cancelled."""
        return booked(name)

    async def late() -> Any:
        await world.is_begun.wait()
        return await booked_for_good("a")

    world.is_begun = asyncio.Event()
    async with Session("job", store=tmp_path):
        await booked_for_good("a")
    how: Any = {"replay": "continue", "on_divergence": "undo"}
    raised: list[Any] = []
    with pytest.raises(UndoIncomplete):
        async with Session("job", store=tmp_path, **how):
            raised += await asyncio.gather(anew("b"), late(), return_exceptions=True)
    assert [type(each) for each in raised] == [UndoIncomplete, SessionHalted]
    assert "+b" not in world.told


@tool(effect="write", idempotent=True)
def cancel(name: str) -> None:
    """Cancel a booking."""
    world.begun.set()
    assert world.goes_on.wait(60)
    world.told.append(f"-{name}")


@tool(undo=lambda args: [compensate(cancel, name=args["name"])])
def book(name: str) -> str:
    """Book something."""
    return booked(name)


@tool(effect="write")
def new(name: str) -> str:
    """Do what was never recorded."""
    return booked(name)


def test_a_thread_waits_for_the_undo_of_another(tmp_path: Path) -> None:
    with Session("job", store=tmp_path):
        book("a")
    with (
        ThreadPoolExecutor() as pool,
        Session("job", store=tmp_path, replay="continue", on_divergence="undo") as session,
    ):
        threads = [pool.submit(contextvars.copy_context().run, new, "b")]
        assert world.begun.wait(60)
        threads.append(pool.submit(contextvars.copy_context().run, book, "a"))
        while session.stats.calls < 3:  # both and the compensating one have arrived
            pass
        world.goes_on.set()
        for thread in threads:
            thread.result(60)
    assert world.told[:2] == ["+a", "-a"]
    assert sorted(world.told[2:]) == ["+a", "+b"]


def looked(args: Any) -> dict[str, Any]:
    return {"seen": look(args["name"])}


@tool(effect="read")
def look(name: str) -> int:
    """Count what is booked under a name, as a guarded call."""
    return world.told.count(f"+{name}") - world.told.count(f"-{name}")


@tool(observe=looked, undo=lambda args: [compensate(cancel, name=args["name"])])
def book_seen(name: str) -> str:
    """Book something that can be observed."""
    return booked(name)


def test_a_call_in_a_tools_own_look_waits_for_nothing(tmp_path: Path) -> None:
    world.goes_on.set()
    with Session("job", store=tmp_path):
        look("a")
        book_seen("a")
    with Session("job", store=tmp_path, replay="continue", on_divergence="undo"):
        new("b")
    assert world.told[-1] == "+b"


def test_bodies_that_wait_in_every_thread_do_not_keep_an_undo_from_its_threads(
    tmp_path: Path,
) -> None:
    """The undo has a sync compensating call, which needs a thread, and so do the bodies."""
    undoes = threading.Event()
    entered: list[Future[None]] = [Future(), Future()]
    waiting: list[Future[None]] = [Future(), Future()]

    async def all_of(futures: list[Future[None]]) -> None:
        await asyncio.gather(*map(asyncio.wrap_future, futures))

    @tool(name="starved.arrive", effect="write", idempotent=True)
    async def arrive(name: str) -> None:
        undoes.set()
        await all_of(waiting)
        world.told.append(f"~{name}")

    @tool(name="starved.cancel", effect="write", idempotent=True)
    def cancel(name: str) -> None:
        world.told.append(f"-{name}")

    @tool(undo=lambda args: [compensate(arrive, **args), compensate(cancel, **args)])
    def first(name: str) -> str:
        return booked(name)

    @tool(undo=lambda args: [compensate(cancel, **args)])
    def book(name: str) -> str:
        return booked(name)

    @tool(effect="read")  # it begins although a recorded effect lies ahead
    def agent(number: int) -> str:
        entered[number].set_result(None)
        undoes.wait()
        waiting[number].set_result(None)
        return book(f"agent {number}")

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        async with Session("job", store=tmp_path) as session:
            await session.acall(first, name="a")
        async with Session(
            "job", store=tmp_path, replay="continue", on_divergence="undo"
        ) as session:
            agents = [asyncio.create_task(session.acall(agent, number=n)) for n in range(2)]
            await all_of(entered)
            await asyncio.wait_for(asyncio.gather(anew("b"), *agents), 60)

    asyncio.run(main())
    assert world.told[:3] == ["+a", "~a", "-a"]
    assert sorted(world.told[3:]) == ["+agent 0", "+agent 1", "+b"]
