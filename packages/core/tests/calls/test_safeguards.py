"""What must not slip through: each of these would run a write twice, or give back a wrong value."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from rollcage import Contract, DidNotHappen, Happened, Options, Session, Store, current_step, tool
from rollcage.errors import (
    Diverged,
    NotReplayable,
    SessionHalted,
    TraceUnwritable,
    UnknownOutcome,
)

MODEL = Contract(name="model", parameters={"type": "object", "properties": {}}, effect="read")
LARGE = "x" * 100_000
ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@pytest.fixture
def session(store: Store) -> Callable[..., Session]:
    def make(replay: Any = "auto", **how: Any) -> Session:
        return Session("job", store=store, replay=replay, **how)

    return make


@tool(name="safe.write", effect="write")
def write(what: Any) -> Any:
    ran.append(what)
    return what


def crash(make: Any, *actions: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="crash"), make():
        for action in actions:
            action()
        raise RuntimeError("crash")
    ran.clear()


# --- attempts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["pure", "read", "write"])
def test_a_frontier_failure_runs_again_each_attempt(session: Any, effect: Any) -> None:
    @tool(effect=effect)
    def flaky() -> str:
        ran.append("flaky")
        if len(ran) < 4:
            raise ConnectionRefusedError(len(ran))
        return "at last"

    for _ in range(3):
        with pytest.raises(ConnectionError), session():
            flaky()
    with session():
        assert flaky() == "at last"
    assert len(ran) == 4


def test_a_model_failure_behind_a_healed_read_runs_again(session: Any) -> None:
    @tool(effect="read")
    def look() -> str:
        ran.append("look")
        if len(ran) == 1:
            raise ValueError("blind")
        return "seen"

    def agent(opened: Session) -> Any:
        look()

        def ask() -> str:
            ran.append("ask")
            if ran.count("ask") < 3:
                raise ConnectionRefusedError("rate limit")
            return "answer"

        return opened.run_call(MODEL, {}, ask, kind="model")

    for error in (ValueError, ConnectionError, ConnectionError):
        with pytest.raises(error), session() as opened:
            agent(opened)
    with session() as opened:
        assert agent(opened) == "answer"
    assert ran == ["look", "look", "ask", "ask", "ask"]


@pytest.mark.parametrize("kind", ["tool", "model"])
def test_a_failure_behind_a_healed_write_runs_again(session: Any, kind: Any) -> None:
    """The write that is made again did not come after the failure."""

    @tool(effect="write", raises=(ValueError,))
    def flaky() -> None:
        ran.append("flaky")
        if len(ran) == 1:
            raise ValueError("not yet")

    def ask() -> str:
        ran.append("ask")
        if ran.count("ask") < 4:
            raise ConnectionRefusedError("rate limit")
        return "answer"

    def agent(opened: Session) -> Any:
        with contextlib.suppress(ValueError):
            flaky()
        contract = MODEL if kind == "model" else dataclasses.replace(MODEL, effect="pure")
        return opened.run_call(contract, {}, ask, kind=kind)

    for _ in range(3):
        with pytest.raises(ConnectionError), session() as opened:
            agent(opened)
    with session() as opened:
        assert agent(opened) == "answer"
    assert ran == ["flaky", "ask", "flaky", "ask", "ask", "ask"]


def test_siblings_stay_when_a_failure_runs_again(session: Any) -> None:
    """`retry_failed` leaves behind what came later, not what was issued with the failure."""

    @tool(effect="write", raises=(ValueError,))
    def flaky() -> str:
        ran.append("flaky")
        if ran.count("flaky") == 1:
            raise ValueError("once")
        return "twice"

    with pytest.raises(RuntimeError), session() as first:
        with first.turn():
            with pytest.raises(ValueError, match="once"):
                flaky()
            write("sibling")
        write("later")
        raise RuntimeError
    how = {"options": Options(retry_failed=True), "on_divergence": "warn"}
    with session(**how) as again, again.turn():
        flaky()
        write("sibling")
    assert ran == ["flaky", "sibling", "later", "flaky"]


def test_identical_reads_of_interleaved_turns_keep_their_values(session: Any) -> None:
    @tool(effect="read")
    def count() -> int:
        ran.append("count")
        return ran.count("count")

    @tool(effect="read")
    def other() -> None:
        return None

    def agent(opened: Session) -> tuple[int, int]:
        with opened.turn() as turn:
            pass
        with turn.slot(0):
            other()
        write("between")
        alone = count()
        with turn.slot(1):
            return alone, count()

    with session() as first:
        recorded = agent(first)
    with session("offline") as again:
        assert agent(again) == recorded == (1, 2)


# --- what can't be given back --------------------------------------------------------------------


@pytest.mark.parametrize("damage", [None, b"[]"])
async def test_a_write_whose_large_result_is_gone_halts(
    session: Any, store: Store, damage: bytes | None
) -> None:
    crash(session, big)
    for digest in list(store.keys("blobs")):
        store.swap("blobs", digest, store.get("blobs", digest), damage)
    with pytest.raises(NotReplayable, match="is gone or damaged"), session():
        with pytest.raises(NotReplayable):
            big()
        with pytest.raises(SessionHalted):
            big()
    with pytest.raises(NotReplayable, match="is gone or damaged"):
        async with session() as opened:
            with pytest.raises(NotReplayable):
                await opened.acall(big)
            with pytest.raises(SessionHalted):
                await opened.acall(big)
    assert ran == []


def test_a_result_that_its_return_type_no_longer_takes_halts(session: Any) -> None:
    class Old(BaseModel):
        x: int

    class New(BaseModel):
        x: int
        y: int

    def make(model: Any) -> Any:
        def pay() -> Any:
            ran.append("pay")
            return Old(x=1)

        pay.__annotations__["return"] = model
        return tool(effect="write")(pay)

    crash(session, make(Old))
    with pytest.raises(NotReplayable, match="pay"), session():
        make(New)()
    assert ran == []


@pytest.mark.parametrize(
    ("was", "now"), [("write", "pure"), ("pure", "write"), ("read", "write"), ("write", "read")]
)
def test_another_declared_effect_repeats_no_recorded_call(session: Any, was: Any, now: Any) -> None:
    def act() -> int:
        ran.append("act")
        return 1

    crash(session, tool(effect=was)(act))
    with pytest.raises(NotReplayable, match=f"with the effect '{was}'"), session():
        tool(effect=now)(act)()
    assert ran == []


def test_a_renamed_branch_does_not_do_everything_again(session: Any, events: Any) -> None:
    def agent(opened: Session, name: str) -> None:
        with opened.branch(name):
            write("inside")

    with pytest.raises(RuntimeError), session() as first, first.branch("a"):
        write("inside")
        raise RuntimeError
    ran.clear()
    with pytest.raises(Diverged, match=r"step \d \(safe.write\)"), session() as renamed:
        agent(renamed, "b")
    assert ran == []
    with session(on_divergence="warn") as accepted:
        agent(accepted, "b")
    assert [line["left"] for line in events(accepted.run_id) if "left" in line] == [[[1, 2]]]


@pytest.mark.parametrize("answers", [True, False])
def test_an_idempotent_write_is_asked_about_before_it_repeats(session: Any, answers: bool) -> None:
    keys: list[str] = []

    def probe(key: str) -> Any:
        ran.append("asked")
        return (Happened("found") if key in keys else DidNotHappen()) if answers else None

    @tool(effect="write", idempotent=True, probe=probe)
    def pay() -> str:
        step = current_step()
        assert step is not None
        keys.append(step.idempotency_key)
        if len(keys) == 1:
            raise KeyboardInterrupt
        return "paid"

    with pytest.raises(KeyboardInterrupt), session():
        pay()
    with session():
        assert pay() == ("found" if answers else "paid")
    assert ran == ["asked"]
    assert len(keys) == (1 if answers else 2)
    assert len(set(keys)) == 1


# --- a session that is halted or left ------------------------------------------------------------


class Queued(ThreadPoolExecutor):
    """The only thread of a loop, with a write that takes it until it is let go: then it is cut off.

    What is given to the thread meanwhile waits for `goes_on`.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self.loop = asyncio.get_running_loop()
        self.loop.set_default_executor(self)
        self.begun, self.go_on, self.goes_on = asyncio.Event(), threading.Event(), threading.Event()

    def submit(self, work: Callable[..., Any], /, *args: Any, **how: Any) -> Any:
        if not self.begun.is_set():
            return super().submit(work, *args, **how)

        def later() -> Any:
            assert self.goes_on.wait(60)
            return work(*args, **how)

        return super().submit(later)

    def cut(self, number: int) -> int:
        ran.append(number)
        self.loop.call_soon_threadsafe(self.begun.set)
        assert self.go_on.wait(60)
        if number == 0:
            raise TimeoutError
        return number


