"""What an event loop does itself as a session opens and is left, and what it leaves to threads."""

import asyncio
import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from rollcage import tool
from rollcage.session import opening
from rollcage.session.session import Session
from rollcage.store import JsonlStore, disk, look, places, system
from rollcage.store.at_once import AT_ONCE, WouldWait, at_once
from rollcage.store.url import open_store


@tool(effect="write", name="at_once.note")
async def note(text: str) -> str:
    return text


async def job(store: Any, name: str = "job", text: str = "one", **how: Any) -> str:
    async with Session(name, store=store, **how):
        return await note(text)


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the sessions that were opened in a thread, the places."""
    found: list[str] = []
    real: Any = vars(opening)["in_thread"]

    async def noted(where: str, do: Any, undo: Any) -> Any:
        found.append(where)
        return await real(where, do, undo)

    monkeypatch.setattr(opening, "in_thread", noted)
    return found


@pytest.fixture
async def store(tmp_path: Path) -> JsonlStore:
    """One that is there, and that this process has looked at."""
    made = JsonlStore(tmp_path / "store")
    for number in range(20):
        await job(made, f"before {number}", input=number)  # which makes its key, too
    return made


async def test_a_new_run_in_a_folder_begins_at_once(
    store: JsonlStore, in_threads: list[str]
) -> None:
    assert await job(store) == "one"
    assert await job(store, "with an input", input={"mail": 1}) == "one"
    assert in_threads == []
    ended = [store.info(each.run).status for each in store.runs()]
    assert ended == ["ok"] * 22


async def test_a_new_store_is_made_in_a_thread(tmp_path: Path, in_threads: list[str]) -> None:
    assert await job(tmp_path / "new") == "one"
    assert len(in_threads) == 1


async def test_a_source_is_read_in_a_thread(store: JsonlStore, in_threads: list[str]) -> None:
    with pytest.raises(InterruptedError):
        async with Session("job", store=store):
            await note("one")
            raise InterruptedError
    async with Session("job", store=store) as again:
        assert await note("one") == "one"
    assert len(in_threads) == 1
    trace = store.read(again.run_id).data
    assert trace.count(b"step.replayed") == 1
    assert len(store.runs(name="job")) == 2  # the attempt that would have waited left none


async def test_on_the_disk_it_begins_in_a_thread(store: JsonlStore, in_threads: list[str]) -> None:
    assert await job(store, durability="disk") == "one"
    assert len(in_threads) == 1


async def test_a_database_is_for_threads(tmp_path: Path, in_threads: list[str]) -> None:
    for number in range(3):
        await job(f"sqlite:///{tmp_path}/runs.db", f"job {number}")
    assert len(in_threads) == 3


async def test_who_opens_another_run_keeps_no_loop_waiting(
    store: JsonlStore, in_threads: list[str]
) -> None:
    with store.opening():
        waiting = asyncio.create_task(job(store))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert len(in_threads) == 1
    assert await waiting == "one"
    assert len(store.runs(name="job")) == 1


async def test_a_damaged_index_is_mended_in_a_thread(
    store: JsonlStore, in_threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = store.root / "index.jsonl"
    index.write_bytes(index.read_bytes() + b"no line\n")
    monkeypatch.setattr(disk, "AT_ONCE", 1)
    assert await job(store) == "one"
    assert len(in_threads) == 1
    assert store.check().damaged == ()


async def test_what_many_others_noted_is_read_in_a_thread(
    store: JsonlStore, in_threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        await asyncio.to_thread(asyncio.run, job(JsonlStore(store.root), f"other {number}"))
    in_threads.clear()
    monkeypatch.setattr(places, "AT_ONCE", 10)
    places._places.clear()  # as in another process
    monkeypatch.setattr(disk, "AT_ONCE", 10)
    assert await job(store) == "one"
    assert len(in_threads) == 1


def test_nothing_waits_at_once(tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(b"x" * (AT_ONCE + 1))
    small.write_bytes(b"x" * 10)
    waits: list[Callable[[], object]] = [
        functools.partial(disk.read, large),
        functools.partial(disk.sync, tmp_path),
        functools.partial(disk.add, tmp_path / "new", b"x"),
        functools.partial(disk.replace, small, b"y", part=tmp_path / "part"),
        functools.partial(disk.make_folder, tmp_path / "folder"),
    ]
    with at_once():
        assert disk.read(small) == b"x" * 10
        for each in waits:
            with pytest.raises(WouldWait):
                each()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["large", "small"]
    assert small.read_bytes() == b"x" * 10
    assert len(disk.read(large)) == AT_ONCE + 1


async def test_a_look_is_taken_in_a_thread_if_it_waits(store: JsonlStore) -> None:
    asked: list[bool] = []

    def looks() -> int:
        asked.append(threading.current_thread() is threading.main_thread())
        if len(asked) == 2:
            raise WouldWait
        return len(asked)

    assert await look(store, looks) == 1
    assert await look(store, looks) == 3
    assert asked == [True, True, False]
    assert await look(open_store(f"sqlite:///{store.root}/a.db"), looks) == 4
    assert asked[3:] == [False]


# --- leaving --------------------------------------------------------------------------------------


@pytest.fixture
def held_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> Generator[tuple[threading.Event, threading.Event]]:
    """A disk that is waited for until it may go on: whether that began, and whether it may."""
    waits, may = threading.Event(), threading.Event()
    real = system.files

    class Files:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def fdatasync(self, descriptor: int) -> None:
            waits.set()
            assert may.wait(30)
            real.fdatasync(descriptor)

    monkeypatch.setattr(system, "files", Files())
    yield waits, may
    may.set()


async def test_the_loop_goes_on_while_the_end_is_brought_to_the_disk(
    store: JsonlStore, held_disk: tuple[threading.Event, threading.Event]
) -> None:
    waits, may = held_disk
    leaving = asyncio.create_task(job(store))
    assert await asyncio.to_thread(waits.wait, 30)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not leaving.done()
    (run,) = store.runs(name="job")
    assert store.live(run.run)
    may.set()
    assert await leaving == "one"
    assert not store.live(run.run)
    assert store.info(run.run).status == "ok"


async def test_whoever_is_cancelled_meanwhile_has_left_it_whole(
    store: JsonlStore, held_disk: tuple[threading.Event, threading.Event]
) -> None:
    waits, may = held_disk
    leaving = asyncio.create_task(job(store))
    assert await asyncio.to_thread(waits.wait, 30)
    leaving.cancel()
    await asyncio.sleep(0)
    may.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    (run,) = store.runs(name="job")
    assert (store.live(run.run), store.info(run.run).status) == (False, "ok")


def test_a_loop_that_is_gone_meanwhile_leaves_it_whole(
    tmp_path: Path, held_disk: tuple[threading.Event, threading.Event]
) -> None:
    waits, may = held_disk
    store = JsonlStore(tmp_path / "store")
    may.set()
    for number in range(5):
        asyncio.run(job(store, f"before {number}"))
    may.clear()
    waits.clear()
    loop = asyncio.new_event_loop()
    leaving: Any = loop.create_task(job(store))

    assert loop.run_until_complete(asyncio.to_thread(waits.wait, 30))
    loop.close()
    leaving._log_destroy_pending = False  # it is meant to be
    coroutine: Any = leaving.get_coro()
    del leaving
    with contextlib.suppress(RuntimeError):
        coroutine.close()  # as the collector does
    gc.collect()
    may.set()
    for thread in threading.enumerate():
        if thread.name == "rollcage-wait":
            thread.join(30)
    (run,) = store.runs(name="job")
    assert (store.live(run.run), store.info(run.run).status) == (False, "ok")
    asyncio.run(job(store))  # nothing of it is in the way
