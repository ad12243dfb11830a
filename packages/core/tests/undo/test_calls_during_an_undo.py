"""Calls that come while another task or thread of the attempt takes effects back."""

import asyncio
import contextvars
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import (
    Diverged,
    Session,
    SessionError,
    SessionHalted,
    UndoIncomplete,
    compensate,
    open_store,
    tool,
)
from rollcage.gate import Approval, StepView, Verdict

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
        await asyncio.wait_for(world.is_begun.wait(), 60)
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
        await asyncio.wait_for(world.is_begun.wait(), 60)
        return await abook("c")

    world.is_begun = asyncio.Event()
    async with Session("job", store=tmp_path):
        await abook("a")
        await abook("b")
    how: Any = {"replay": "continue", "on_divergence": "undo"}
    async with Session("job", store=tmp_path, **how) as session:
        await asyncio.gather(anew("d"), late())
    assert world.told[:4] == ["+a", "+b", "-b", "-a"]
    assert sorted(world.told[4:]) == ["+c", "+d"]
    lines = map(orjson.loads, open_store(tmp_path).read(session.run_id))
    turns = {each["args"]["name"]: each["turn"] for each in lines if each["event"] == "step"}
    assert turns["c"] == turns["d"] > turns["b"]  # they overlap


async def test_a_call_that_is_cancelled_while_it_waits_leaves_the_undo_alone(
    tmp_path: Path,
) -> None:
    world.is_begun = asyncio.Event()
    async with Session("job", store=tmp_path):
        await abook("a")
    how: Any = {"replay": "continue", "on_divergence": "undo"}
    async with Session("job", store=tmp_path, **how):
        first = asyncio.ensure_future(anew("b"))
        await asyncio.wait_for(world.is_begun.wait(), 60)
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
    @tool(name="told.fails", effect="write", idempotent=True)
    async def fails(name: str) -> None:
        """Cancel nothing."""
        await acancel(name)
        raise ValueError(name)

    @tool(undo=lambda args: [compensate(fails, name=args["name"])])
    async def booked_for_good(name: str) -> str:
        """Book what can't be cancelled."""
        return booked(name)

    async def late() -> Any:
        await asyncio.wait_for(world.is_begun.wait(), 60)
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


# --- undos that a task asks for, beside other tasks ----------------------------------------------


def steps(session: Session) -> list[dict[str, Any]]:
    """Return the lines of the steps of a run."""
    lines = map(orjson.loads, open_store(session.store).read(session.run_id))
    return [line for line in lines if line["event"] == "step"]


async def test_calls_behind_a_call_that_waited_for_an_undo_come_one_after_another(
    tmp_path: Path,
) -> None:
    async def late() -> None:
        await asyncio.wait_for(world.is_begun.wait(), 60)
        await abook("c")

    world.is_begun = asyncio.Event()
    async with Session("job", store=tmp_path) as session:
        await abook("a")
        await abook("b")
        await asyncio.gather(session.aundo(1), late())
        await abook("d")
        await abook("e")
    booked = [line for line in steps(session) if line["name"] == "abook"]
    assert [line["args"]["name"] for line in booked] == ["a", "b", "c", "d", "e"]
    assert [line["pos"] for line in booked] == [0, 1, 1, 2, 3]
    assert not any(line.get("during") for line in booked)


@pytest.mark.parametrize("kind", ["call", "transaction"])
async def test_a_sync_call_on_the_loop_of_an_undo_does_not_wait_for_ever(
    tmp_path: Path, kind: str
) -> None:
    async def late(session: Session) -> None:
        await asyncio.wait_for(world.is_begun.wait(), 60)
        with pytest.raises(SessionError, match="await"):
            if kind == "call":
                book("c")
            else:
                with session.transaction():
                    new("never")
                    raise AssertionError

    world.is_begun = asyncio.Event()
    async with Session("job", store=tmp_path) as session:
        await abook("a")
        await asyncio.gather(session.aundo(), late(session))
        book("c")
    assert world.told == ["+a", "-a", "+c"]


