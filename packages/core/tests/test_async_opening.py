"""Async sessions wait for locks and disks in a thread: the event loop goes on meanwhile."""

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from rollcage import RunInUse, tool
from rollcage.session.session import Session
from rollcage.session.threads import in_threads_of
from rollcage.store import JsonlStore, StopOrder, Store, disk
from rollcage.store.url import open_store
from rollcage.store.writer import JsonlWriter


@tool(effect="write", name="opening.note")
async def note(text: str) -> str:
    return text


@tool(effect="write", name="opening.nests")
async def nests(url: str) -> str:
    async with Session("inner", store=url):
        return await note("inside")


class Held:
    """Something that another thread holds, until the loop has gone on; or for some seconds."""

    def __init__(self, hold: AbstractContextManager[Any]) -> None:
        self._hold, self._held, self._free = hold, threading.Event(), threading.Event()
        self.in_time = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._held.wait(30)

    def _run(self) -> None:
        with self._hold:
            self._held.set()
            self.in_time = self._free.wait(5)

    def free(self) -> None:
        self._free.set()
        self._thread.join(30)
        assert self.in_time, "the event loop stood still while the lock was held"


async def turns(count: int = 20) -> None:
    """The loop goes on with others."""
    for _ in range(count):
        await asyncio.sleep(0)


