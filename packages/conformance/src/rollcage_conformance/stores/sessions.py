"""Sessions after one another, and many at once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from rollcage import tool
from rollcage.errors import (
    ReplayMiss,
)
from rollcage.session.abandon import abandon_run
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import Store
from rollcage.store.url import open_store

from rollcage_conformance.stores.base import StoreBase, keep, note, world

__all__ = ["SessionSuite"]


class SessionSuite(StoreBase):
    """Sessions after one another, and many at once."""

    def test_undo_resume_and_abandon(self, store: Store, url: str) -> None:
        with Session("job", store=url) as session:
            keep(1)
            keep(2)
        report = undo_run(open_store(url), session.run_id, to=1)
        assert (report.complete, world) == (True, [1])
        assert store.runs()[0].status == "undone"
        with Session("job", store=url) as again:
            keep(1)
            keep(2)
        assert (again.stats.hits, again.stats.misses, world) == (1, 1, [1, 2])
        with pytest.raises(KeyError), Session("other", store=url) as other:
            keep(3)
            raise KeyError
        abandon_run(url, other.run_id, by="ann", reason="no more")
        assert store.runs()[-1].status == "abandoned"
        with Session("other", store=url) as afresh:
            keep(3)
        assert afresh.stats.hits == 0

    async def test_many_sessions_in_one_loop(self, store: Store, url: str) -> None:
        @tool(effect="write", name="store_suite.wait")
        async def wait(number: int) -> int:
            await asyncio.sleep(0)
            return number

        async def job(name: str) -> int:
            async with Session(name, store=url) as session:
                for number in range(5):
                    await wait(number)
            return session.stats.misses

        assert await asyncio.gather(*(job(f"job-{n}") for n in range(20))) == [5] * 20
        assert len({info.run for info in store.runs()}) == 20
        assert {info.status for info in store.runs()} == {"ok"}

    async def test_a_loop_goes_on_while_a_session_waits_to_open(
        self, store: Store, url: str
    ) -> None:
        """Somebody else opens one; a store that keeps its callers waiting has `waits` set."""

        async def job(name: str) -> None:
            async with Session(name, store=url):
                await asyncio.to_thread(keep, 1)

        await job("before")
        held, lets_go = threading.Event(), threading.Event()

        def holding() -> None:
            with open_store(url).opening():
                held.set()
                assert lets_go.wait(5), "the loop was kept waiting"

        other = asyncio.create_task(asyncio.to_thread(holding))
        assert await asyncio.to_thread(held.wait, 30)
        waiting = asyncio.create_task(job("waiting"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        lets_go.set()
        await asyncio.gather(other, waiting)
        assert {info.name for info in store.runs()} == {"before", "waiting"}

    def test_many_sessions_in_threads(self, store: Store, url: str) -> None:
        ready = threading.Barrier(6)

        def job(name: str) -> int:
            ready.wait(30)
            with Session(name, store=url) as session:
                for number in range(10):
                    note(f"{number}")
            return session.stats.misses

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(job, "abcdef")) == [10] * 6
        assert len(store.runs()) == 6

    def test_what_an_older_run_can_not_give_is_refused(self, store: Store, url: str) -> None:
        with Session("job", store=url):
            note("one")
        with pytest.raises(ReplayMiss), Session("job", store=url, replay="offline"):
            note("two")
        assert len(store.runs()) == 2

    def test_a_whole_store_needs_no_repair(self, store: Store, url: str) -> None:
        with Session("job", store=url):
            note("one")
        found = store.repair()
        assert found.runs == 1
        assert (found.damaged, found.lost, found.unattested, found.unreadable) == ((), (), (), ())
