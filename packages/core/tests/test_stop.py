"""The kill switch: seen by whoever has the run open, and by every resume, until it is lifted."""

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Contract,
    Forked,
    RunNotFound,
    RunStopped,
    SessionHalted,
    StoreError,
    TraceUnwritable,
    compensate,
    tool,
)
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore, StopOrder

Events = Callable[[str], list[dict[str, Any]]]
Python = Callable[..., subprocess.CompletedProcess[str]]

ran: list[int] = []

WRITER = """
import sys
from rollcage import RunStopped, SessionHalted, tool
from rollcage.session.session import Session

@tool(effect="write", name="write")
def write(number: int) -> int:
    return number

try:
    with Session("job", store="store") as session:
        print(session.run_id, flush=True)
        for line in sys.stdin:
            try:
                print(write(int(line)), flush=True)
            except SessionHalted as error:
                print(type(error.__cause__).__name__, flush=True)
except RunStopped as error:
    print("left:", error.run, error.by, error.reason, flush=True)
"""


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(effect="write", name="write")
def write(number: int) -> int:
    ran.append(number)
    return number


def order(run: str, reason: str = "too eager") -> StopOrder:
    return StopOrder(run, "ann", reason, 5)


@contextmanager
def writer(folder: Path) -> Iterator[tuple[str, Callable[[int], str], Callable[[], str]]]:
    """A process in the middle of a run: its run, a call of it, and its leave."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def call(number: int) -> str:
            stdin.write(f"{number}\n")
            stdin.flush()
            return stdout.readline().strip()

        def leave() -> str:
            stdin.close()
            return stdout.readline().strip()

        yield stdout.readline().strip(), call, leave


def broken_off(store: JsonlStore, name: str = "job") -> str:
    """A run that did one write and did not finish."""
    with pytest.raises(KeyError), Session(name, store=store) as session:
        write(1)
        raise KeyError
    return session.run_id


# --- whoever has the run open --------------------------------------------------------------------


def test_another_process_sees_it_at_its_next_call(
    store: JsonlStore, events: Events, tmp_path: Path
) -> None:
    with writer(tmp_path) as (run, call, leave):
        assert call(1) == "1"
        store.stop(order(run))
        assert [call(2), call(3)] == ["RunStopped", "RunStopped"]
        assert leave() == f"left: {run} ann too eager"
    told = [e for e in events(run) if e["event"] not in ("step.started", "step.finished")]
    assert [e["event"] for e in told] == ["run.started", "run.stopped", "run.finished"]
    said = {name: told[1][name] for name in ("run", "by", "reason", "ordered")}
    assert said == {"run": run, "by": "ann", "reason": "too eager", "ordered": 5}
    assert told[2]["status"] == "halted"
    assert told[2]["error"]["type"] == "rollcage.errors.RunStopped"


def test_every_thread_and_task_sees_it(store: JsonlStore) -> None:
    with pytest.raises(RunStopped, match="too eager"), Session("job", store=store) as session:
        bound = session.tool(write)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(bound, range(4))) == [0, 1, 2, 3]
            store.stop(order(session.run_id))
            later = [pool.submit(bound, number) for number in range(9)]
            assert {type(each.exception()) for each in later} == {SessionHalted}

        async def tasks() -> list[Any]:
            calls = (session.acall(write, number=number) for number in range(5))
            return await asyncio.gather(*calls, return_exceptions=True)

        assert {type(each) for each in asyncio.run(tasks())} == {SessionHalted}
    assert sorted(ran) == [0, 1, 2, 3]


def test_what_runs_is_not_interrupted_but_calls_nothing_more(
    store: JsonlStore, events: Events
) -> None:
    @tool(effect="write")
    def long() -> str:
        store.stop(order(session.run_id))
        with pytest.raises(SessionHalted):
            write(1)
        return "done"

    with pytest.raises(RunStopped), Session("job", store=store) as session:
        assert long() == "done"
    assert ran == []
    (ended,) = [e for e in events(session.run_id) if e["event"] == "step.finished"]
    assert ended["outcome"] == {"status": "ok", "value": "done"}


async def test_a_call_that_waits_for_a_thread_does_not_begin(
    store: JsonlStore, events: Events
) -> None:
    begun, stopped = threading.Event(), threading.Event()

    @tool(effect="write")
    def long() -> None:
        begun.set()
        stopped.wait()

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    session = Session("job", store=store)
    with pytest.raises(RunStopped):
        async with session:
            first = asyncio.create_task(session.acall(long))
            second = asyncio.create_task(session.acall(write, number=1))
            await asyncio.sleep(0)
            assert len(events(session.run_id)) == 3  # both are on their way
            assert begun.wait(60)
            store.stop(order(session.run_id))
            stopped.set()
            await first
            with pytest.raises(SessionHalted):
                await second
    assert ran == []
    ends = [e["outcome"]["status"] for e in events(session.run_id) if e["event"] == "step.finished"]
    assert sorted(ends) == ["not_started", "ok"]


def test_a_write_that_waits_for_the_disk_does_not_begin(
    store: JsonlStore, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdatasync = os.fdatasync
    with (
        pytest.raises(RunStopped),
        Session("job", store=store, replay="off", durability="disk") as session,
    ):

        def stop_meanwhile(descriptor: int) -> None:
            fdatasync(descriptor)
            store.stop(order(session.run_id))

        monkeypatch.setattr(os, "fdatasync", stop_meanwhile)
        with pytest.raises(SessionHalted):
            write(1)
    assert ran == []
    (ended,) = [e for e in events(session.run_id) if e["event"] == "step.finished"]
    assert ended["outcome"] == {"status": "not_started"}


def test_a_call_does_not_begin_that_is_stopped_while_an_observer_is_told(
    store: JsonlStore,
) -> None:
    class Slow:
        def __call__(self, event: object) -> None:
            store.stop(order(session.run_id))

    session = Session("job", store=store, replay="off", observers=[Slow()])
    with pytest.raises(RunStopped), session, pytest.raises(SessionHalted):
        write(1)
    assert ran == []


def test_nothing_recorded_is_given_back_either(store: JsonlStore) -> None:
    broken_off(store)
    with pytest.raises(RunStopped), Session("job", store=store) as session:
        store.stop(order(session.run_id))
        with pytest.raises(SessionHalted):
            write(1)
    assert session.stats.hits == 0


def test_a_stream_does_not_begin(store: JsonlStore) -> None:
    contract = Contract(name="chunks", parameters={"type": "object"}, effect="read")
    with pytest.raises(RunStopped), Session("job", store=store) as session:
        chunks = session.stream(contract, {}, lambda: iter("abc"))
        store.stop(order(session.run_id))
        with pytest.raises(SessionHalted):
            next(chunks)


def test_a_stop_that_nobody_sees_in_time_leaves_the_run_finished(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        write(1)
        store.stop(order(session.run_id))
    with pytest.raises(RunStopped), Session("job", store=store, replay="resume"):
        pytest.fail("it was resumed")
    with Session("job", store=store):
        assert write(2) == 2  # another run of this job is another run


def test_it_comes_before_a_second_error_and_after_a_first(store: JsonlStore) -> None:
    with pytest.raises(ValueError, match="first"), Session("job", store=store) as session:
        session.halt(ValueError("first"))
        store.stop(order(session.run_id))
        with pytest.raises(SessionHalted, match="first"):
            write(1)


# --- forks ---------------------------------------------------------------------------------------

FORKED = """
    import os, sys
    from rollcage import Forked, RunStopped, SessionHalted, tool
    from rollcage.session.session import Session
    from rollcage.store import JsonlStore, StopOrder

    @tool(effect="write")
    def write(number: int) -> int:
        return number

    try:
        with Session("job", store="store") as session:
            write(1)
            child = os.fork()
            if not child:
                try:
                    write(2)
                except Forked:
                    JsonlStore("store").stop(StopOrder(session.run_id, "child", "enough", 1))
                    os._exit(0)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            try:
                write(3)
            except SessionHalted:
                print("refused")
    except RunStopped as error:
        print(error.by)
