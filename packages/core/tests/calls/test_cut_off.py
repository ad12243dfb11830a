"""Bodies and sessions that are cut off: cancelled, interrupted, or left to the collector."""

import asyncio
import contextlib
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from rollcage import (
    DidNotHappen,
    Happened,
    Session,
    current_step,
    newest_run,
    open_store,
    recorded_events,
    tool,
)
from rollcage.errors import Halt, SessionError, UnknownOutcome
from rollcage.trace.folder import Folder

done: list[tuple[str, str]] = []
ticks: list[int] = []


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    done.clear()
    ticks[:] = [10**9]
    yield
    gc.collect()  # whatever is left says nothing when it is collected


class Killed(BaseException):
    """Somebody presses Ctrl-C, or the process is told to end."""


def tick() -> None:
    ticks[0] -= 1
    if ticks[0] == 0:
        raise Killed


def key() -> str:
    step = current_step()
    assert step is not None
    return step.idempotency_key


def probe(args: dict[str, Any], key: str) -> Any:
    return Happened(args["label"]) if (args["label"], key) in done else DidNotHappen()


@tool(name="cut.put", effect="write", probe=probe)
def put(label: str) -> str:
    tick()
    done.append((label, key()))
    tick()
    return label


@tool(name="cut.aput", effect="write", probe=probe)
async def aput(label: str) -> str:
    await asyncio.sleep(0)
    tick()
    done.append((label, key()))
    await asyncio.sleep(0)
    return label


@tool(name="cut.get", effect="read")
def get(label: str) -> str:
    tick()
    return label


@tool(name="cut.outer", effect="scope")
def outer(label: str) -> list[str]:
    tick()
    return [put(f"{label}.1"), get(label), put(f"{label}.2")]


@tool(name="cut.chunks", effect="read")
def chunks(label: str) -> Iterator[str]:
    for n in range(3):
        tick()
        yield f"{label}{n}"


@tool(name="cut.achunks", effect="read")
async def achunks(label: str) -> AsyncIterator[str]:
    for n in range(3):
        await asyncio.sleep(0)
        tick()
        yield f"{label}{n}"


LABELS = ["a", "b", "c.1", "c.2", "d", "e", "f", "t"]


def program(session: Session) -> list[Any]:
    found: list[Any] = [put("a")]
    with session.turn() as turn:
        with turn.slot(0):
            found.append(put("b"))
        with turn.slot(1):
            found.append(outer("c"))
    with session.branch("side"):
        found.append(put("d"))
        found += chunks("x")
    with session.transaction("tx"):
        found.append(put("t"))
    with Session("inner", store=session.store):
        found.append(put("e"))
    found += [get("g"), put("f")]
    return found


async def aprogram(session: Session) -> list[Any]:
    found: list[Any] = [await aput("a")]
    with session.turn() as turn:

        async def one(slot: int, label: str) -> Any:
            with turn.slot(slot):
                return await aput(label)

        found += await asyncio.gather(one(0, "b"), one(1, "c.1"), one(2, "c.2"))
    with session.branch("side"):
        found.append(await session.acall(put, label="d"))
        found += [each async for each in achunks("x")]
    async with session.transaction("tx"):
        found.append(await aput("t"))
    async with Session("inner", store=session.store):
        found.append(await aput("e"))
    found += [await session.acall(get, label="g"), await aput("f")]
    return found