async def test_an_undo_is_no_part_of_an_undo(tmp_path: Path) -> None:
    refused: list[str] = []

    @tool(name="undoes.within", effect="write", idempotent=True)
    async def within(name: str, store: str) -> None:
        with pytest.raises(SessionError, match="a compensating call") as error:
            await session.aundo()
        refused.append(str(error.value))
        async with Session("other", store=store) as other:  # a run of its own
            await abook("b")
            await other.aundo()
            await acancel(name)

    inner = str(tmp_path / "inner")

    @tool(undo=lambda args: [compensate(within, name=args["name"], store=inner)])
    async def undoes(name: str) -> str:
        return booked(name)

    world.is_begun = asyncio.Event()
    async with Session("job", store=tmp_path / "outer") as session:
        await undoes("a")
        await asyncio.wait_for(session.aundo(), 60)
    assert world.told == ["+a", "+b", "-b", "-a"]
    assert len(refused) == 1


def test_a_turn_goes_on_where_an_undo_has_gone_back_to(tmp_path: Path) -> None:
    @tool(effect="read")
    def agent(name: str) -> str:
        return book(name)

    world.goes_on.set()
    with Session("job", store=tmp_path) as session:
        book("a")
        book("b")
        with session.turn():
            book("c")
            session.undo(1)
            agent("d")
        book("e")
    with Session("job", store=tmp_path, replay="continue") as again:
        book("a")
        with again.turn():
            agent("d")
        book("e")
        assert (again.stats.hits, again.stats.misses) == (3, 0)
    assert world.told == ["+a", "+b", "+c", "-c", "-b", "+d", "+e"]


def asks(view: StepView) -> Verdict | None:
    """Ask about one name."""
    return Verdict.ask("sure?") if view.args.get("name") == "asked" else None


@pytest.mark.parametrize("answer", [True, False])
async def test_a_decision_from_before_an_undo_does_not_count_behind_it(
    tmp_path: Path, answer: bool
) -> None:
    requests: list[str] = []
    asked, undone = asyncio.Event(), asyncio.Event()

    async def approver(request: Any) -> Approval:
        requests.append(request.id)
        asked.set()
        if len(requests) > 1:
            return Approval(True, by="ann")
        await undone.wait()
        return Approval(answer, by="ann")

    async def undo(session: Session) -> None:
        await asked.wait()
        await session.aundo(1)
        undone.set()

    world.is_begun = asyncio.Event()
    how: Any = {"store": tmp_path, "gate": [asks], "approver": approver}
    async with Session("job", **how) as session:
        await abook("a")
        await abook("b")
        await asyncio.gather(abook("asked"), undo(session))
        await abook("c")
    assert world.told == ["+a", "+b", "-b", "+asked", "+c"]
    assert len({*requests}) == 2
    async with Session("job", replay="continue", **how) as again:
        for name in ("a", "asked", "c"):
            await abook(name)
    assert (again.stats.hits, again.stats.misses) == (3, 0)


async def test_a_call_that_waits_beside_an_undo_keeps_its_place(tmp_path: Path) -> None:
    answered, asked = asyncio.Event(), asyncio.Event()

    async def approver(_: Any) -> Approval:
        asked.set()
        await answered.wait()
        return Approval(True, by="ann")

    async def line(session: Session, name: str, turn: Any) -> None:
        with session.branch(name):
            await anew(f"{name} first")
            if name == "stays":
                await abook("asked")
                await anew("last")

    async def undo(session: Session) -> None:
        await asked.wait()
        await session.aundo(branch="goes")
        answered.set()

    async def program(session: Session, *, undoes: bool) -> None:
        with session.turn(opens={"stays": [], "goes": []}) as turn:
            also = [undo(session)] if undoes else []
            names = ["goes", "stays"] if undoes else ["stays"]
            await asyncio.gather(*(line(session, each, turn) for each in names), *also)

    world.is_begun = asyncio.Event()
    how: Any = {"store": tmp_path, "gate": [asks], "approver": approver}
    async with Session("job", **how) as session:
        await program(session, undoes=True)
    async with Session("job", replay="continue", **how) as again:
        await program(again, undoes=False)
    assert (again.stats.hits, again.stats.misses) == (3, 0)