"""


def test_a_forked_child_can_stop_its_parent_and_takes_nothing_from_it(python: Python) -> None:
    ended = python(FORKED)
    assert (ended.stdout.split(), ended.stderr) == (["refused", "child"], "")


def test_a_fork_leaves_the_page_to_the_parent(store: JsonlStore) -> None:
    with pytest.raises(RunStopped), Session("job", store=store) as session:
        child = os.fork()
        if not child:
            try:
                session.__exit__(None, None, None)
            except Forked:
                os._exit(0)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        store.stop(order(session.run_id))
        with pytest.raises(SessionHalted):
            write(1)


# --- resumes -------------------------------------------------------------------------------------


def test_no_process_resumes_it_until_that_is_lifted(store: JsonlStore, python: Python) -> None:
    run = broken_off(store)
    store.stop(order(run))
    code = """
        from rollcage.session.session import Session
        with Session("job", store="store"):
            print("resumed")
    """
    refused = python(code)
    assert refused.stdout == ""
    assert f"RunStopped: run {run} was stopped by ann: too eager" in refused.stderr
    assert f"rollcage stop {run} --lift" in refused.stderr
    assert [info.run for info in store.runs()] == [run]
    assert store.lift(run)
    assert python(code).stdout == "resumed\n"


def test_a_resume_that_is_live_already_sees_it(store: JsonlStore, tmp_path: Path) -> None:
    first = broken_off(store)
    with writer(tmp_path) as (run, call, leave):
        assert call(1) == "1"
        store.stop(order(first))
        assert call(2) == "RunStopped"
        assert leave() == f"left: {first} ann too eager"
    with pytest.raises(RunStopped), Session("job", store=store, source=run):
        pytest.fail("it was resumed")
    assert store.lift(first)
    assert store.stop_order(run) is None
    with Session("job", store=store, source=run) as session:
        assert write(1) == 1
    assert session.stats.hits == 1


def test_lifting_the_order_of_one_run_leaves_that_of_another(store: JsonlStore) -> None:
    first = broken_off(store)
    with pytest.raises(RunStopped), Session("job", store=store) as session:
        store.stop(order(session.run_id))
        store.stop(order(first))  # the later word counts, for both
        assert not store.lift(session.run_id)
        with pytest.raises(SessionHalted):
            write(2)
        assert store.lift(first)
    assert store.stop_order(session.run_id) is None


def test_looking_back_at_a_stopped_run_is_free(store: JsonlStore) -> None:
    run = broken_off(store)
    store.stop(order(run))
    with Session("job", store=store, replay="offline", source=run):
        assert write(1) == 1
    with Session("job", store=store, replay="off"):
        write(1)


# --- undo ----------------------------------------------------------------------------------------

box: set[int] = set()


@pytest.fixture(autouse=True)
def empty_box() -> None:
    box.clear()


@tool(effect="write", name="stop.take")
def take(number: int) -> None:
    box.discard(number)


@tool(
    effect="write",
    name="stop.put",
    observe=lambda args: {"box": sorted(box)},
    undo=lambda args: [compensate(take, number=args["number"])],
)
def put(number: int) -> None:
    box.add(number)


@tool(effect="write", name="stop.add", undo=lambda args: [compensate(take, number=args["number"])])
def add(number: int) -> None:
    box.add(number)


def test_what_a_stopped_run_did_can_be_taken_back(store: JsonlStore) -> None:
    with pytest.raises(RunStopped), Session("job", store=store) as session:
        put(1)
        store.stop(order(session.run_id))
        with pytest.raises(SessionHalted):
            put(2)
    assert box == {1}
    assert undo_run(store, session.run_id).complete
    assert box == set()


def test_a_transaction_that_is_stopped_is_taken_back(store: JsonlStore) -> None:
    with pytest.raises(RunStopped), Session("job", store=store) as session, session.transaction():
        put(1)
        store.stop(order(session.run_id))
        put(2)
    assert box == set()


@pytest.mark.parametrize("inner", [False, True])
def test_a_transaction_that_had_ended_is_not_taken_back_when_its_replay_is_stopped(
    store: JsonlStore, inner: bool
) -> None:
    def job(session: Session, *, stops: bool) -> None:
        within = session.transaction("inner") if inner else contextlib.nullcontext()
        with session.transaction(), within:
            add(1)
            if stops:
                store.stop(order(session.run_id))
            add(2)
        add(3)

    with pytest.raises(KeyError), Session("job", store=store) as first:
        job(first, stops=False)
        raise KeyError
    with pytest.raises(RunStopped), Session("job", store=store) as stopped:
        job(stopped, stops=True)
    assert box == {1, 2, 3}, "the third one was made with the others there"
    store.lift(stopped.run_id)
    with Session("job", store=store) as last:
        job(last, stops=False)
        assert last.stats.hits == 3
    assert box == {1, 2, 3}


def test_an_open_transaction_that_is_stopped_takes_back_the_ended_one_inside(
    store: JsonlStore,
) -> None:
    for stops in (False, True):
        ends = pytest.raises(RunStopped if stops else TraceUnwritable)
        with ends, Session("job", store=store) as session, session.transaction():
            with session.transaction("inner"):
                put(1)
                if stops:
                    store.stop(order(session.run_id))
                put(2)
            session.halt(TraceUnwritable("the disk is full"))
            put(3)
    assert box == set()


# --- the page ------------------------------------------------------------------------------------


def page(store: JsonlStore, run: str) -> Path:
    return store.root / "runs" / f"{run}.control"


def test_a_run_that_is_over_leaves_no_page_unless_it_was_stopped(
    store: JsonlStore, tmp_path: Path
) -> None:
    with Session("job", store=store) as session:
        pass
    assert not page(store, session.run_id).exists()
    store.stop(order(session.run_id))
    assert store.stop_order(session.run_id) == order(session.run_id)
    with writer(tmp_path) as (run, call, _):
        call(1)
        store.stop(order(run))
        store.lift(run)
        assert call(2) == "2"
        assert page(store, run).exists()
    assert not page(store, run).exists()
    with writer(tmp_path) as (run, _, _):
        store.stop(order(run))
        store.lift(run)
    assert not page(store, run).exists(), "it had never seen it"


def test_a_page_that_goes_just_now_is_made_again(store: JsonlStore) -> None:
    run = broken_off(store)
    page(store, run).write_bytes(b"\0" * 4096)
    with ThreadPoolExecutor(1) as pool:
        with page(store, run).open("rb") as held:  # as its writer does when it closes
            fcntl.flock(held, fcntl.LOCK_EX)
            stopping = pool.submit(store.stop, order(run))
            page(store, run).unlink()
        stopping.result()
    assert store.stop_order(run) == order(run)


@pytest.mark.parametrize("rest", [b"", b"{", b"[]", b'{"run": 1}', b"\xff" * 4095])
def test_a_damaged_order_is_an_order(store: JsonlStore, rest: bytes) -> None:
    run = broken_off(store)
    page(store, run).write_bytes(b"\1" + rest)
    with pytest.raises(RunStopped, match="damaged"), Session("job", store=store):
        pytest.fail("it was resumed")
    assert store.lift(run)
    assert store.stop_order(run) is None


def test_an_empty_page_is_none(store: JsonlStore) -> None:
    run = broken_off(store)
    page(store, run).touch()
    assert store.stop_order(run) is None
    assert not store.lift(run)


def test_where_nobody_can_tell_nothing_is_resumed(store: JsonlStore) -> None:
    run = broken_off(store)
    page(store, run).mkdir()
    with pytest.raises(StoreError, match="control can't be read"), Session("job", store=store):
        pytest.fail("it was resumed")
    with pytest.raises(StoreError, match="control can't be written"):
        store.stop(order(run))
    with pytest.raises(StoreError, match="control can't be written"):
        store.lift(run)
    with pytest.raises(StoreError, match="control can't be read"):
        store.reopen(run)
    store.lock(run).release()  # whoever failed has given it up


def test_an_order_that_does_not_fit_is_refused(store: JsonlStore) -> None:
    run = broken_off(store)
    with pytest.raises(StoreError, match="too long"):
        store.stop(order(run, "x" * 4096))
    store.stop(order(run, "no \ud800 \x1b[31m"))
    found = store.stop_order(run)
    assert found is not None
    assert found.reason == "no ? \x1b[31m"


@pytest.mark.parametrize("run", ["../etc", "01a1fd42-024b-7930-99ac-d6a8ee306f29"])
def test_a_run_that_is_not_there_cannot_be_stopped(store: JsonlStore, run: str) -> None:
    broken_off(store)
    with pytest.raises(RunNotFound):
        store.stop(order(run))
    with pytest.raises(RunNotFound):
        store.lift(run)
    assert not list((store.root / "runs").glob("*.control"))
