"""A paused run: its next call waits, whoever makes it, until that is lifted or becomes a stop."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    Contract,
    OrderRefused,
    RunNotFound,
    RunStopped,
    SessionError,
    SessionHalted,
    Verdict,
    compensate,
    tool,
)
from rollcage.gate import StepView
from rollcage.session.abandon import abandon_run
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore, StopOrder, pause_run, unpause_run

Events = Callable[[str], list[dict[str, Any]]]

began: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_began() -> None:
    began.clear()


@tool(effect="write", name="pause.tidy")
def tidy(n: int) -> None:
    began.append(-n)


@tool(effect="write", name="pause.unwrite")
def unwrite(n: int) -> None:
    tidy(n)


@tool(effect="write", name="pause.write", undo=lambda args: [compensate(unwrite, n=args["n"])])
def write(n: int) -> int:
    began.append(n)
    return n


@tool(effect="write", name="pause.awrite")
async def awrite(n: int) -> int:
    began.append(n)
    await asyncio.sleep(0.01)
    return n


def paused(store: JsonlStore, run: str, reason: str = "let me look") -> StopOrder:
    return pause_run(store, run, by="ann", reason=reason, time=5)


def stopped(run: str) -> StopOrder:
    return StopOrder(run, "bob", "enough", 6)


def broken_off(store: JsonlStore) -> str:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        write(1)
        raise KeyError
    return session.run_id


def waiting() -> bool:
    """Whether a call of this process waits in a paused run."""
    return any(thread.name == "rollcage-pause" for thread in threading.enumerate())


def until(said: Callable[[], Any]) -> None:
    """Wait for what another thread or process is about to do."""
    for _ in range(6000):
        if said():
            return
        time.sleep(0.01)
    pytest.fail("it never came")


@contextlib.contextmanager
def elsewhere(call: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """A call in another thread, that waits by now; what it gives."""
    with ThreadPoolExecutor(1) as pool:
        given = pool.submit(call)
        until(lambda: waiting() or given.done())
        assert not given.done(), given.exception()
        yield lambda: given.result(60)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [each["event"] for each in events]


# --- the next call waits -------------------------------------------------------------------------


def test_the_next_call_waits_and_leaves_nothing_in_the_trace(
    store: JsonlStore, events: Events
) -> None:
    with Session("job", store=store) as session:
        write(1)
        paused(store, session.run_id)
        assert session.held == 0
        with elsewhere(lambda: session.call(write, n=2)) as given:
            assert session.held > 0
            assert began == [1]
            assert kinds(events(session.run_id))[3:] == []
            assert unpause_run(store, session.run_id)[0].by == "ann"
            assert given() == 2
        assert write(3) == 3
    assert began == [1, 2, 3]
    told = kinds(events(session.run_id))
    assert told == ["run.started", *["step.started", "step.finished"] * 3, "run.finished"]
    assert store.stop_order(session.run_id) is None


def test_what_runs_goes_on_and_its_next_call_waits(store: JsonlStore, events: Events) -> None:
    @tool(effect="scope", name="pause.parent")
    def parent() -> int:
        paused(store, session.run_id)
        return write(7)

    with Session("job", store=store) as session, elsewhere(lambda: session.call(parent)) as given:
        assert began == []
        assert kinds(events(session.run_id)) == ["run.started", "step.started"]
        unpause_run(store, session.run_id)
        assert given() == 7


def test_all_tasks_wait_and_go_on_in_the_order_in_which_they_came(store: JsonlStore) -> None:
    async def main() -> None:
        async with Session("job", store=store) as session:
            paused(store, session.run_id)
            calls = [asyncio.create_task(session.acall(awrite, n=n)) for n in range(20)]
            turns = 0
            while not waiting() or turns < 50:  # the loop goes on
                await asyncio.sleep(0.001)
                turns += 1
            assert began == []
            unpause_run(store, session.run_id)
            assert await asyncio.gather(*calls) == list(range(20))
        assert began == list(range(20))

    asyncio.run(main())


def test_tasks_that_waited_are_one_batch_as_if_they_had_come_then(
    store: JsonlStore, events: Events
) -> None:
    """Identical calls at once: they replay without a pause as they were recorded with one."""

    async def main(*, pauses: bool) -> Session:
        session = Session("job", store=store, replay="auto")
        with contextlib.suppress(KeyError):
            async with session:
                if pauses:
                    paused(store, session.run_id)
                calls = [asyncio.create_task(session.acall(awrite, n=1)) for _ in range(3)]
                if pauses:
                    await asyncio.to_thread(until, waiting)
                    unpause_run(store, session.run_id)
                await asyncio.gather(*calls)
                if pauses:
                    raise KeyError
        return session

    first = asyncio.run(main(pauses=True))
    turns = {e["turn"] for e in events(first.run_id) if e["event"] == "step.started"}
    assert len(turns) == 1
    again = asyncio.run(main(pauses=False))
    assert again.stats.hits == 3
    assert began == [1, 1, 1]


def test_threads_and_branches_wait(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        paused(store, session.run_id)

        def agent(name: str) -> int:
            with session.branch(name):
                return session.call(write, n=len(name))

        with ThreadPoolExecutor(3) as pool:
            given = [pool.submit(agent, name) for name in ("a", "bb", "ccc")]
            until(waiting)
            assert began == []
            unpause_run(store, session.run_id)
            assert [each.result(60) for each in given] == [1, 2, 3]


def test_a_hit_waits_too(store: JsonlStore) -> None:
    broken_off(store)
    with Session("job", store=store) as session:
        paused(store, session.run_id)
        with elsewhere(lambda: session.call(write, n=1)) as given:
            assert session.stats.hits == 0
            unpause_run(store, session.run_id)
            assert given() == 1
        assert session.stats.hits == 1
    assert began == [1]


def test_streams_and_models_wait(store: JsonlStore) -> None:
    contract = Contract(name="chunks", parameters={"type": "object"}, effect="read")
    model = Contract(name="oracle", parameters={"type": "object"}, effect="read")

    def chunks() -> Iterator[str]:
        began.append("chunks")
        yield from "ab"

    def ask() -> str:
        began.append("model")
        return "yes"

    with Session("job", store=store) as session:
        paused(store, session.run_id)
        with elsewhere(lambda: list(session.stream(contract, {}, chunks))) as read:
            assert began == []
            unpause_run(store, session.run_id)
            assert read() == ["a", "b"]
        paused(store, session.run_id)
        with elsewhere(lambda: session.run(model, {}, ask, kind="model")) as asked:
            assert began == ["chunks"]
            unpause_run(store, session.run_id)
            assert asked() == "yes"


def test_an_async_stream_waits(store: JsonlStore) -> None:
    contract = Contract(name="chunks", parameters={"type": "object"}, effect="read")

    async def chunks() -> AsyncIterator[str]:
        began.append("chunks")
        yield "a"

    async def main() -> None:
        async with Session("job", store=store) as session:
            paused(store, session.run_id)

            async def read() -> list[str]:
                return [each async for each in session.astream(contract, {}, chunks)]

            given = asyncio.create_task(read())
            await asyncio.to_thread(until, waiting)
            assert began == []
            unpause_run(store, session.run_id)
            assert await given == ["a"]

    asyncio.run(main())


# --- sessions inside of others -------------------------------------------------------------------


def test_a_session_inside_of_a_paused_one_waits(store: JsonlStore) -> None:
    with Session("outer", store=store) as outer, Session("inner", store=store) as inner:
        paused(store, outer.run_id)
        with elsewhere(lambda: inner.call(write, n=1)) as given:
            assert began == []
            unpause_run(store, outer.run_id)
            assert given() == 1


def test_a_call_of_the_session_around_waits_for_the_paused_one_inside(store: JsonlStore) -> None:
    with Session("outer", store=store) as outer, Session("inner", store=store) as inner:
        bound = outer.tool(write)
        paused(store, inner.run_id)
        threading.Timer(0.3, unpause_run, (store, inner.run_id)).start()
        assert bound(n=1) == 1
        assert store.stop_order(inner.run_id) is None, "it waited for that"


# --- what ends a pause ---------------------------------------------------------------------------


def test_a_stop_while_paused_stops(store: JsonlStore, events: Events) -> None:
    with pytest.raises(RunStopped, match="bob: enough"), Session("job", store=store) as session:
        paused(store, session.run_id)
        with elsewhere(lambda: session.call(write, n=1)) as given:
            store.stop(stopped(session.run_id))
            with pytest.raises(SessionHalted):
                given()
    assert began == []
    assert kinds(events(session.run_id)) == ["run.started", "run.stopped", "run.finished"]


def test_leaving_the_session_ends_the_wait_of_another_thread(store: JsonlStore) -> None:
    with ThreadPoolExecutor(1) as pool:
        with Session("job", store=store) as session:
            paused(store, session.run_id)
            given = pool.submit(session.call, write, n=1)
            until(waiting)
        with pytest.raises(SessionError, match="left already"):
            given.result(60)
    assert began == []


def test_cancellation_leaves_no_intent_and_the_run_can_be_resumed(
    store: JsonlStore, events: Events
) -> None:
    async def main() -> str:
        async with Session("job", store=store) as session:
            await session.acall(awrite, n=1)
            paused(store, session.run_id)
            async with asyncio.timeout(0.05):
                await session.acall(awrite, n=2)
        return session.run_id

    runs: list[str] = []

    async def caught() -> None:
        with pytest.raises(TimeoutError):
            await main()
        runs.extend(info.run for info in store.runs())

    asyncio.run(caught())
    assert began == [1]
    assert kinds(events(runs[0])).count("step.started") == 1
    unpause_run(store, runs[0])

    async def again() -> None:
        async with Session("job", store=store) as session:
            await session.acall(awrite, n=1)
            await session.acall(awrite, n=2)
        assert session.stats.hits == 1

    asyncio.run(again())
    assert began == [1, 2]


INTERRUPTED = """
import signal, threading
from rollcage import tool
from rollcage.session.session import Session
from rollcage.store import pause_run