async def test_a_call_that_waits_in_a_block_does_not_begin_once_it_is_rolled_back(
    tmp_path: Path,
) -> None:
    answered, asked = asyncio.Event(), asyncio.Event()

    async def approver(_: Any) -> Approval:
        asked.set()
        await answered.wait()
        return Approval(True, by="ann")

    world.is_begun = asyncio.Event()
    with pytest.raises(Diverged, match="rolled back"):
        async with Session("job", store=tmp_path, gate=[asks], approver=approver) as session:
            late: list[asyncio.Future[Any]] = []
            with pytest.raises(KeyError):
                async with session.transaction():
                    await abook("a")
                    late.append(asyncio.ensure_future(abook("asked")))
                    await asked.wait()
                    raise KeyError
            answered.set()
            await asyncio.wait(late)
    assert world.told == ["+a", "-a"]


state: dict[str, str] = {}


@tool(effect="write", idempotent=True)
async def restore(value: str) -> None:
    """Restore the state."""
    world.is_begun.set()
    for _ in range(50):
        await asyncio.sleep(0)
    state["x"] = value


async def observe(args: Any) -> dict[str, str]:
    """Look at the state, for as long as another task needs to begin an undo."""
    seen = dict(state)
    if args["value"] == "late":
        await asyncio.wait_for(world.is_begun.wait(), 60)
    return seen


@tool(observe=observe, undo=lambda before: [compensate(restore, value=before["x"])])
async def change(value: str) -> str:
    """Change the state."""
    state["x"] = value
    return value


async def test_the_state_before_a_call_is_the_one_behind_the_undo_that_it_waited_for(
    tmp_path: Path,
) -> None:
    state["x"] = "first"
    world.is_begun = asyncio.Event()
    async with Session("job", store=tmp_path) as session:
        await change("gone")
        await asyncio.gather(change("late"), session.aundo())
        assert state["x"] == "late"
        await session.aundo()
    assert state["x"] == "first"


def test_a_call_whose_body_asks_for_an_undo_is_asked_for_once(tmp_path: Path) -> None:
    @tool(name="asks.agent", undo=lambda args: [compensate(cancel, name=args["name"])])
    def agent(name: str) -> str:
        with session.branch("part"):
            book("part")
        session.undo(branch="part")
        return booked(name)

    world.goes_on.set()
    with pytest.raises(KeyError), Session("job", store=tmp_path) as session:
        book("a")
        raise KeyError
    with Session("job", store=tmp_path, on_divergence="undo") as session:
        book("a")
        agent("b")
        new("c")
    assert world.told == ["+a", "+part", "-part", "+b", "+c"]
    with Session("job", store=tmp_path, replay="continue") as session:
        book("a")
        agent("b")
        new("c")
        assert (session.stats.hits, session.stats.misses) == (3, 0)


def test_a_branch_comes_after_one_that_was_undone(tmp_path: Path) -> None:
    world.goes_on.set()
    with Session("job", store=tmp_path) as session:
        with session.branch("first") as first:
            book("a")
        session.undo(branch="first")
        with session.branch("second", after=[first]):
            book("b")
    assert world.told == ["+a", "-a", "+b"]


@pytest.mark.parametrize("name", ["c", "asked"])
def test_a_block_that_an_undo_has_reopened_is_left(tmp_path: Path, name: str) -> None:
    world.goes_on.set()
    with pytest.raises(KeyError), Session("job", store=tmp_path) as session:
        book("a")
        raise KeyError
    how: Any = {"gate": [asks], "approver": lambda _: Approval(True, by="ann")}
    with Session("job", store=tmp_path, on_divergence="undo", **how) as session:
        book("a")
        with session.branch("around"):
            book("stays")
            with session.branch("part"):
                book("goes")
        session.undo(branch="part")
        new(name)
    assert world.told == ["+a", "+stays", "+goes", "-goes", f"+{name}"]


@tool(effect="read")
async def alook(name: str) -> str:
    """Look at something."""
    world.told.append(f"?{name}")
    return name


async def test_a_look_does_not_wait_for_an_undo(tmp_path: Path) -> None:
    async def late() -> str:
        await asyncio.wait_for(world.is_begun.wait(), 60)
        return await alook("c")

    world.is_begun = asyncio.Event()
    with pytest.raises(KeyError):
        async with Session("job", store=tmp_path):
            await abook("a")
            raise KeyError
    async with Session("job", store=tmp_path, on_divergence="undo"):
        given = await asyncio.gather(anew("b"), late())
    assert world.told == ["+a", "?c", "-a", "+b"]
    assert given[1] == "c"
