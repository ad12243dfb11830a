"""A session's promises on a store: resume, undo, once, approvals, orders, large values."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from subprocess import TimeoutExpired
from typing import Any

import pytest
from rollcage import (
    Approval,
    ApprovalQueue,
    ApprovalRequired,
    NotReplayable,
    QueueApprover,
    ReplayMiss,
    RunStopped,
    Session,
    StepView,
    Store,
    Verdict,
    abandon_run,
    lift_order,
    list_runs,
    open_store,
    order_of,
    pause_run,
    run_info,
    stop_run,
    tool,
    undo_run,
)
from rollcage.errors import OrderRefused, RunNotFound, StoreError, TraceCorrupt
from rollcage_fork import Fork

from rollcage_conformance.stores.base import (
    StoreBase,
    Tamper,
    events_of,
    on_a_loop,
    store_keep,
    store_note,
    world,
)
from rollcage_conformance.stores.crashes import HOLD

__all__ = ["SessionSuite"]

NOBODY = "01a201da-e587-7294-a93d-cf1f79b301bb"


def _given(tamper: Tamper | None) -> Tamper:
    if tamper is None:
        pytest.skip("the fixture `tamper` does not say how what is kept is changed")
    return tamper


def _asks(view: StepView) -> Verdict | None:
    return Verdict.ask("is that so?") if view.args.get("text") == "ask" else None


class SessionSuite(StoreBase):
    """A session's promises on a store."""

    # --- one after another, and many at once ------------------------------------------------------

    def test_a_run_is_found_again_by_the_url(self, store: Store, url: str) -> None:
        assert open_store(store.url).url == store.url
        runs: list[str] = []
        for name, given in (("a", None), ("b", 1), ("a", None), ("b", 2), ("a", 1)):
            with Session(name, store=url, input=given) as session:
                store_note("hello")
            runs.append(session.run_id)
        again = open_store(url)
        assert {info.run for info in list_runs(again)} == {*runs}
        assert [info.run for info in list_runs(again, name="a")] == [runs[4], runs[2], runs[0]]
        assert {info.status for info in list_runs(again)} == {"ok"}
        for name, given, run in (("a", None, runs[2]), ("b", 1, runs[1]), ("a", 1, runs[4])):
            with Session(name, store=again, input=given, replay="continue") as session:
                assert store_note("hello") == "hello"
            assert (session.run_id, session.stats.hits) == (run, 1)

    def test_undo_resume_and_abandon(self, store: Store, url: str) -> None:
        with Session("job", store=url) as session:
            store_keep(1)
            store_keep(2)
        report = undo_run(open_store(url), session.run_id, to=1)
        assert (report.complete, world) == (True, [1])
        with Session("job", store=url) as again:
            store_keep(1)
            store_keep(2)
        assert again.run_id == session.run_id
        assert (again.stats.hits, again.stats.misses, world) == (1, 1, [1, 2])
        with pytest.raises(KeyError), Session("other", store=url) as other:
            store_keep(3)
            raise KeyError
        abandon_run(url, other.run_id, by="ann", reason="no more")
        assert run_info(store, other.run_id).status == "abandoned"
        with Session("other", store=url) as afresh:
            store_keep(3)
        assert afresh.run_id != other.run_id
        assert afresh.stats.hits == 0

    def test_a_transaction_is_rolled_back_and_made_again(self, url: str) -> None:
        world.clear()
        for fails in (True, False):
            with contextlib.suppress(KeyError), Session("job", store=url) as session:
                store_keep(0)
                with session.transaction():
                    store_keep(1)
                    if fails:
                        raise KeyError
            assert world == ([0] if fails else [0, 1])

    def test_a_fork_leaves_its_run_as_it_is(self, store: Store, url: str) -> None:
        with Session("job", store=url) as first:
            store_keep(1)
            store_keep(2)
        before = store.read(first.run_id)
        with Session("job", store=url, stages=[Fork(first.run_id, live=True)]) as fork:
            assert [store_keep(1), store_keep(2)] == [1, 2]
            store_keep(3)
        assert (fork.stats.hits, world) == (2, [1, 2, 3])
        assert undo_run(url, fork.run_id).complete
        assert world == [1, 2]
        assert store.read(first.run_id) == before

    @on_a_loop
    async def test_many_sessions_in_one_loop(self, store: Store, url: str) -> None:
        @tool(effect="write", name="store_wait")
        async def wait(number: int) -> int:
            await asyncio.sleep(0)
            return number

        async def job(name: str) -> int:
            async with Session(name, store=url) as session:
                for number in range(5):
                    await wait(number)
            return session.stats.misses

        assert await asyncio.gather(*(job(f"job-{n}") for n in range(20))) == [5] * 20
        found = await asyncio.to_thread(list_runs, store)
        assert len({info.run for info in found}) == 20
        assert {info.status for info in found} == {"ok"}

    def test_many_sessions_in_threads(self, store: Store, url: str) -> None:
        ready = threading.Barrier(6)

        def job(name: str) -> int:
            ready.wait(30)
            with Session(name, store=url) as session:
                for number in range(10):
                    store_note(f"{number}")
            return session.stats.misses

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(job, "abcdef")) == [10] * 6
        assert len(list_runs(store)) == 6

    def test_what_an_older_run_cannot_give_is_refused(self, store: Store, url: str) -> None:
        with Session("job", store=url) as session:
            store_note("one")
        before = store.read(session.run_id)
        with Session("job", store=url, replay="offline"):
            assert store_note("one") == "one"
        with pytest.raises(ReplayMiss), Session("job", store=url, replay="offline"):
            store_note("two")
        assert store.read(session.run_id) == before

    def test_large_values_and_secrets(self, store: Store, url: str) -> None:
        large = "x" * 200_000

        @tool(effect="write", name="store_large", secret="password")  # noqa: S106 - its name
        def fetch(password: str) -> str:
            return large[: len(password) * 100_000]

        with Session("job", store=url) as session:
            assert len(fetch("ab")) == 200_000
        lines = store.read(session.run_id)
        assert not any(b'"ab"' in line for line in lines)
        assert sum(map(len, lines)) < 20_000, "the value is a blob beside the log"
        with Session("job", store=open_store(url), replay="offline"):
            assert fetch("ab") == large
        with pytest.raises(ReplayMiss), Session("job", store=url, replay="offline"):
            fetch("cd")

    # --- once, approvals, orders ------------------------------------------------------------------

    def test_an_effect_happens_once_in_all_jobs(self, store: Store, url: str) -> None:
        paid: list[int] = []

        @tool(effect="write", name="store_pay", once="pay/{bill}")
        def pay(bill: int) -> str:
            paid.append(bill)
            return f"paid {bill}"

        def job(name: str) -> set[str]:
            with Session(name, store=open_store(url)):
                return {pay(bill) for bill in range(3)}

        with ThreadPoolExecutor(3) as pool:
            given = list(pool.map(job, "abc"))
        assert given == [{"paid 0", "paid 1", "paid 2"}] * 3
        assert sorted(paid) == [0, 1, 2]
        assert len(store.keys("once")) == 3

    def test_an_approval_is_asked_here_and_decided_there(self, store: Store, url: str) -> None:
        approver = QueueApprover(url)

        def job() -> str:
            with Session("job", store=url, gate=[_asks], approver=approver) as session:
                store_note("one")
                store_note("ask")
            return session.run_id

        with pytest.raises(ApprovalRequired):
            job()
        (paused,) = list_runs(store)
        assert paused.status == "paused"
        queue = ApprovalQueue(open_store(url))
        (waiting,) = queue.waiting()
        queue.decide(waiting.id, Approval(True, by="bob"))
        assert job() == paused.run
        assert run_info(store, paused.run).status == "ok"
        assert queue.waiting() == []

    def test_a_stop_order_is_seen_by_the_very_next_call(
        self, store: Store, url: str, start: Any
    ) -> None:
        with pytest.raises(RunStopped), Session("job", store=url) as session:
            store_note("one")
            stop_run(open_store(url), session.run_id, by="ann", reason="enough")
            store_note("two")
        holder = start(HOLD)
        run = holder.stdout.readline().strip()
        given = stop_run(open_store(url), run, by="ann", reason="enough")
        said, error = holder.communicate("\n", timeout=60)
        assert (said, holder.returncode) == ("", 1)
        assert "RunStopped" in error
        assert order_of(store, run) == given
        with pytest.raises(RunStopped), Session("held", store=url):
            store_note("one")
            store_note("two")
        assert lift_order(open_store(url), run)
        assert not lift_order(store, run)
        with Session("held", store=url) as session:
            store_note("one")
            store_note("two")
        assert session.stats.hits == 1
        with pytest.raises(RunNotFound):
            stop_run(store, NOBODY)

    def test_a_pause_is_seen_by_the_very_next_call_until_it_is_lifted(
        self, store: Store, url: str, start: Any
    ) -> None:
        holder = start(HOLD)
        run = holder.stdout.readline().strip()
        order = pause_run(open_store(url), run, by="ann", reason="a look")
        holder.stdin.write("\n")
        holder.stdin.flush()
        with pytest.raises(TimeoutExpired):
            holder.wait(1)
        assert order_of(open_store(url), run) == order
        assert not lift_order(store, run, kind="stop")
        assert lift_order(store, run, kind="pause")
        assert holder.wait(60) == 0, holder.communicate()
        assert holder.stdout.read() == "two ran\n"
        assert run_info(store, run).status == "ok"
        with pytest.raises(OrderRefused):
            pause_run(store, run)

    # --- damage -----------------------------------------------------------------------------------

    def test_a_changed_line_is_found(self, url: str, tamper: Tamper | None) -> None:
        tamper = _given(tamper)
        with pytest.raises(KeyError), Session("job", store=url) as session:
            store_note("the first note")
            raise KeyError
        tamper(b"the first note", b"the other note")
        with pytest.raises(TraceCorrupt):
            events_of(open_store(url), session.run_id)
        for replay in ("offline", "auto"):
            with pytest.raises(TraceCorrupt), Session("job", store=url, replay=replay):
                pytest.fail("a changed log is replayed")
        tamper(b"the other note", b"the first note")
        with Session("job", store=url) as again:
            assert store_note("the first note") == "the first note"
        assert (again.run_id, again.stats.hits) == (session.run_id, 1)

    def test_a_changed_large_value_is_found(
        self, store: Store, url: str, tamper: Tamper | None
    ) -> None:
        tamper = _given(tamper)

        @tool(effect="read", name="store_read")
        def read() -> str:
            return "the first value" + "x" * 100_000

        with Session("job", store=url):
            given = read()
        (digest,) = store.keys("blobs")
        data = store.get("blobs", digest)
        assert data is not None
        assert digest == sha256(data).hexdigest()
        tamper(b"the first value", b"the other value")
        changed = pytest.raises((NotReplayable, StoreError), match="damaged")
        with changed, Session("job", store=open_store(url), replay="offline"):
            read()
        tamper(b"the other value", b"the first value")
        with Session("job", store=open_store(url), replay="offline"):
            assert read() == given
