"""What every store does: crashes, forks, two resumes at once, stop orders, documents, logs.

::

    from rollcage_conformance import StoreSuite


    class TestMyStore(StoreSuite):
        @pytest.fixture
        def url(self, tmp_path: Path) -> str:
            return f"mystore://{tmp_path}/runs"
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from rollcage import (
    Approval,
    ApprovalRequired,
    Compensation,
    QueueApprover,
    RunStopped,
    Session,
    StepView,
    UnknownOutcome,
    Verdict,
    abandon_run,
    compensate,
    open_store,
    tool,
    undo_run,
)
from rollcage.errors import (
    Forked,
    ReplayMiss,
    RunConflict,
    RunInUse,
    RunNotFound,
    RunPruned,
    StoreError,
    TraceCorrupt,
)
from rollcage.gate import ApprovalQueue
from rollcage.store import Pruned, RunTrace, StopOrder, Store, check_attested
from rollcage.trace import check_events, step_resolved
from rollcage_governance import Registry

__all__ = ["StoreSuite"]

_JOB: Final = """
import asyncio, os, signal, sys
from rollcage import Session, UnknownOutcome, tool

url, world, at, when, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]

def put(number):
    if number == at and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(world, "a") as file:
        file.write(f"{number}\\n")
    if number == at and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return number

def ended(number):
    if number == at and when == "between":
        os.kill(os.getpid(), signal.SIGKILL)

async def tasks():
    @tool(effect="write", name="store_suite.add")
    async def add(number: int) -> int:
        return put(number)

    async with Session("job", store=url):
        for number in range(5):
            await add(number)
            ended(number)

if how == "tasks":
    asyncio.run(tasks())

@tool(effect="write", name="store_suite.add")
def add(number: int) -> int:
    return put(number)

with Session("job", store=url):
    for number in range(5):
        add(number)
        ended(number)
"""
_HOLD: Final = """
import sys
from rollcage import Session, tool

@tool(effect="write", name="store_suite.note")
def note(text: str) -> str:
    return text

with Session("held", store=sys.argv[1], replay=sys.argv[2]) as session:
    note("one")
    print(session.run_id, flush=True)
    sys.stdin.readline()
    note("two")
