"""Processes that die, fork, race for a run, lose it, or are ordered to stop."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import orjson
import pytest
from rollcage import RunStopped, SessionHalted, UnknownOutcome, tool
from rollcage.errors import (
    Forked,
    OrderRefused,
    RunInUse,
    RunNotFound,
    TraceUnwritable,
)
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import StopOrder, Store, pause_run, unpause_run
from rollcage.store.url import open_store
from rollcage.trace import check_events, step_resolved

from rollcage_conformance.stores.base import HOLD, JOB, StoreBase, note

__all__ = ["CrashSuite"]


def _at_once(both: threading.Barrier, do: Callable[..., Any], *args: Any) -> Any:
    both.wait(60)
    return do(*args)


class CrashSuite(StoreBase):
    """Processes that die, fork, race for a run, lose it, or are ordered to stop or pause."""

    @pytest.mark.parametrize("when", ["before", "after", "between"])
    @pytest.mark.parametrize(("at", "how"), [(0, "thread"), (2, "tasks"), (4, "thread")])
    def test_a_killed_process_loses_and_doubles_nothing(
        self, store: Store, url: str, tmp_path: Path, start: Any, at: int, how: str, when: str
    ) -> None:
        world = tmp_path / "world"
        world.write_text("")
        process = start(JOB, str(world), str(at), when, how)
        assert process.wait(60) == -9, process.communicate()

        @tool(effect="write", name="store_suite.add")
        def add(number: int) -> int:
            with world.open("a") as file:
                file.write(f"{number}\n")
            return number

        def job() -> None:
            with Session("job", store=url):
                for number in range(5):
                    add(number)

        if when == "between":
            job()
        else:
            with pytest.raises(UnknownOutcome) as unknown:
                job()
            self._resolve(store, unknown.value, done=when == "after", value=at)
            job()
        assert world.read_text().split() == ["0", "1", "2", "3", "4"]
        assert [info.status for info in store.runs()][-1] == "ok"

    @staticmethod
    def _resolve(store: Store, unknown: UnknownOutcome, *, done: bool, value: Any) -> None:
        outcome = {"status": "ok", "value": value} if done else {"status": "not_started"}
        info = store.read(unknown.run).info
        writer = store.reopen(unknown.run)
        try:
            digest = sha256(orjson.dumps(outcome)).hexdigest()
            writer.append(
                step_resolved(
                    time=0, step=unknown.step, by="operator", outcome=outcome, digest=digest
                )
            )
            if info is not None and info.status is not None:
                writer.attest(info.status)
        finally:
            writer.close()

    def test_two_resumes_at_once(self, store: Store, url: str, start: Any) -> None:
        holder = start(HOLD, "auto")
        run = holder.stdout.readline().strip()
        with pytest.raises(RunInUse), Session("held", store=url):
            pytest.fail("two sessions resume one run")
        with pytest.raises(RunInUse):
            store.reopen(run)
        with pytest.raises(RunInUse):
            undo_run(store, run)
        holder.kill()
        holder.wait()
        with Session("held", store=url) as session:  # free at once
            note("one")
            with pytest.raises(RunInUse):
                store.lock(run)
            note("two")
        assert session.stats.hits == 1
        store.lock(run).release()

    def test_sessions_that_open_at_once_are_one(self, store: Store, url: str) -> None:
        ready, tried = threading.Barrier(4), threading.Barrier(4)

        def job() -> bool:
            ready.wait(30)
            try:
                with Session("job", store=open_store(url)):
                    note("one")
                    tried.wait(30)
            except RunInUse:
                tried.wait(30)
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = [pool.submit(job) for _ in range(4)]
        assert sum(each.result() for each in won) == 1
        assert len(store.runs()) == 1

    def test_whoever_lost_its_run_is_refused_before_the_body(
        self,
        store: Store,
        start: Any,
        lose_locks: Callable[[Store], None] | None,
    ) -> None:
        if lose_locks is None:
            pytest.skip("the fixture `lose_locks` does not say how a lock is lost")
        ran: list[str] = []

        @tool(effect="write", name="store_suite.late")
        def late() -> None:
            ran.append("late")

        successor: Any = None
        with pytest.raises(TraceUnwritable), Session("held", store=store) as session:
            note("one")
            lose_locks(store)
            successor = start(HOLD, "auto")
            assert successor.stdout.readline().strip(), successor.communicate()
            late()
        assert ran == []
        successor.communicate("\n", timeout=60)
        assert successor.returncode == 0
        assert store.info(session.run_id).status != "ok"
        assert store.runs(name="held")[-1].status == "ok"

    def test_a_forked_child_leaves_the_run_alone(self, store: Store, url: str) -> None:
        with Session("job", store=url) as session:
            note("one")
            child = os.fork()
            if not child:
                code = 1
                try:
                    note("in the child")
                except Forked:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            with pytest.raises(RunInUse):
                store.lock(session.run_id)
            note("two")
        trace = store.read(session.run_id)
        texts = [each["args"]["text"] for each in check_events(trace.data, "") if "args" in each]
        assert texts == ["one", "two"]

    def test_a_stop_order_is_seen_by_the_very_next_call(
        self, store: Store, url: str, start: Any
    ) -> None:
        with pytest.raises(RunStopped), Session("job", store=url) as session:
            note("one")
            store.stop(StopOrder(session.run_id, "ann", "enough", 1))
            note("two")
        holder = start(HOLD, "auto")
        run = holder.stdout.readline().strip()
        open_store(url).stop(StopOrder(run, "ann", "enough", 1))
        holder.communicate("\n", timeout=60)
        assert holder.returncode == 1
        assert store.stop_order(run) == StopOrder(run, "ann", "enough", 1)
        with pytest.raises(RunStopped), Session("held", store=url):
            note("one")
        assert open_store(url).lift(run)
        assert not store.lift(run)
        with Session("held", store=url) as session:
            note("one")
            note("two")
        assert session.stats.hits == 1
        with pytest.raises(RunNotFound):
            store.stop(StopOrder("01a201da-e587-7294-a93d-cf1f79b301bb", "ann", "", 1))

    def test_a_pause_is_seen_by_the_very_next_call_until_it_is_lifted(
        self, store: Store, url: str, start: Any
    ) -> None:
        holder = start(HOLD, "auto")
        run = holder.stdout.readline().strip()
        before = store.read(run).data
        order = pause_run(open_store(url), run, by="ann", reason="a look", time=1)
        assert order == StopOrder(run, "ann", "a look", 1, "pause")
        holder.stdin.write("\n")
        holder.stdin.flush()
        with pytest.raises(TimeoutExpired):
            holder.wait(1)
        assert open_store(url).stop_order(run) == order
        assert store.read(run).data == before, "what waits has written nothing"
        assert not store.lift(run, "stop")
        assert unpause_run(store, run) == (order, None)
        assert holder.wait(60) == 0, holder.communicate()
        assert store.info(run).status == "ok"
        with pytest.raises(OrderRefused):
            pause_run(store, run, by="ann", reason="", time=2)

    def test_a_pause_outlives_the_process_and_holds_for_who_resumes_the_run(
        self, store: Store, url: str, start: Any
    ) -> None:
        holder = start(HOLD, "auto")
        run = holder.stdout.readline().strip()
        pause_run(store, run, by="ann", reason="", time=1)
        holder.kill()
        holder.wait()
        with Session("held", store=url) as session, ThreadPoolExecutor(1) as pool:
            assert store.stop_order(session.run_id) == StopOrder(run, "ann", "", 1, "pause")
            given = pool.submit(session.call, note, text="one")
            with pytest.raises(TimeoutError):
                given.result(0.5)
            with pytest.raises(OrderRefused, match=run):
                unpause_run(store, session.run_id)
            unpause_run(open_store(url), run)
            given.result(60)
            assert store.stop_order(session.run_id) is None
        assert session.stats.hits == 1

    def test_no_pause_takes_the_place_of_a_stop(self, store: Store, url: str) -> None:
        with pytest.raises(KeyError), Session("job", store=url) as session:
            note("one")
            raise KeyError
        run = session.run_id
        pause_run(store, run, by="ann", reason="first", time=1)
        pause_run(store, run, by="bob", reason="second", time=2)
        assert store.stop_order(run) == StopOrder(run, "bob", "second", 2, "pause")
        store.stop(stop := StopOrder(run, "ann", "enough", 3))
        with pytest.raises(OrderRefused, match="stopped by ann: enough"):
            pause_run(store, run, by="ann", reason="", time=4)
        with pytest.raises(OrderRefused, match="stopped by ann: enough"):
            unpause_run(store, run)
        assert not store.lift(run, "pause")
        assert store.stop_order(run) == stop
        assert store.lift(run, "stop")
        assert store.stop_order(run) is None

    @pytest.mark.parametrize("kind", ["stop", "pause"])
    def test_a_live_run_whose_stop_is_lifted_keeps_the_order_of_what_it_builds_on(
        self, store: Store, url: str, kind: Any
    ) -> None:
        with pytest.raises(KeyError), Session("job", store=url) as first:
            note("one")
            raise KeyError
        with pytest.raises(KeyError), Session("job", store=url) as second:
            note("one")
            raise KeyError
        session = Session("job", store=url)
        stopped = pytest.raises(RunStopped) if kind == "stop" else contextlib.nullcontext()
        with stopped, session, ThreadPoolExecutor(1) as pool:
            own = StopOrder(session.run_id, "bob", "this one", 2)
            above = StopOrder(first.run_id, "ann", "all of it", 1, kind)
            between = StopOrder(second.run_id, "eve", "both", 3)
            if kind == "stop":  # the stop of one's own takes its place
                store.stop(above)
            for each in (own, between):
                store.stop(each)
            if kind == "pause":  # it can't take the place of the stop
                store.stop(above)
            assert store.stop_order(session.run_id) == between
            assert store.lift(second.run_id)
            assert store.stop_order(second.run_id) == above
            assert store.stop_order(session.run_id) == above
            store.stop(own)
            assert store.lift(session.run_id)
            assert store.stop_order(session.run_id) == above
            given = pool.submit(session.call, note, text="one")
            if kind == "stop":
                with pytest.raises(SessionHalted):
                    given.result(60)
            else:
                with pytest.raises(TimeoutError):
                    given.result(0.5)
                assert store.lift(first.run_id)
                assert given.result(60) == "one"

    def test_a_stop_that_comes_while_another_order_is_lifted_holds(
        self, store: Store, url: str
    ) -> None:
        with pytest.raises(KeyError), Session("job", store=url) as first:
            note("one")
            raise KeyError
        with (
            pytest.raises(RunStopped),
            Session("job", store=url) as session,
            ThreadPoolExecutor(2) as pool,
        ):
            own = StopOrder(session.run_id, "bob", "this one", 2)
            for _ in range(40):
                store.stop(StopOrder(first.run_id, "ann", "a look", 1, "pause"))
                both = threading.Barrier(2)
                lifting = pool.submit(_at_once, both, store.lift, first.run_id, "pause")
                stopping = pool.submit(_at_once, both, open_store(url).stop, own)
                assert (lifting.result(60), stopping.result(60)) == (True, None)
                assert store.stop_order(session.run_id) == own
                assert store.lift(session.run_id)
            store.stop(own)
            note("one")

    def test_whoever_resumes_a_stopped_run_is_stopped_too(self, store: Store, url: str) -> None:
        with pytest.raises(KeyError), Session("job", store=url) as first:
            note("one")
            raise KeyError
        with pytest.raises(RunStopped), Session("job", store=url):
            note("one")
            store.stop(StopOrder(first.run_id, "ann", "", 1))
            note("two")
        store.lift(first.run_id)
        with Session("job", store=url):
            note("one")