def finish(store: Path) -> None:
    """The job is resumed until it ends well: in a bounded number of attempts."""
    for _ in range(6):
        try:
            with Session("job", store=store) as session:
                program(session)
        except UnknownOutcome:
            continue
        break
    else:
        raise AssertionError("the job never ends")
    assert Counter(label for label, _ in done) == Counter(LABELS)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_interrupts_a_body(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test
    ended = False
    for _ in range(chance.randint(1, 3)):
        if ended:
            break
        ticks[0] = chance.randint(1, 24)
        with contextlib.suppress(Killed, Halt):
            with Session("job", store=tmp_path) as session:
                program(session)
            ended = True
        ticks[0] = 10**9
    if not ended:
        finish(tmp_path)
    run = (open_store(tmp_path).get("names", "job") or b"").decode()
    assert list(recorded_events(open_store(tmp_path).read(run)))


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_cancels_a_task(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test

    async def job() -> list[Any]:
        async with Session("job", store=tmp_path) as session:
            return await aprogram(session)

    ended = False
    for _ in range(chance.randint(1, 3)):
        task = asyncio.create_task(job())
        for _ in range(chance.randint(0, 60)):
            await asyncio.sleep(0)
        ended = task.done() and not task.cancelled()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Halt):
            await task
        # It may be cancelled when its end is on record: then one more session is a new run.
        run = newest_run(tmp_path, "job")
        ended = ended or (run is not None and run.status == "ok")
        if ended:
            break
    for _ in range(6):
        if ended:
            break
        with contextlib.suppress(UnknownOutcome):
            await job()
            ended = True
    assert ended, "the job never ends"
    assert Counter(label for label, _ in done) == Counter(LABELS)


def test_a_stream_that_is_left_is_closed(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        stream = chunks("x")
        assert next(stream) == "x0"
        del stream
        gc.collect()
        put("a")
    *_, closed = recorded_events(open_store(tmp_path).read(session.run_id))
    assert (closed.what, closed.status) == ("closed", "ok")


def test_a_stream_may_outlive_its_session(tmp_path: Path) -> None:
    with Session("job", store=tmp_path):
        stream = chunks("x")
        assert next(stream) == "x0"
    assert list(stream) == ["x1", "x2"], "its body had begun; nothing more of it is recorded"
    with Session("job", store=tmp_path, replay="continue") as again:
        assert list(chunks("x")) == ["x0", "x1", "x2"]
    assert again.stats.misses == 1


async def test_an_async_stream_may_outlive_its_session(tmp_path: Path) -> None:
    async with Session("job", store=tmp_path):
        stream = achunks("x")
        assert await anext(stream) == "x0"
    with contextlib.suppress(SessionError):
        await cast("AsyncGenerator[str]", stream).aclose()
    async with Session("job2", store=tmp_path):
        other = achunks("y")
        assert await anext(other) == "y0"
        del other
        gc.collect()
        await asyncio.sleep(0)


def test_a_session_that_is_never_left_holds_nobody(tmp_path: Path) -> None:
    def enter() -> None:
        session = Session("job", store=tmp_path)
        session.__enter__()
        put("a")

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    gc.collect()
    with Session("job", store=tmp_path) as session:
        put("a")
    assert session.stats.hits == 1


def test_pools_of_threads_call_through_the_session(tmp_path: Path) -> None:
    session = Session("job", store=tmp_path)
    with session, ThreadPoolExecutor(4) as pool, session.turn() as turn:

        def one(n: int) -> str:
            with turn.slot(n):
                return str(session.call(put, label=f"p{n}"))

        found = list(pool.map(one, range(8)))
    assert found == [f"p{n}" for n in range(8)]
    assert len(done) == 8
    with Session("job", store=tmp_path, replay="offline") as again, again.turn() as turn:
        for n in reversed(range(8)):
            with turn.slot(n):
                assert put(f"p{n}") == f"p{n}"


async def test_whoever_is_cancelled_on_entering_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Folder.open

    def slowly(self: Folder, run: str, **how: Any) -> Any:
        time.sleep(0.05)
        return opened(self, run, **how)

    monkeypatch.setattr(Folder, "open", slowly)

    async def job() -> None:
        async with Session("job", store=tmp_path):
            await aput("a")

    for _ in range(3):
        task = asyncio.create_task(job())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert done == []
    await job()
    assert [label for label, _ in done] == ["a"]


async def test_whoever_is_cancelled_on_leaving_has_let_the_run_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing = Session._closing

    def slowly(self: Session, *how: Any) -> None:
        time.sleep(0.05)
        closing(self, *how)

    monkeypatch.setattr(Session, "_closing", slowly)
    entered = asyncio.Event()

    async def job() -> None:
        async with Session("job", store=tmp_path, replay="continue"):
            await aput("a")
            entered.set()

    task = asyncio.create_task(job())
    await asyncio.wait_for(entered.wait(), 20)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await job()
    assert [label for label, _ in done] == ["a"]