"""


@tool(effect="write", name="store_suite.note")
def note(text: str) -> str:
    """Give the text back."""
    return text


@tool(effect="write", name="store_suite.drop")
def drop(number: int) -> None:
    """Take a number out of the world."""
    _world.remove(number)


def _dropped(args: Any) -> list[Compensation]:
    return [compensate(drop, number=args["number"])]


@tool(effect="write", name="store_suite.keep", undo=_dropped)
def keep(number: int) -> int:
    """Put a number into the world."""
    _world.append(number)
    return number


_world: Final[list[int]] = []


def _asks(view: StepView) -> Verdict | None:
    return Verdict.ask("is that so?") if view.args.get("text") == "ask" else None


class StoreSuite:
    """Subclass it, and say with the fixture `url` where a new store of each test's own is."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """The URL of a store of the test's own, which is not there yet."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        """That store; the traces that a test left in it are checked."""
        _world.clear()
        store = open_store(url)
        yield store
        for info in store.runs():
            if info.pruned is not None:
                continue
            trace = open_store(url).read(info.run)
            if trace.data:
                check_events(trace.data, trace.where)
                check_attested(trace)

    @pytest.fixture
    def start(self, url: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
        """Run a program in a process of its own, with the store's URL and more arguments."""
        started: list[subprocess.Popen[str]] = []

        def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", program, url, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            return process

        yield begin
        for process in started:
            process.kill()
            process.communicate()

    # --- what is there ---------------------------------------------------------------------------

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
        holder = start(_HOLD, "auto")
        run = holder.stdout.readline().strip()
        assert open_store(url).live(run)
        assert store.info(run).status is None
        assert [info.run for info in store.runs(status="unfinished")] == [run]
        holder.kill()
        holder.wait()
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

    # --- crashes ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("when", ["before", "after", "between"])
    @pytest.mark.parametrize(("at", "how"), [(0, "thread"), (2, "tasks"), (4, "thread")])
    def test_a_killed_process_loses_and_doubles_nothing(
        self, store: Store, url: str, tmp_path: Path, start: Any, at: int, how: str, when: str
    ) -> None:
        world = tmp_path / "world"
        world.write_text("")
        process = start(_JOB, str(world), str(at), when, how)
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
        holder = start(_HOLD, "auto")
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

    # --- orders to stop --------------------------------------------------------------------------

    def test_a_stop_order_is_seen_by_the_very_next_call(
        self, store: Store, url: str, start: Any
    ) -> None:
        with pytest.raises(RunStopped), Session("job", store=url) as session:
            note("one")
            store.stop(StopOrder(session.run_id, "ann", "enough", 1))
            note("two")
        holder = start(_HOLD, "auto")
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

    # --- what goes with traces -------------------------------------------------------------------

    def test_a_document_is_written_once_by_one(self, store: Store, url: str) -> None:
        def put(number: int) -> bool:
            return open_store(url).put_once("approvals", "a.b-c_1", b"%d" % number)

        with ThreadPoolExecutor(8) as pool:
            won = [number for number, new in enumerate(pool.map(put, range(24))) if new]
        assert len(won) == 1
        assert store.get("approvals", "a.b-c_1") == b"%d" % won[0]
        assert store.put_once("approvals", "Z", b"")
        assert list(store.keys("approvals")) == ["Z", "a.b-c_1"]
        assert list(store.keys("others")) == []
        for _ in range(2):
            store.drop("approvals", "a.b-c_1")
        assert list(store.keys("approvals")) == ["Z"]
        assert store.get("approvals", "a.b-c_1") is None

    def test_a_log_of_many_writers_is_one_chain(self, store: Store, url: str) -> None:
        def add(number: int) -> None:
            log = open_store(url).log("registry", "registry.started")
            log.append(
                lambda lines: [
                    {"event": "registry.started" if not lines else "more", "number": number}
                ]
            )

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(add, range(12)))
        log = store.log("registry", "registry.started")
        lines = log.read()
        assert [number for number, _ in lines] == list(range(1, 13))
        assert sorted(event["number"] for _, event in lines) == list(range(12))

        def refuse(lines: Any) -> Any:
            raise KeyError(len(lines))

        with pytest.raises(KeyError, match="12"):
            log.append(refuse)
        assert len(log.read()) == 12

    def test_an_approval_is_asked_here_and_decided_there(self, store: Store, url: str) -> None:
        approver = QueueApprover(url)

        def job() -> str:
            with Session("job", store=url, rules=[_asks], approver=approver) as session:
                note("one")
                note("ask")
            return session.run_id

        with pytest.raises(ApprovalRequired):
            job()
        queue = ApprovalQueue(open_store(url))
        (waiting,) = queue.ids()
        queue.decide(waiting, Approval(True, by="bob"))
        job()
        queued = queue.get(waiting)
        assert queued is not None
        assert queued.use == "used"
        assert [info.status for info in store.runs()] == ["paused", "ok"]

    def test_the_registry_of_tools(self, store: Store, url: str) -> None:
        registry = Registry(url)
        registry.propose(note, by="ann")
        registry.approve("store_suite.note", by="bob")
        registry.activate("store_suite.note", "pack", by="bob")
        Registry(open_store(url)).define_facade("agent", ["pack"], by="bob")
        assert [each["event"] for each in registry.history()]
        with Session("job", store=url, facade="agent"):
            assert note("one") == "one"
        assert store.runs()[0].status == "ok"

    # --- copying and pruning ---------------------------------------------------------------------

    @pytest.fixture
    def origin(self, tmp_path: Path) -> Store:
        """Another store, which runs are copied from."""
        return open_store(str(tmp_path / "origin"))

    def test_a_run_is_restored_whole_or_not_at_all(
        self, store: Store, url: str, origin: Store
    ) -> None:
        assert store.take_key(origin.secret_key())
        assert not store.take_key(b"k" * 32)
        assert store.secret_key() == origin.secret_key()
        with pytest.raises(KeyError), Session("job", store=origin, input=1) as first:
            keep(1)
            raise KeyError
        with Session("job", store=origin, input=1) as second:
            keep(1)
            keep(2)
        for run in (first.run_id, second.run_id):
            trace = origin.read(run)
            assert store.restore(trace)
            assert not store.restore(trace)
            again = open_store(url).read(run)
            assert (again.data, again.info) == (trace.data, trace.info)
        assert store.runs() == origin.runs()
        assert store.newest("job", origin.runs()[0].input) == origin.runs()[-1]
        with Session("job", store=url, input=1, replay="offline") as session:
            assert [keep(1), keep(2)] == [1, 2]
        assert session.stats.hits == 2

    def test_a_run_that_went_on_is_continued(self, store: Store, origin: Store) -> None:
        with Session("job", store=origin) as session:
            keep(1)
            keep(2)
        run = session.run_id
        before = origin.read(run)
        assert store.restore(before)
        undo_run(origin, run)
        after = origin.read(run)
        with Session("other", store=store) as live, pytest.raises(RunInUse):
            store.restore(dataclasses.replace(after, run=live.run_id))
        assert store.restore(after)
        assert store.info(run).status == "undone"
        assert (store.read(run).data, store.info(run)) == (after.data, origin.info(run))
        assert not store.restore(before)  # what is here goes farther
        assert store.read(run).data == after.data

    def test_another_run_of_the_same_id_is_a_conflict(self, store: Store, origin: Store) -> None:
        with Session("job", store=origin) as session:
            keep(1)
            keep(2)
        before = origin.read(session.run_id)
        store.restore(before)
        undo_run(origin, session.run_id, to=1)
        _world.append(2)
        undo_run(store, session.run_id)
        there = store.read(session.run_id)
        with pytest.raises(RunConflict, match=session.run_id):
            store.restore(origin.read(session.run_id))
        assert store.read(session.run_id) == there

    @pytest.mark.parametrize("kept", [False, True])
    def test_a_pruned_run_was_done_all_the_same(
        self, store: Store, url: str, origin: Store, *, kept: bool
    ) -> None:
        with Session("job", store=url, input=7) as session:
            keep(1)
        with Session("later", store=url) as later:
            pass
        run, before = session.run_id, store.info(session.run_id)
        lines = store.read(later.run_id).data if kept else b""
        store.prune(run, by="ann", time=5, skeleton=lines)
        store.prune(run, by="bob", time=6, skeleton=lines)  # it is done already
        again = open_store(url)
        pruned = Pruned(5, "ann", before.count or 0, before.head or "")
        after = again.info(run)
        assert after.pruned == pruned
        assert after == dataclasses.replace(
            before, pruned=pruned, count=after.count, head=after.head
        )
        assert [info.run for info in again.runs()] == [run, later.run_id]
        assert again.runs(name="job") == [after]
        assert again.newest("job", before.input) == after
        if kept:
            check_attested(again.read(run))
            assert again.read(run).data == lines
        else:
            with pytest.raises(RunPruned, match="ann"):
                again.read(run)
        for needs_it in (again.lock, again.reopen):
            with pytest.raises(RunPruned):
                needs_it(run)
        with pytest.raises(RunPruned), Session("job", store=url, input=7, replay="offline"):
            pytest.fail("there is nothing to replay")
        with pytest.raises(RunPruned):
            undo_run(again, run)
        if not kept:  # a copy tells the same
            origin.take_key(store.secret_key())
            assert origin.restore(RunTrace(run, "", b"", b"", after))
            assert origin.info(run) == after
        again.repair()
        assert again.info(run) == after
        with Session("job", store=url, input=7) as afresh:
            keep(2)
        assert (afresh.stats.hits, afresh.root) == (0, afresh.run_id)

    def test_a_run_that_another_one_builds_on_is_not_pruned(self, store: Store, url: str) -> None:
        with Session("job", store=url) as first:
            keep(1)
        with Session("job", store=url, replay="continue") as later:
            keep(1)
        with Session("job", store=url, replay="verify", source=first.run_id) as looks_back:
            pass
        with pytest.raises(StoreError, match=later.run_id):
            store.prune(first.run_id, by="ann", time=5)
        assert store.info(first.run_id).pruned is None
        store.prune(later.run_id, by="ann", time=5)
        store.prune(first.run_id, by="ann", time=5)
        with pytest.raises(RunPruned, match=later.run_id):  # it was done: nobody does it again
            Session("job", store=url, replay="continue").__enter__()
        assert store.info(looks_back.run_id).pruned is None
        with pytest.raises(RunPruned):
            store.stop(StopOrder(first.run_id, "ann", "", 1))
        with pytest.raises(RunPruned):
            store.lift(first.run_id)

    def test_what_has_not_ended_is_not_pruned(self, store: Store, url: str, start: Any) -> None:
        holder = start(_HOLD, "auto")
        run = holder.stdout.readline().strip()
        before = store.read(run).data
        with pytest.raises(StoreError):
            store.prune(run, by="ann", time=5)
        holder.kill()
        holder.wait()
        with pytest.raises(StoreError, match="has not ended"):
            store.prune(run, by="ann", time=5)
        assert store.read(run).data == before
        with Session("held", store=url) as session:
            note("one")
            with pytest.raises(RunNotFound):
                store.prune("01a201da-e587-7294-a93d-cf1f79b301bb", by="ann", time=5)
        assert session.stats.hits == 1

    def test_blobs_are_listed_and_dropped(self, store: Store) -> None:
        assert list(store.blobs()) == []
        one, two = (sha256(text).hexdigest() for text in (b"one", b"two"))
        store.put_blob(one, b"one")
        store.put_blob(two, b"two")
        assert list(store.blobs()) == sorted([one, two])
        store.drop_blob(one)
        store.drop_blob(one)
        assert list(store.blobs()) == [two]
        for name in ("", "../key", one.upper()):
            with pytest.raises(StoreError):
                store.drop_blob(name)

    # --- undo, and many at once ------------------------------------------------------------------

    def test_undo_resume_and_abandon(self, store: Store, url: str) -> None:
        with Session("job", store=url) as session:
            keep(1)
            keep(2)
        report = undo_run(open_store(url), session.run_id, to=1)
        assert (report.complete, _world) == (True, [1])
        assert store.runs()[0].status == "undone"
        with Session("job", store=url) as again:
            keep(1)
            keep(2)
        assert (again.stats.hits, again.stats.misses, _world) == (1, 1, [1, 2])
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
