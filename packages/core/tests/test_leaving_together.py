"""Async sessions that end at once wait for the disk together: one thread does it in one go."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rollcage import TraceUnwritable, tool
from rollcage.session import batches
from rollcage.session.session import Session
from rollcage.session.threads import in_threads_of
from rollcage.store import JsonlStore

MANY = 12


@tool(effect="write", name="together.note")
async def note(number: int) -> int:
    return number


class Disk:
    """What the sessions wait for, instead of the one that is there, and who did so.

    Attributes:
        waits: the thread of each wait.
        pieces: how often a thread was given work.
        most: how many waited at once.
    """

    def __init__(self, patch: pytest.MonkeyPatch, takes: float = 0.0) -> None:
        self.waits: list[int] = []
        self.pieces = 0
        self.most = 0
        self._takes = takes
        self._now = 0
        self._guard = threading.Lock()
        patch.setattr(os, "fdatasync", self.fdatasync)
        patch.setattr(batches, "in_threads_of", self.given)

    def given(self, where: str, work: Callable[[], object]) -> None:
        self.pieces += 1
        in_threads_of(where, work)

    def fdatasync(self, descriptor: int) -> None:
        with self._guard:
            self.waits.append(threading.get_ident())
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self._takes)
        with self._guard:
            self._now -= 1


async def job(store: JsonlStore, name: str, leaves: asyncio.Event) -> None:
    async with Session(name, store=store):
        await note(1)
        await leaves.wait()


async def together(store: JsonlStore, names: list[str]) -> list[BaseException | None]:
    """Sessions of these names that end at once; what each raised."""
    leaves = asyncio.Event()
    tasks = [asyncio.create_task(job(store, name, leaves)) for name in names]
    await asyncio.sleep(0.05)
    leaves.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def names(prefix: str = "job") -> list[str]:
    return [f"{prefix} {number}" for number in range(MANY)]


def ended(store: JsonlStore) -> list[str | None]:
    assert not any(store.live(info.run) for info in store.runs())
    return [info.status for info in store.runs()]


async def test_they_wait_in_one_go(store: JsonlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    assert await together(store, names()) == [None] * MANY
    assert len(disk.waits) == MANY
    assert (len(set(disk.waits)), disk.most) == (1, 1)
    assert disk.pieces < MANY / 2
    assert ended(store) == ["ok"] * MANY


async def test_threads_share_a_disk_that_is_slow(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, takes=0.01)
    await together(store, ["the first one"])
    await together(store, names())
    assert 1 < disk.most <= 4
    disk = Disk(monkeypatch)
    await together(store, ["fast again"])
    await together(store, names("then"))
    assert disk.most == 1
    assert ended(store) == ["ok"] * (2 * MANY + 2)


async def test_one_whose_disk_fails_keeps_nobody_else_from_ending(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, failed = os.fdatasync, list[int]()

    def fails_once(descriptor: int) -> None:
        if not failed:
            failed.append(descriptor)
            raise OSError(5, os.strerror(5))
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", fails_once)
    raised = await together(store, names())
    assert [type(each) for each in raised if each is not None] == [TraceUnwritable]
    assert sorted(info.count is not None for info in store.runs()) == [False] + [True] * (MANY - 1)
    assert not any(store.live(info.run) for info in store.runs())


@pytest.mark.parametrize("cancels", [1, 2, MANY])
async def test_those_that_are_cancelled_meanwhile_end_all_the_same(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch, cancels: int
) -> None:
    Disk(monkeypatch, takes=0.02)
    leaves = asyncio.Event()
    tasks = [asyncio.create_task(job(store, name, leaves)) for name in names()]
    await asyncio.sleep(0.05)
    leaves.set()
    await asyncio.sleep(0.01)
    for task in tasks[:cancels]:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in found] == [
        number < cancels for number in range(MANY)
    ]
    assert ended(store) == ["ok"] * MANY


def test_loops_of_several_threads_end_theirs_side_by_side(store: JsonlStore) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda at: asyncio.run(together(store, names(at))), "abc")
    assert [*found] == [[None] * MANY] * 3
    assert ended(store) == ["ok"] * (3 * MANY)


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_those_whose_loop_is_gone_before_their_batch_began_end_in_a_thread(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """Between the turns of the loop, they wait for a batch, for the disk, or to be told."""
    Disk(monkeypatch, takes=0.02)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # tasks are destroyed
    leaves = asyncio.Event()
    tasks = [loop.create_task(job(store, name, leaves)) for name in names()]
    loop.run_until_complete(asyncio.sleep(0.05))
    leaves.set()

    async def some() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    loop.run_until_complete(some())
    loop.close()
    del tasks, loop
    gc.collect()
    _threads_end()
    assert len(ended(store)) == MANY
    assert all(status is not None for status in ended(store))


def _threads_end() -> None:
    deadline = time.monotonic() + 30
    while any(each.name == "rollcage-wait" for each in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_that_is_forked_meanwhile_ends_its_own(
    store: JsonlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, takes=0.05)

    async def forks() -> tuple[int, int]:
        leaves = asyncio.Event()
        task = asyncio.create_task(job(store, "parent's", leaves))
        await asyncio.sleep(0.05)
        leaves.set()
        await asyncio.sleep(0.02)  # it waits for the disk now
        child = os.fork()
        if not child:
            code = 1
            try:
                asyncio.events._set_running_loop(None)
                asyncio.run(together(JsonlStore(tmp_path / "child"), names()))
                code = 0
            finally:
                os._exit(code)
        await task
        return await asyncio.to_thread(os.waitpid, child, 0)

    assert os.waitstatus_to_exitcode(asyncio.run(forks())[1]) == 0
    assert ended(store) == ["ok"]
    assert ended(JsonlStore(tmp_path / "child")) == ["ok"] * MANY