def waited() -> None:
    """Those that wait in threads have come to an end."""
    for thread in threading.enumerate():
        if thread.name == "rollcage-wait":
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(params=["folder", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else f"sqlite:///{tmp_path}/a.db"


async def test_a_session_opens_beside_others(url: str) -> None:
    held = Held(open_store(url).opening())

    async def job() -> str:
        async with Session("job", store=url):
            return await note("one")

    jobs = [asyncio.create_task(job()) for _ in range(1)]
    await turns()
    assert not any(each.done() for each in jobs)
    held.free()
    assert await asyncio.gather(*jobs) == ["one"]


async def test_whoever_is_cancelled_while_waiting_leaves_no_run_and_no_lock(url: str) -> None:
    held = Held(open_store(url).opening())

    async def job() -> None:
        async with Session("job", store=url):
            pytest.fail("it was cancelled")

    task = asyncio.create_task(job())
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.free()
    waited()
    store = open_store(url)
    with store.opening():
        assert list(store.runs()) == []


class Slow(JsonlStore):
    """A store that begins a run when it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begins, self.may = threading.Event(), threading.Event()

    def create(self, started: dict[str, Any], order: StopOrder | None = None) -> JsonlWriter:
        self.begins.set()
        assert self.may.wait(30)
        return super().create(started, order)


async def test_whoever_is_cancelled_while_opening_leaves_a_run_that_ended(tmp_path: Path) -> None:
    store = Slow(tmp_path / "store")
    with pytest.raises(InterruptedError), Session("job", store=JsonlStore(store.root)) as first:
        raise InterruptedError
    session = Session("job", store=store)

    async def job() -> None:
        async with session:
            pytest.fail("it was cancelled")

    task = asyncio.create_task(job())
    assert await asyncio.to_thread(store.begins.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.may.set()
    waited()
    again = JsonlStore(store.root)
    assert [info.status for info in again.runs()] == ["error", "error"]
    assert not any(again.live(info.run) for info in again.runs())
    async with Session("job", store=again) as last:
        await note("one")
    assert last.root == first.run_id


@contextlib.contextmanager
def index_locked(store: JsonlStore) -> Iterator[None]:
    with disk.locked(store.root / "index.jsonl", os.O_RDWR | os.O_CREAT):
        yield


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_session_is_left_beside_others(tmp_path: Path, *, cancelled: bool) -> None:
    store = JsonlStore(tmp_path / "store")
    entered, may_end = asyncio.Event(), asyncio.Event()

    async def job() -> None:
        async with Session("job", store=store):
            await note("one")
            entered.set()
            await may_end.wait()

    task = asyncio.create_task(job())
    await entered.wait()
    held = Held(index_locked(store))
    may_end.set()
    await turns()
    if cancelled:
        task.cancel()
        await turns()
    assert not task.done()
    held.free()
    with pytest.raises(asyncio.CancelledError) if cancelled else contextlib.nullcontext():
        await task
    assert [info.status for info in store.runs()] == ["ok"]
    assert not store.live(store.runs()[0].run)


async def waiting(url: str, entered: asyncio.Event) -> None:
    async with Session("job", store=url):
        await note("one")
        entered.set()
        await asyncio.get_running_loop().create_future()


def assert_ended_and_resumed(store: Store, status: str) -> None:
    waited()
    (info,) = store.runs()
    assert info.status == status
    assert b'"event":"run.finished"' in store.read(info.run).data.splitlines()[-1]
    with Session("job", store=store) as session:
        assert session.call(told, text="one") == "one"
    assert [each.status for each in store.runs()] == [status, "ok"]


@tool(effect="write", name="opening.note")
def told(text: str) -> str:
    pytest.fail(f"{text} was noted before")


async def test_a_session_that_is_forgotten_while_it_is_left_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trace is closed by whoever writes its end, and not while they do."""
    store = JsonlStore(tmp_path / "store")
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # a task was destroyed
    entered = asyncio.Event()
    forgotten = waiting(store.url, entered)
    task = asyncio.create_task(forgotten)
    await entered.wait()
    lock, attest = threading.Lock(), JsonlWriter.attest

    def slowly(writer: JsonlWriter, status: str) -> None:
        with lock:
            attest(writer, status)

    monkeypatch.setattr(JsonlWriter, "attest", slowly)
    held = Held(lock)
    with contextlib.suppress(RuntimeError):  # it ignored GeneratorExit
        forgotten.close()
    path = store.root / "runs" / f"{store.runs()[0].run}.jsonl"
    while b'"event":"run.finished"' not in path.read_bytes():
        await turns()
    del task, forgotten
    for _ in range(3):  # what is destroyed lets go of what is destroyed next
        gc.collect()
    held.free()
    assert_ended_and_resumed(store, "error")


def test_a_session_whose_loop_is_gone_ends_in_a_thread(url: str) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a task was destroyed
    entered = asyncio.Event()
    task = loop.create_task(waiting(url, entered))
    loop.run_until_complete(entered.wait())
    loop.close()
    del task, loop
    gc.collect()
    assert_ended_and_resumed(open_store(url), "error")


async def test_a_session_is_left_where_the_system_has_no_more_threads(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with Session("job", store=url):
        await note("one")
        monkeypatch.setattr("rollcage.session.awaiting.in_threads_of", none)
        monkeypatch.setattr("rollcage.session.batches.in_threads_of", none)
    assert [info.status for info in open_store(url).runs()] == ["ok"]
    assert not open_store(url).live(open_store(url).runs()[0].run)


async def test_what_is_around_a_session_is_around_it_in_a_thread_too(url: str) -> None:
    async with Session("outer", store=url) as outer:
        assert await nests(url) == "inside"
    inner = open_store(url).runs(name="inner")[0]
    started = open_store(url).read(inner.run).data.splitlines()[0]
    assert f'"within":"{outer.run_id}"'.encode() in started


async def test_a_session_that_could_not_be_entered_may_be_entered_again(url: str) -> None:
    async with Session("job", store=url):
        late = Session("job", store=url)
        with pytest.raises(RunInUse):
            async with late:
                pytest.fail("the job is being done")
    async with late:
        await note("one")
    assert [info.status for info in open_store(url).runs()] == ["ok", "ok"]


async def test_many_sessions_at_once_take_few_threads(url: str) -> None:
    def threads() -> int:
        return sum(each.name == "rollcage-wait" for each in threading.enumerate())

    most, before = 0, threads()

    async def job(number: int, together: asyncio.Barrier) -> None:
        nonlocal most
        async with Session(f"job {number}", store=url):
            most = max(most, threads())
            await note("one")
            await together.wait()

    together = asyncio.Barrier(40)
    await asyncio.gather(*(job(number, together) for number in range(40)))
    assert most <= before + 8
    assert {info.status for info in open_store(url).runs()} == {"ok"}


async def test_who_waits_for_one_store_keeps_nobody_from_another_or_from_leaving(
    url: str, tmp_path: Path
) -> None:
    leaving, may_leave = asyncio.Event(), asyncio.Event()

    async def job(where: str) -> str:
        async with Session("job", store=where):
            return await note("one")

    async def leaves() -> None:
        async with Session("leaves", store=url):
            leaving.set()
            await may_leave.wait()

    first = asyncio.create_task(leaves())
    await leaving.wait()
    held = Held(open_store(url).opening())
    waiting = [asyncio.create_task(job_of(url, number)) for number in range(10)]
    await turns()
    may_leave.set()
    await first
    assert await job(str(tmp_path / "another")) == "one"
    assert not any(each.done() for each in waiting)
    for late in waiting[5:]:
        late.cancel()
    await turns()
    held.free()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert done[:5] == ["one"] * 5
    assert all(isinstance(each, asyncio.CancelledError) for each in done[5:])
    waited()
    assert len(open_store(url).runs()) == 6  # those of who was cancelled did not begin


async def job_of(url: str, number: int) -> str:
    async with Session(f"job {number}", store=url):
        return await note("one")


def test_a_forked_child_has_threads_of_its_own(url: str) -> None:
    assert asyncio.run(job_of(url, 1)) == "one"
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if asyncio.run(job_of(url, 2)) == "one" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [info.name for info in open_store(url).runs()] == ["job 1", "job 2"]


def test_an_error_that_nobody_waits_for_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda raised: told.append(str(raised.exc_value)))

    def fail() -> None:
        raise OSError("the connection is gone")

    done = threading.Event()
    in_threads_of("after an error", fail)
    waited_for = threading.Event()
    in_threads_of("after an error", waited_for.set)
    assert waited_for.wait(10)
    in_threads_of("after an error", done.set)
    assert done.wait(10), "the thread that failed is counted for ever"
    assert told == ["the connection is gone"]


def test_what_no_thread_could_be_had_for_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[str] = []
    over = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            in_threads_of("none to be had", lambda: done.append("refused"))
    in_threads_of("none to be had", lambda: done.append("wanted"))
    in_threads_of("none to be had", over.set)
    assert over.wait(10)
    waited()
    assert done == ["wanted"]