async def test_no_body_begins_once_the_session_is_halted(session: Any) -> None:
    queue = Queued()
    cut = tool(effect="write")(queue.cut)
    ended: list[Any] = []
    with pytest.raises(UnknownOutcome):
        async with session() as opened:
            first = asyncio.create_task(opened.acall(cut, number=0))
            await queue.begun.wait()
            calls = [asyncio.create_task(opened.acall(cut, number=n)) for n in range(1, 4)]
            await asyncio.sleep(0)  # they wait for its thread
            queue.go_on.set()
            await asyncio.wait([first])
            queue.goes_on.set()
            ended = await asyncio.gather(first, *calls, return_exceptions=True)
    assert ran == [0]
    assert [type(each) for each in ended] == [TimeoutError, *[SessionHalted] * 3]


async def test_a_call_cut_off_before_its_thread_did_not_happen(session: Any) -> None:
    queue = Queued()
    cut = tool(effect="write")(queue.cut)
    with pytest.raises(RuntimeError, match="crash"):
        async with session() as opened:
            first = asyncio.create_task(opened.acall(cut, number=1))
            await queue.begun.wait()
            second = asyncio.create_task(opened.acall(cut, number=2))
            while not any(  # noqa: ASYNC110 - no event says that a line was written
                line["event"] == "step" and line["args"] == {"number": 2}
                for line in map(orjson.loads, opened.store.read(opened.run_id))
            ):
                await asyncio.sleep(0.001)  # its intent is on record
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            queue.go_on.set()
            queue.goes_on.set()
            assert await first == 1
            raise RuntimeError("crash")
    async with session() as again:
        assert await asyncio.gather(*(again.acall(cut, number=n) for n in (1, 2))) == [1, 2]
    assert ran == [1, 2]


