"""Calls that are cut off: each is recorded for what it is, and the cut is always passed on."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from rollcage import Contract, Session, Store, UnknownOutcome, tool

Events = Callable[[str], list[dict[str, Any]]]


def outcomes(events: list[dict[str, Any]]) -> list[str]:
    """What became of each step that ended, in order; late words too."""
    return [e["outcome"]["status"] for e in events if e.get("outcome")]


def cancel_this() -> None:
    """Cancel the running task: it meets that where it waits next."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


# --- sync ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read", "pure"])
def test_an_interrupted_look_is_an_error_and_runs_again(
    store: Store, events: Events, effect: Literal["read", "pure"]
) -> None:
    ran = []

    @tool(effect=effect)
    def look() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise KeyboardInterrupt
        return len(ran)

    session = Session("job", store=store)
    with pytest.raises(KeyboardInterrupt), session:
        look()
    assert outcomes(events(session.run_id)) == ["error"]
    with Session("job", store=store):
        assert look() == 2


def test_a_scope_that_is_cut_off_is_entered_again(store: Store, events: Events) -> None:
    ran = []

    @tool(effect="write")
    def write() -> str:
        return "written"

    @tool(effect="scope")
    def agent() -> str:
        said = write()
        ran.append(said)
        if len(ran) == 1:
            raise KeyboardInterrupt
        return said

    session = Session("job", store=store)
    with pytest.raises(KeyboardInterrupt), session:
        agent()
    assert outcomes(events(session.run_id)) == ["ok", "error"]
    with Session("job", store=store) as again:
        assert agent() == "written"
    assert (again.stats.hits, again.stats.misses) == (1, 1)


def test_a_declared_timeout_is_an_error_like_another(store: Store, events: Events) -> None:
    @tool(effect="write", raises=[TimeoutError])
    def write() -> None:
        raise TimeoutError("refused before it began")

    with Session("job", store=store) as session:
        with pytest.raises(TimeoutError):
            write()
        assert session.halted is None
    assert outcomes(events(session.run_id)) == ["error"]


def test_a_timeout_of_a_read_is_an_error(store: Store, events: Events) -> None:
    @tool(effect="read")
    def read() -> None:
        raise TimeoutError

    with Session("job", store=store) as session, pytest.raises(TimeoutError):
        read()
    assert outcomes(events(session.run_id)) == ["error"]


# --- async ---------------------------------------------------------------------------------------


