"""What must not slip through: each of these would run a write twice, or give back a wrong value."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Contract,
    Diverged,
    NotReplayable,
    SessionError,
    SessionHalted,
    TraceUnwritable,
    UnknownOutcome,
    tool,
)
from rollcage.session.session import Session
from rollcage.store import JsonlStore

MODEL = Contract(name="model", parameters={"type": "object", "properties": {}}, effect="read")
ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Session]:
    def make(replay: Any = "auto", **how: Any) -> Session:
        return Session("job", store=tmp_path / "store", replay=replay, **how)

    return make


@tool(effect="write")
def write(what: Any) -> Any:
    ran.append(what)
    return what


def crash(make: Any, *actions: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="crash"), make():
        for action in actions:
            action()
        raise RuntimeError("crash")
    ran.clear()


# --- generations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["pure", "read", "write"])
def test_a_failure_at_the_frontier_runs_again_in_every_generation(
    session: Any, effect: Any
) -> None:
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

        return opened.run(MODEL, {}, ask, kind="model")

    for error in (ValueError, ConnectionError, ConnectionError):
        with pytest.raises(error), session() as opened:
            agent(opened)
    with session() as opened:
        assert agent(opened) == "answer"
    assert ran == ["look", "look", "ask", "ask", "ask"]


def test_siblings_stay_when_a_failure_is_run_again(session: Any) -> None:
    """`retry_failed` undoes what came later, not what was issued together with the failure."""

    @tool(effect="write")
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
    with session(retry_failed=True, on_divergence="warn") as again, again.turn():
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


def test_a_write_whose_blob_is_gone_halts_and_is_not_run_by_a_retry(
    session: Any, tmp_path: Path
) -> None:
    @tool(effect="write")
    def big() -> str:
        ran.append("big")
        return "x" * 100_000

    crash(session, big)
    for blob in (tmp_path / "store" / "blobs").glob("*/*"):
        blob.unlink()
    with pytest.raises(NotReplayable, match="is missing"), session():
        with pytest.raises(NotReplayable):
            big()
        with pytest.raises(SessionHalted):
            big()
    assert ran == []


def test_a_result_that_its_return_type_no_longer_takes_halts(session: Any) -> None:
    from pydantic import BaseModel

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


@pytest.mark.parametrize(("was", "now"), [("write", "pure"), ("pure", "write")])
def test_another_declared_effect_does_not_run_a_recorded_call_again(
    session: Any, was: Any, now: Any
) -> None:
    def act() -> int:
        ran.append("act")
        return 1

    crash(session, tool(effect=was)(act))
    with pytest.raises(NotReplayable, match=f"with the effect '{was}'"), session():
        tool(effect=now)(act)()
    assert ran == []


def test_a_branch_under_another_name_does_not_do_everything_again(session: Any) -> None:
    def agent(opened: Session, name: str) -> None:
        with opened.branch(name):
            write("inside")

    with pytest.raises(RuntimeError), session() as first, first.branch("a"):
        write("inside")
        raise RuntimeError
    ran.clear()
    with pytest.raises(Diverged, match=r"step 1 \(write\)"), session() as renamed:
        agent(renamed, "b")
    assert ran == []
    with session(on_divergence="warn") as accepted:
        agent(accepted, "b")
    assert accepted.stats.orphans == 1


# --- a session that is halted or left ------------------------------------------------------------


async def test_no_body_begins_once_the_session_is_halted(session: Any) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    @tool(effect="write")
    def cut(number: int) -> None:
        ran.append(number)
        raise TimeoutError

    ended: list[Any] = []
    over = threading.Event()
    with pytest.raises(UnknownOutcome):
        async with session() as opened:
            first = asyncio.create_task(opened.acall(cut, number=0))
            first.add_done_callback(lambda _: over.set())
            await asyncio.sleep(0)  # it has the one thread, which then waits for its end
            waits = asyncio.get_running_loop().run_in_executor(None, over.wait)
            calls = [opened.acall(cut, number=n) for n in range(1, 4)]
            ended = await asyncio.gather(first, *calls, return_exceptions=True)
            await waits
    assert ran == [0]
    assert [type(each) for each in ended] == [TimeoutError, *[SessionHalted] * 3]


def test_a_session_left_while_a_write_is_in_flight_did_not_end_well(session: Any) -> None:
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
    with pytest.raises(UnknownOutcome, match=r"in flight: step 1 \(slow\)"), opened:
        thread.start()
        begun.wait()
    let_go.set()
    thread.join()
    with pytest.raises(UnknownOutcome), session():
        slow()
    assert ran == ["slow"]


class Interrupting(JsonlStore):
    """A store at which Ctrl-C comes: once, while it keeps a large value."""

    interrupted = False

    def put_blob(self, digest: str, data: bytes) -> None:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        super().put_blob(digest, data)

    def get_blob(self, digest: str) -> bytes:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().get_blob(digest)


@tool(effect="write")
def big() -> str:
    ran.append("big")
    return "x" * 100_000


@tool(effect="read")
def big_read() -> str:
    ran.append("read")
    return "x" * 100_000


def swallowed(action: Callable[[], Any]) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # as some agents do
        action()


async def test_an_interrupt_behind_a_write_halts_though_it_is_swallowed(tmp_path: Path) -> None:
    """Its body ran and its end is not in the trace: nobody can tell, so nothing goes on."""
    store = tmp_path / "store"
    chunks = Contract(name="big", parameters={"type": "object"}, effect="write")

    def pieces() -> Iterator[str]:
        ran.append("big")
        yield "x" * 100_000

    async def apieces() -> AsyncIterator[str]:
        ran.append("big")
        yield "x" * 100_000

    async def drain(opened: Session) -> None:
        async for _ in opened.astream(chunks, {}, apieces):
            pass

    async def sync(opened: Session) -> None:
        opened.call(big)

    async def stream(opened: Session) -> None:
        list(opened.stream(chunks, {}, pieces))

    for act in (sync, lambda opened: opened.acall(big), stream, drain):
        ran.clear()
        opened = Session("job", store=Interrupting(store), replay="off")
        with pytest.raises(UnknownOutcome, match="step 1 of run"), opened:
            with contextlib.suppress(KeyboardInterrupt):
                await act(opened)
            with pytest.raises(SessionHalted):
                write("after")
        assert ran == ["big"]
        with pytest.raises(UnknownOutcome), Session("job", store=store):
            big()


def test_an_interrupt_while_a_write_is_given_back_does_not_run_it_again(
    session: Any, tmp_path: Path
) -> None:
    crash(session, big)
    store = Interrupting(tmp_path / "store")
    with pytest.raises(NotReplayable, match="big was interrupted"), Session("job", store=store):
        swallowed(big)
        with pytest.raises(SessionHalted):
            big()
    assert ran == []
    with session():
        assert big() == "x" * 100_000
    assert ran == []


def test_an_interrupt_behind_a_read_is_no_reason_to_halt(tmp_path: Path) -> None:
    for chain in ("effects", "all"):
        ran.clear()
        how: Any = {"chain": chain, "replay": "off"}
        with Session("job", store=Interrupting(tmp_path / chain), **how):
            swallowed(big_read)
            assert big_read() == "x" * 100_000
            write("after")
        assert ran == ["read", "read", "after"]
        how["replay"] = "offline"
        with Session("job", store=tmp_path / chain, **how):
            assert big_read() == "x" * 100_000
            write("after")


def test_an_interrupt_behind_a_scope_is_no_reason_to_halt(tmp_path: Path) -> None:
    """It acts through guarded calls only: it is entered again."""

    @tool(effect="scope")
    def agent() -> str:
        write("inside")
        return "x" * 100_000

    with pytest.raises(RuntimeError), Session("job", store=Interrupting(tmp_path / "store")):
        swallowed(agent)
        write("after")
        raise RuntimeError
    ran.clear()
    with Session("job", store=tmp_path / "store") as again:
        assert agent() == "x" * 100_000
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


def test_a_stream_that_was_left_early_replays_as_far_as_it_was_read(session: Any) -> None:
    with session() as first:
        assert read(first, 2) == ["a", "b"]
        assert ran == ["a", "b", "closed"]
        write("after")
    with session("offline") as again:
        assert read(again, 2) == ["a", "b"]
    with pytest.raises(NotReplayable, match="not read any further"), session("offline") as again:
        read(again, 3)
    with pytest.raises(NotReplayable, match="not read to its end"), session("offline") as again:
        again.run(MODEL, {}, lambda: None, kind="model")


def test_a_stream_left_at_the_frontier_is_read_anew(session: Any) -> None:
    with pytest.raises(RuntimeError), session() as first:
        read(first, 2)
        raise RuntimeError
    ran.clear()
    with session() as again:
        assert read(again, 3) == ["a", "b", "c"]
    assert ran == ["a", "b", "c", "closed"]


# --- the store -----------------------------------------------------------------------------------


def test_a_run_that_the_index_lost_is_no_run_that_never_was(session: Any, tmp_path: Path) -> None:
    crash(session, lambda: write("a"))
    (tmp_path / "store" / "index.jsonl").unlink()
    with session():
        write("a")
    assert ran == []


def test_a_trace_of_another_format_is_refused(session: Any, tmp_path: Path) -> None:
    from rollcage.trace import CHAIN_START, seal_line

    run = "01a1fd2c-19fd-766f-ba8d-0668d2d3430d"
    started = {
        "event": "run.started", "time": 1, "format": "rollcage/99", "run": run, "name": "job",
        "mode": "record", "source": None, "root": run, "seed": "", "chain": "effects",
        "on_divergence": "halt", "durability": "os", "rules": [],
    }  # fmt: skip
    path = tmp_path / f"{run}.jsonl"
    path.write_bytes(seal_line(started, CHAIN_START)[0])
    refused = pytest.raises(SessionError, match="format='rollcage/99'")
    with refused, session("offline", source=path):
        pass