async def test_no_body_begins_behind_another_that_halts(session: Any) -> None:
    @tool(effect="write")
    async def cut(number: int) -> None:
        ran.append(number)
        raise TimeoutError

    ended: list[Any] = []
    with pytest.raises(UnknownOutcome):
        async with session() as opened:
            both = (opened.acall(cut, number=n) for n in range(2))
            ended = await asyncio.gather(*both, return_exceptions=True)
    assert len(ran) == 1
    assert {type(each) for each in ended} == {TimeoutError, SessionHalted}


def test_a_session_left_around_a_write_did_not_end_well(session: Any) -> None:
    begun, let_go = threading.Event(), threading.Event()

    @tool(effect="write")
    def slow() -> None:
        ran.append("slow")
        begun.set()
        let_go.wait()

    def in_thread(opened: Session) -> None:
        with pytest.raises(TraceUnwritable, match="after its session was left"):
            opened.call(slow)

    opened = session()
    thread = threading.Thread(target=in_thread, args=(opened,))
    with pytest.raises(UnknownOutcome, match=r"step 1 \(slow\) .* its session was left"), opened:
        thread.start()
        begun.wait()
    let_go.set()
    thread.join()
    with pytest.raises(UnknownOutcome), session():
        slow()
    assert ran == ["slow"]


@tool(name="safe.big", effect="write")
def big() -> str:
    ran.append("big")
    return LARGE


@tool(name="safe.big_read", effect="read")
def big_read() -> str:
    ran.append("read")
    return LARGE


def interrupt(patch: pytest.MonkeyPatch, store: Store, name: str) -> None:
    """Have Ctrl-C come at a store: once, while it keeps or gets a large value."""
    real = getattr(store, name)
    came: list[str] = []

    def interrupted(kind: str, *rest: Any) -> Any:
        if kind == "blobs" and not came:
            came.append(kind)
            raise KeyboardInterrupt
        return real(kind, *rest)

    patch.setattr(store, name, interrupted)