@tool(effect="write", name="write")
def write(n: int) -> int:
    print("began", n, flush=True)
    return n

def watch():
    import time
    while not any(t.name == "rollcage-pause" for t in threading.enumerate()):
        time.sleep(0.01)
    print("waits", flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts the tests may ignore it
with Session("job", store="store") as session:
    print(session.run_id, flush=True)
    write(1)
    pause_run(session.store, session.run_id, by="ann", reason="why", time=5)
    threading.Thread(target=watch, daemon=True).start()
    write(2)
    write(3)
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_ends_while_paused_is_still_paused_when_resumed(
    store: JsonlStore, tmp_path: Path, events: Events, end: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(3)]
        assert lines[1:] == ["began 1", "waits"]
        os.kill(process.pid, end)
        assert process.stdout.read() == ""
    run = lines[0]
    assert kinds(events(run)).count("step.started") == 1

    @tool(effect="write", name="write")
    def again(n: int) -> int:
        began.append(n)
        return n

    with Session("job", store=store) as session:
        order = store.stop_order(session.run_id)
        assert order is not None
        assert (order.run, order.by, order.reason, order.is_pause) == (run, "ann", "why", True)
        with elsewhere(lambda: [session.call(again, n=n) for n in (1, 2, 3)]) as given:
            assert (began, session.stats.hits) == ([], 0)
            with pytest.raises(OrderRefused, match=f"rollcage unpause {run}"):
                unpause_run(store, session.run_id)
            unpause_run(store, run)
            assert given() == [1, 2, 3]
        assert session.stats.hits == 1
    assert began == [2, 3]


def test_a_run_that_is_paused_between_two_attempts_is_so_two_generations_on(
    store: JsonlStore,
) -> None:
    first = broken_off(store)
    with pytest.raises(KeyError), Session("job", store=store) as second:
        write(1)
        raise KeyError
    paused(store, first)
    assert store.stop_order(second.run_id) is None
    for _ in range(2):
        with pytest.raises(KeyError), Session("job", store=store) as session:
            order = store.stop_order(session.run_id)
            assert order is not None
            assert order.run == first
            raise KeyError
    unpause_run(store, first)
    with Session("job", store=store) as session:
        assert write(1) == 1
    assert session.stats.hits == 1


def test_a_source_in_another_store_gives_its_pause_along(store: JsonlStore, tmp_path: Path) -> None:
    run = broken_off(store)
    paused(store, run)
    other = JsonlStore(tmp_path / "other")
    with Session("job", store=other, source=f"{store.root}/runs/{run}.jsonl") as session:
        order = other.stop_order(session.run_id)
        assert order is not None
        assert order.run == session.run_id, "it is lifted where the run is"
        unpause_run(other, session.run_id)
        assert write(1) == 1
    assert store.stop_order(run) is not None


# --- who may say so ------------------------------------------------------------------------------


def test_a_pause_never_takes_the_place_of_a_stop(store: JsonlStore) -> None:
    run = broken_off(store)
    store.stop(stopped(run))
    with pytest.raises(OrderRefused, match=f"stopped by bob: enough.*rollcage stop {run} --lift"):
        paused(store, run)
    with pytest.raises(OrderRefused, match="not paused but stopped by bob: enough"):
        unpause_run(store, run)
    assert not store.lift(run, "pause")
    assert store.stop_order(run) == stopped(run)


def test_of_two_pauses_the_later_word_counts_and_anybody_lifts_it(store: JsonlStore) -> None:
    run = broken_off(store)
    paused(store, run)
    pause_run(store, run, by="bob", reason="me too", time=7)
    assert unpause_run(store, run) == (StopOrder(run, "bob", "me too", 7, "pause"), None)
    with pytest.raises(OrderRefused, match="is not paused: there is nothing to lift"):
        unpause_run(store, run)


def test_what_is_over_cannot_be_paused(store: JsonlStore) -> None:
    with Session("job", store=store) as done:
        write(1)
    with pytest.raises(OrderRefused, match="can't be paused: it ended as 'ok'"):
        paused(store, done.run_id)
    with Session("job", store=store, replay="offline", source=done.run_id) as looked:
        write(1)
    with pytest.raises(OrderRefused, match="ended as"):
        paused(store, looked.run_id)
    with pytest.raises(KeyError), Session("other", store=store) as broken:
        raise KeyError
    with Session("other", store=store) as later:
        pass
    with pytest.raises(OrderRefused, match=f"run {later.run_id}, which went on with it"):
        paused(store, broken.run_id)
    run = broken_off(store)
    abandon_run(store, run)
    with pytest.raises(OrderRefused, match="abandoned"):
        paused(store, run)
    with pytest.raises(RunNotFound):
        paused(store, "01a1fd42-024b-7930-99ac-d6a8ee306f29")
    assert not list((store.root / "runs").glob("*.control"))


def test_pausing_a_run_pauses_what_resumes_it_by_now(store: JsonlStore) -> None:
    first = broken_off(store)
    with Session("job", store=store) as session:
        paused(store, first)
        with elsewhere(lambda: session.call(write, n=1)) as given:
            assert session.stats.hits == 0
            unpause_run(store, first)
            assert given() == 1


# --- meetings ------------------------------------------------------------------------------------


def test_an_undo_does_not_wait(store: JsonlStore) -> None:
    run = broken_off(store)
    paused(store, run)
    assert undo_run(store, run).complete
    assert began == [1, -1], "what its compensating call calls does not wait either"
    with pytest.raises(KeyError), Session("other", store=store) as session:
        write(2)
        paused(store, session.run_id)
        assert session.undo().complete
        raise KeyError
    assert began == [1, -1, 2, -2]


def test_a_transaction_stays_open_and_is_taken_back_by_a_stop(store: JsonlStore) -> None:
    with pytest.raises(RunStopped), Session("job", store=store) as session, session.transaction():
        write(1)
        paused(store, session.run_id)
        threading.Timer(0.3, store.stop, (stopped(session.run_id),)).start()
        write(2)
    assert began == [1, -1]


def test_an_approved_call_waits_as_well(store: JsonlStore) -> None:
    def asks(view: StepView) -> Verdict:
        return Verdict("ask", "is it right?", "asked")

    def approver(request: ApprovalRequest) -> Approval:
        paused(store, session.run_id)
        return Approval(True, by="ann")

    with (
        Session("job", store=store, rules=[asks], approver=approver) as session,
        elsewhere(lambda: session.call(write, n=1)) as given,
    ):
        assert began == []
        unpause_run(store, session.run_id)
        assert given() == 1


def test_what_is_forbidden_meanwhile_does_not_run(store: JsonlStore) -> None:
    forbidden = False

    def rule(view: StepView) -> Verdict | None:
        return Verdict("deny", "not any more", "closed") if forbidden else None

    with Session("job", store=store, rules=[rule]) as session:
        paused(store, session.run_id)
        with elsewhere(lambda: session.call(write, n=1)) as given:
            forbidden = True
            unpause_run(store, session.run_id)
            with pytest.raises(Blocked, match="not any more"):
                given()
    assert began == []


def test_the_state_that_an_undo_needs_is_observed_after_the_pause(
    store: JsonlStore, events: Events
) -> None:
    box = {"n": 0}

    def look(args: dict[str, Any]) -> dict[str, int]:
        if box["n"] == 0:
            paused(store, session.run_id)
        return dict(box)

    @tool(effect="write", name="pause.put", observe=look, undo=lambda args: [])
    def put() -> None:
        box["n"] = 9

    with Session("job", store=store) as session, elsewhere(lambda: session.call(put)) as given:
        box["n"] = 1  # somebody else's
        unpause_run(store, session.run_id)
        given()
    (started,) = [e for e in events(session.run_id) if e["event"] == "step.started"]
    assert started["before"] == {"n": 1}


def test_a_fork_of_a_paused_run_is_not_paused(store: JsonlStore) -> None:
    run = broken_off(store)
    paused(store, run)
    with Session("job", store=store, replay="offline", source=run):
        assert write(1) == 1
    with Session("job", store=store, replay="off"):
        assert write(2) == 2
