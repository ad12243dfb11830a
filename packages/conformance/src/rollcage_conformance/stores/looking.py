"""What a store says of its runs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rollcage import tool
from rollcage.errors import (
    ReplayMiss,
    RunNotFound,
    StoreError,
    TraceCorrupt,
)
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import Store
from rollcage.store.url import open_store
from rollcage.trace import check_events

from rollcage_conformance.stores.base import HOLD, StoreBase, note

__all__ = ["LookingSuite"]


class LookingSuite(StoreBase):
    """What a store says of its runs."""

    def test_nothing_is_made_by_looking(self, store: Store) -> None:
        assert not store.exists()
        assert list(store.runs()) == []
        assert store.newest("job", None) is None
        assert list(store.keys("approvals")) == []
        assert store.get("approvals", "a") is None
        assert list(store.log("registry", "registry.started").read()) == []
        with pytest.raises(RunNotFound):
            store.read("01a201da-e587-7294-a93d-cf1f79b301bb")
        for ask in (store.info, store.live):
            with pytest.raises(RunNotFound):
                ask("01a201da-e587-7294-a93d-cf1f79b301bb")
        with pytest.raises(RunNotFound):
            undo_run(store, "01a201da-e587-7294-a93d-cf1f79b301bb")
        with pytest.raises(StoreError):
            store.get_blob("0" * 64)
        assert not store.exists()

    def test_a_run_is_found_again_by_the_url(self, store: Store, url: str) -> None:
        assert open_store(store.url).url == store.url
        runs: list[str] = []
        for name, given in (("a", None), ("b", 1), ("a", None), ("b", 2), ("a", 1)):
            with Session(name, store=url, input=given) as session:
                note("hello")
            runs.append(session.run_id)
        again = open_store(url)
        assert again.exists()
        assert [info.run for info in again.runs()] == runs
        assert {info.status for info in again.runs()} == {"ok"}
        newest = again.newest("a", None)
        assert newest is not None
        assert newest.run == runs[2]
        assert again.newest("c", None) is None
        info = again.read(runs[1]).info
        assert info is not None
        assert (info.name, info.count) == ("b", again.read(runs[1]).data.count(b"\n"))
        with Session("a", store=url, replay="offline") as session:
            assert note("hello") == "hello"
        assert session.stats.hits == 1

    def test_runs_are_asked_for_by_what_they_are(self, store: Store, url: str) -> None:
        runs: list[str] = []
        for name in ("a", "b", "a", "b", "a"):
            with Session(name, store=url) as session:
                note("hello")
            runs.append(session.run_id)
        with pytest.raises(KeyError), Session("b", store=url) as failed:
            raise KeyError
        with Session("b", store=url) as again, Session("cafe\u0301", store=url) as last:
            pass
        one, two, three, four, five, bad = *runs, failed.run_id

        def found(**asked: Any) -> list[str]:
            return [info.run for info in store.runs(**asked)]

        everything = [*runs, bad, again.run_id, last.run_id]
        assert found() == everything
        assert found(limit=3) == everything[-3:]
        assert found(limit=0) == []
        assert found(limit=100) == everything
        assert found(name="a") == [one, three, five]
        assert found(name="a", limit=2) == [three, five]
        assert found(name="caf\u00e9") == [last.run_id]
        assert found(name="c") == []
        assert found(status="error") == [bad]
        assert found(name="b", status="ok", limit=1) == [again.run_id]
        assert found(source=bad) == [again.run_id]
        assert found(source=one) == []
        time = store.info(three).time
        assert {one, two}.isdisjoint(found(since=time))
        assert {three, four}.isdisjoint(found(before=time))
        assert {*found(since=time), *found(before=time)} == {*everything}
        assert [info.run for info in store.runs(limit=4)] == everything[-4:]
        assert store.info(bad) == store.runs(status="error")[0]
        assert store.info(two) == store.read(two).info
        with pytest.raises(RunNotFound):
            store.info("01a201da-e587-7294-a93d-cf1f79b301bb")

    def test_who_is_live_is_asked_in_nobodys_way(self, store: Store, url: str, start: Any) -> None:
        holder = start(HOLD, "auto")
        run = holder.stdout.readline().strip()
        assert open_store(url).live(run)
        assert store.info(run).status is None
        assert [info.run for info in store.runs(status="unfinished")] == [run]
        holder.kill()
        holder.wait()
        for _ in range(500):  # a database sees a moment later that it is gone
            if not store.live(run):
                break
            time.sleep(0.01)
        assert not store.live(run)
        asking, asked = threading.Event(), threading.Event()

        def ask() -> None:
            own = open_store(url)
            while not asking.is_set():
                own.live(run)
                asked.set()

        with ThreadPoolExecutor(2) as pool:
            looks = [pool.submit(ask) for _ in range(2)]
            assert asked.wait(30)
            try:
                for _ in range(200):
                    store.lock(run).release()  # never RunInUse
            finally:
                asking.set()
            assert [look.result() for look in looks] == [None, None]
        with Session("held", store=url) as session:
            assert store.live(session.run_id)
            assert store.live(run)
        assert not store.live(session.run_id)
        with pytest.raises(RunNotFound):
            store.live("01a201da-e587-7294-a93d-cf1f79b301bb")

    def test_a_run_is_followed_by_its_last_lines(self, store: Store, url: str) -> None:
        with Session("job", store=url) as session:
            follower, lines = open_store(url), 0
            followed = b""
            for text in ("one", "two", "three"):
                note(text)
                for _ in range(2):  # the second time, nothing is new
                    part = follower.read(session.run_id, after=lines)
                    assert part.after == lines
                    followed += part.data
                    lines += part.data.count(b"\n")
        followed += follower.read(session.run_id, after=lines).data
        whole = store.read(session.run_id)
        assert followed == whole.data
        count = whole.data.count(b"\n")
        assert store.read(session.run_id, after=count).data == b""
        assert store.read(session.run_id, after=2).data == b"".join(
            whole.data.splitlines(keepends=True)[2:]
        )
        with pytest.raises(TraceCorrupt):
            store.read(session.run_id, after=count + 1)
        with pytest.raises(RunNotFound):
            store.read("01a201da-e587-7294-a93d-cf1f79b301bb", after=1)

    def test_clocks_that_go_back_change_no_order(
        self, store: Store, url: str, origin: Store
    ) -> None:
        with Session("job", store=origin) as session:
            pass
        started = check_events(origin.read(session.run_id).data, "")[0]
        del started["hash"]
        runs = [f"01a201da-e587-7294-a93d-cf1f79b301b{number}" for number in "312"]
        for run, began in zip(runs, (3_000, 1_000, 2_000), strict=True):
            writer = store.create(started | {"run": run, "time": began})
            writer.attest("ok")
            writer.close()
        again = open_store(url)
        assert [info.run for info in again.runs()] == runs
        assert [info.run for info in again.runs(limit=1)] == runs[-1:]
        newest = again.newest("job", None)
        assert newest is not None
        assert newest.run == runs[-1]
        assert [info.run for info in again.runs(since=2_000)] == [runs[0], runs[2]]

    def test_names_that_are_none(self, store: Store) -> None:
        for run in ("", "../etc", "%", "01a201da"):
            with pytest.raises(RunNotFound):
                store.read(run)
        for kind, key in (("a/b", "a"), ("approvals", "../a"), ("approvals", ""), ("", "a")):
            with pytest.raises(StoreError):
                store.put_once(kind, key, b"")

    def test_large_values_and_secrets(self, store: Store, url: str) -> None:
        large = "x" * 200_000

        @tool(effect="write", name="store_suite.large", secret="password")  # noqa: S106 - its name
        def fetch(password: str) -> str:
            return large[: len(password) * 100_000]

        with Session("job", store=url):
            assert len(fetch("ab")) == 200_000
        with Session("job", store=url, replay="offline"):
            assert fetch("ab") == large
        with pytest.raises(ReplayMiss), Session("job", store=url, replay="offline"):
            fetch("cd")
        assert store.secret_key() == open_store(url).secret_key()
        assert len(store.secret_key()) == 32