def swallowed(action: Callable[[], Any]) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # as some agents do
        action()


CHUNKS = Contract(name="safe.big", parameters={"type": "object"}, effect="write")


def large_pieces() -> Iterator[str]:
    ran.append("big")
    yield LARGE


async def large_apieces() -> AsyncIterator[str]:
    ran.append("big")
    yield LARGE


async def sync(opened: Session) -> None:
    opened.call(big)


async def awaited(opened: Session) -> None:
    await opened.acall(big)


async def streamed(opened: Session) -> None:
    list(opened.stream(CHUNKS, {}, large_pieces))


async def drained(opened: Session) -> None:
    async for _ in opened.astream(CHUNKS, {}, large_apieces):
        pass


@pytest.mark.parametrize("act", [sync, awaited, streamed, drained])
async def test_a_swallowed_interrupt_behind_a_write_halts(
    store: Store, monkeypatch: pytest.MonkeyPatch, act: Any
) -> None:
    """Its body ran and its end is not in the log: nobody can tell, so nothing goes on."""
    interrupt(monkeypatch, store, "swap")
    with (
        pytest.raises(UnknownOutcome, match="KeyboardInterrupt came before its end"),
        Session("job", store=store) as opened,
    ):
        with contextlib.suppress(KeyboardInterrupt):
            await act(opened)
        with pytest.raises(SessionHalted):
            write("after")
    assert ran == ["big"]
    with pytest.raises(UnknownOutcome), Session("job", store=store):
        big()
    assert ran == ["big"]


def test_an_interrupted_hit_of_a_write_runs_nothing(
    session: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash(session, big)
    interrupt(monkeypatch, store, "get")
    with pytest.raises(NotReplayable, match=r"safe\.big was interrupted"), session():
        swallowed(big)
        with pytest.raises(SessionHalted):
            big()
    assert ran == []
    with session():
        assert big() == LARGE
    assert ran == []


def test_an_interrupt_behind_a_read_does_not_halt(store: Store, monkeypatch: Any) -> None:
    interrupt(monkeypatch, store, "swap")
    with Session("job", store=store):
        swallowed(big_read)
        assert big_read() == LARGE
        write("after")
    assert ran == ["read", "read", "after"]
    with Session("job", store=store, replay="offline"):
        assert big_read() == LARGE
        write("after")


def test_an_interrupt_behind_a_scope_does_not_halt(
    session: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It acts through guarded calls only: it is entered again."""

    @tool(effect="scope")
    def agent() -> str:
        write("inside")
        return LARGE

    interrupt(monkeypatch, store, "swap")
    with pytest.raises(RuntimeError), session():
        swallowed(agent)
        write("after")
        raise RuntimeError
    ran.clear()
    with session() as again:
        assert agent() == LARGE
        write("after")
    assert ran == []
    assert (again.stats.hits, again.stats.misses) == (2, 1)


# --- streams -------------------------------------------------------------------------------------


def pieces() -> Iterator[str]:
    try:
        for piece in "abc":
            ran.append(piece)
            yield piece
    finally:
        ran.append("closed")


def read(opened: Session, count: int) -> list[str]:
    stream: Any = opened.stream(MODEL, {}, pieces, kind="model")
    got = [next(stream) for _ in range(count)]
    stream.close()
    return got


def test_a_stream_left_early_replays_as_far(session: Any) -> None:
    with session() as first:
        assert read(first, 2) == ["a", "b"]
        assert ran == ["a", "b", "closed"]
        write("after")
    with session("offline") as again:
        assert read(again, 2) == ["a", "b"]
    with pytest.raises(NotReplayable, match="not read any further"), session("offline") as again:
        read(again, 3)
    with pytest.raises(NotReplayable, match="not read to its end"), session("offline") as again:
        again.run_call(MODEL, {}, lambda: None, kind="model")


def test_a_stream_left_at_the_frontier_is_read_anew(session: Any) -> None:
    with pytest.raises(RuntimeError), session() as first:
        read(first, 2)
        raise RuntimeError
    ran.clear()
    with session() as again:
        assert read(again, 3) == ["a", "b", "c"]
    assert ran == ["a", "b", "c", "closed"]