class Gate:
    """A body that can be met in its middle."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.may_go = asyncio.Event()

    async def body(self) -> str:
        self.entered.set()
        await self.may_go.wait()
        return "done"


async def test_a_cancelled_read_is_an_error_and_the_session_goes_on(
    store: Store, events: Events
) -> None:
    gate = Gate()
    async with Session("job", store=store) as session:
        read = session.tool(tool(effect="read")(gate.body))
        task = asyncio.create_task(read())
        await gate.entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.may_go.set()
        assert await read() == "done"
    assert outcomes(events(session.run_id)) == ["error", "ok"]


@pytest.mark.parametrize(("effect", "status"), [("write", "unknown"), ("read", "error")])
async def test_a_deadline_around_a_call_cuts_it_off(
    store: Store, events: Events, effect: Literal["write", "read"], status: str
) -> None:
    gate = Gate()
    session = Session("job", store=store)
    call = session.tool(tool(effect=effect)(gate.body))

    async def agent() -> None:
        async with session:
            async with asyncio.timeout(None) as deadline:
                task = asyncio.create_task(gate.entered.wait())
                task.add_done_callback(lambda _: deadline.reschedule(0))  # once the body is met
                await call()

    with pytest.raises(UnknownOutcome if effect == "write" else TimeoutError):
        await agent()
    assert outcomes(events(session.run_id)) == [status] * (status != "unknown")


async def test_a_step_that_has_not_started_runs_in_the_next_run(store: Store) -> None:
    @tool(effect="write")
    async def write() -> str:
        return "done"

    async def agent() -> None:
        async with Session("job", store=store):
            cancel_this()
            await write()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(agent())
    async with Session("job", store=store) as session:
        assert await write() == "done"
    assert (session.stats.hits, session.stats.misses) == (0, 1)


async def test_a_call_cancelled_after_its_body_is_done(store: Store, events: Events) -> None:
    """The outcome is known and recorded; the cancellation is passed on where it is met next."""

    @tool(effect="write")
    async def write() -> str:
        cancel_this()
        return "done"

    session = Session("job", store=store)

    async def agent() -> None:
        async with session:
            await write()  # meets it while it waits for the disk
            pytest.fail("the cancellation was lost")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(agent())
    assert outcomes(events(session.run_id)) == ["ok"]
    async with Session("job", store=store) as again:
        assert await write() == "done"
    assert again.stats.hits == 1


# --- a sync body under await ---------------------------------------------------------------------


class Thread:
    """A sync body in a thread of its own, which can be met in its middle."""

    def __init__(self, ends: Callable[[], Any]) -> None:
        self.entered = threading.Event()
        self.may_go = threading.Event()
        self.ended = threading.Event()
        self.ends = ends

    def body(self) -> Any:
        self.entered.set()
        assert self.may_go.wait(60)
        self.ended.set()
        return self.ends()


def fail() -> None:
    raise ValueError("it did not work")


async def cut_off(session: Session, write: Any, thread: Thread) -> None:
    """Cancel a call whose body is at work in a thread."""
    task = asyncio.create_task(session.acall(write))
    await asyncio.to_thread(thread.entered.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("ends", "late"), [(lambda: "done", "ok"), (fail, "error")], ids=["returns", "raises"]
)
async def test_the_late_end_of_a_body_is_recorded_while_the_session_is_open(
    store: Store, events: Events, ends: Callable[[], Any], late: str
) -> None:
    thread = Thread(ends)
    write = tool(effect="write", name="write")(thread.body)
    session = Session("job", store=store)
    with pytest.raises(UnknownOutcome):
        async with session:
            await cut_off(session, write, thread)
            assert isinstance(session.halted, UnknownOutcome)
            thread.may_go.set()
            while late not in outcomes(events(session.run_id)):
                await asyncio.to_thread(int)  # let the loop hear of the thread's end
    if late == "ok":
        async with Session("job", store=store) as again:
            assert await again.acall(write) == "done"
        assert again.stats.hits == 1
        return
    with pytest.raises(UnknownOutcome, match="failed at step 1"):
        async with Session("job", store=store) as again:
            await again.acall(write)


async def test_a_body_that_outlives_its_session_stays_unknown(store: Store, events: Events) -> None:
    thread = Thread(lambda: "done")
    write = tool(effect="write", name="write")(thread.body)
    session = Session("job", store=store)
    with pytest.raises(UnknownOutcome):
        async with session:
            await cut_off(session, write, thread)
    written = events(session.run_id)
    thread.may_go.set()
    await asyncio.to_thread(thread.ended.wait)
    assert outcomes(written) == []
    assert events(session.run_id) == written
    with pytest.raises(UnknownOutcome):
        async with Session("job", store=store) as again:
            await again.acall(write)


async def test_a_body_still_queued_when_it_is_cancelled_never_runs(
    store: Store, events: Events
) -> None:
    """A halted or left session runs nothing any more, what waits for a free thread included."""
    busy = Thread(lambda: None)
    asked = asyncio.Event()
    ran: list[int] = []
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with Session("job", store=store) as session:
        blocked = asyncio.create_task(asyncio.to_thread(busy.body))
        await asyncio.sleep(0)
        write = tool(effect="write", name="write")(lambda: ran.append(1))
        task = asyncio.create_task(session.acall(write))
        asyncio.get_running_loop().call_soon(asked.set)  # behind the task's first step
        await asked.wait()
        assert session.stats.calls == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.halted is None
        busy.may_go.set()
        await blocked
    assert ran == []
    async with Session("job", store=store) as again:
        await again.acall(write)
    assert ran == [1]


# --- streams -------------------------------------------------------------------------------------


def test_a_stream_whose_consumer_stops_is_cut_off(store: Store, events: Events) -> None:
    contract = Contract(name="feed", parameters={}, effect="write")
    session = Session("job", store=store)
    with pytest.raises(UnknownOutcome), session:
        stream = session.stream(contract, {}, lambda: iter("abc"))
        assert next(stream) == "a"
        del stream  # nobody asks for more
        assert session.halted is not None
    assert outcomes(events(session.run_id)) == []


async def test_an_async_stream_that_is_cancelled_is_cut_off(store: Store, events: Events) -> None:
    contract = Contract(name="feed", parameters={}, effect="read")
    entered = asyncio.Event()

    async def chunks() -> Any:
        yield "a"
        entered.set()
        await asyncio.Event().wait()

    async with Session("job", store=store) as session:

        async def consume() -> list[str]:
            return [chunk async for chunk in session.astream(contract, {}, chunks)]

        task = asyncio.create_task(consume())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert outcomes(events(session.run_id)) == ["error"]


# --- time limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tool", "model"])
async def test_a_program_whose_time_limit_ended_a_read_goes_the_same_way(
    store: Store, kind: Literal["tool", "model"]
) -> None:
    ran: list[str] = []
    contract = Contract(name="slow", parameters={}, effect="read")

    async def slow() -> str:
        ran.append("slow")
        await asyncio.Event().wait()
        return "never"

    @tool(effect="write")
    async def put(what: str) -> None:
        ran.append(what)

    async def job(session: Session) -> None:
        async with session:
            try:
                call = session.arun_call(contract, {}, slow, kind=kind)
                said = await asyncio.wait_for(call, 60)
            except TimeoutError:
                said = "instead"
            await put(said)
            await put("next")

    with pytest.raises(ZeroDivisionError):
        async with Session("job", store=store) as session:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.arun_call(contract, {}, slow, kind=kind), 0.01)
            await put("instead")
            raise ZeroDivisionError
    await job(Session("job", store=store))
    await job(Session("job", store=store, replay="offline"))
    assert ran == ["slow", "instead", "next"]
