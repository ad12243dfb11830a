"""What tasks record waits for nobody on the event loop; a call that is cut off there is known."""

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage import RunStopped, SessionError, TraceUnwritable, compensate, tool
from rollcage.errors import Forked
from rollcage.session.session import Session
from rollcage.store import StopOrder, check_attested
from rollcage.store.sqlite import SqliteStore
from rollcage.store.sqlite_committer import SqliteCommitter
from rollcage.trace import check_events

ran: list[object] = []


@tool(effect="write", name="appends.taken")
async def taken(number: int) -> None:
    ran.remove(number)


@tool(
    effect="write",
    name="appends.add",
    undo=lambda args: [compensate(taken, number=args["number"])],
)
async def add(number: int) -> int:
    ran.append(number)
    return number


@tool(effect="scope", name="appends.several")
async def several(first: int, count: int) -> int:
    return sum(await asyncio.gather(*(add(first + each) for each in range(count))))


@tool(effect="read", name="appends.look")
async def look(number: int) -> int:
    return number


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ran.clear()
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> SqliteStore:
    return SqliteStore(path)


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Another process writes to the file all the while."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")


async def turns(count: int = 20) -> None:
    """The loop goes on with others."""
    for _ in range(count):
        await asyncio.sleep(0)


def outcomes(store: SqliteStore, run: str) -> list[str]:
    """How the steps of a run ended, one word each."""
    trace = store.read(run)
    check_attested(trace)
    events = list(check_events(trace.data, trace.where))
    begun = sum(e["event"] == "step.started" for e in events)
    ends = [e["outcome"]["status"] for e in events if e["event"] == "step.finished"]
    return ends + ["unknown"] * (begun - len(ends))


async def test_a_task_that_writes_keeps_the_loop_from_nothing(
    store: SqliteStore, path: Path
) -> None:
    async with Session("job", store=store) as session:
        await add(1)
        with written(path):
            call = asyncio.create_task(add(2))
            reading = asyncio.create_task(look(1))
            await turns()  # on this very loop: it would stand still for 30 seconds
            assert not call.done()
            assert ran == [1]
            assert await reading == 1
        assert await call == 2
    assert outcomes(store, session.run_id) == ["ok"] * 3


@pytest.mark.parametrize("after", range(12))
async def test_a_call_is_cut_off_at_any_point(store: SqliteStore, path: Path, after: int) -> None:
    session: Any = None
    with contextlib.suppress(Exception):
        async with Session("job", store=store) as session:
            await add(1)
            call = asyncio.create_task(add(2))
            await turns(after)
            if after % 2:
                await asyncio.sleep(0.002)  # the store goes on, too
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
    ended = outcomes(store, session.run_id)
    assert ended[:1] == ["ok"]
    assert ended[1:] == (["ok"] if 2 in ran else ["not_started"][: len(ended) - 1])
    async with Session("job", store=store, replay="resume"):
        assert [await add(1), await add(2), await add(3)] == [1, 2, 3]
    assert ran == [1, 2, 3]


async def test_a_call_that_times_out_before_it_began_runs_in_the_next_session(
    store: SqliteStore, path: Path
) -> None:
    session: Any = None
    with pytest.raises(TimeoutError):
        async with Session("job", store=store) as session:
            await add(1)
            with written(path):
                async with asyncio.timeout(0.05):
                    await add(2)
    assert outcomes(store, session.run_id) == ["ok", "not_started"]
    async with Session("job", store=store):
        await add(1)
        await add(2)
    assert ran == [1, 2]


async def test_calls_of_one_turn_are_recorded_together(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[int] = []
    commit: Callable[..., bool] = SqliteCommitter._commit

    def counted(self: SqliteCommitter, rows: Any) -> bool:
        given = list(rows)
        commits.append(len(given))
        time.sleep(0.02)  # as long as a slow disk takes: the others wait for the next one
        return commit(self, given)

    monkeypatch.setattr(SqliteCommitter, "_commit", counted)

    async def job(*, again: bool = False) -> int:
        async with Session("job", store=store, replay="resume" if again else "off") as session:
            with session.turn():
                await asyncio.gather(*(add(number) for number in range(20)))
            assert await several(100, 5) == 510
        return session.stats.misses

    assert await job() == 26
    assert await job(again=True) == 0
    assert sorted(ran, key=str) == sorted([*range(20), *range(100, 105)], key=str)
    assert max(commits) >= 5
    assert len(commits) < sum(commits) / 2


async def test_sessions_side_by_side_are_committed_together(store: SqliteStore) -> None:
    async def job(first: int) -> None:
        async with Session(f"job-{first}", store=SqliteStore(store._database.path)):
            for number in range(first, first + 10):
                await add(number)
                await look(number)

    await asyncio.gather(*(job(100 * each) for each in range(12)))
    assert len(ran) == len(set(ran)) == 120
    for info in store.runs():
        assert outcomes(store, info.run) == ["ok"] * 20


async def test_a_block_is_taken_back_where_its_calls_are_tasks(store: SqliteStore) -> None:
    with pytest.raises(ValueError, match="enough"):
        async with Session("job", store=store) as session:
            await add(1)
            async with session.transaction():
                await asyncio.gather(add(2), add(3))
                raise ValueError("enough")
    assert ran == [1]
    async with Session("job", store=store) as session:
        await add(1)
        await session.aundo()
    assert ran == []


async def test_an_order_to_stop_is_seen_by_the_very_next_call(store: SqliteStore) -> None:
    with pytest.raises(RunStopped):
        async with Session("job", store=store) as session:
            await add(1)
            await asyncio.to_thread(
                SqliteStore(store._database.path).stop,
                StopOrder(session.run_id, "ann", "enough", 1),
            )
            await add(2)
    assert ran == [1]


async def test_a_write_that_waits_for_the_store_when_its_session_is_left_did_not_happen(
    store: SqliteStore, path: Path
) -> None:
    async with Session("job", store=store) as session:
        await add(1)
        calls = session._calls
        assert calls is not None
        waiting = calls.driver.performing._waiting

        async def kept_busy() -> None:
            """The store has an answer once the session is on its way out, and not before."""
            with written(path):
                busy.set()
                while not waiting:
                    await turns(1)
                reached.set()
                while waiting:
                    await turns(1)

        busy, reached = asyncio.Event(), asyncio.Event()
        keeper = asyncio.ensure_future(kept_busy())
        await busy.wait()
        late = asyncio.ensure_future(add(2))
        await reached.wait()
    await keeper
    with pytest.raises(SessionError, match="left before this call began"):
        await late
    assert ran == [1]
    assert outcomes(store, session.run_id) == ["ok", "not_started"]


async def test_a_full_disk_halts_before_the_body(store: SqliteStore) -> None:
    connection: Any = None
    with pytest.raises(TraceUnwritable, match="SQLITE_FULL"):
        async with Session("job", store=store) as session:
            await add(1)
            calls = session._calls
            assert calls is not None
            writer: Any = calls.driver.writer
            connection = writer._committer._connected()
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")
            for number in range(2, 500):
                await add(number)
    assert len(ran) < 400
    connection.execute("PRAGMA max_page_count = 1000000")
    done = len(ran)
    async with Session("job", store=store):
        for number in range(1, done + 3):
            await add(number)
    assert ran == list(range(1, done + 3))


async def test_whatever_keeps_the_thread_from_writing_is_told(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: SqliteCommitter, rows: object) -> bool:
        raise MemoryError("no more")

    with pytest.raises(TraceUnwritable, match="no more"):
        async with Session("job", store=store):
            await add(1)
            with monkeypatch.context() as patch:
                patch.setattr(SqliteCommitter, "_commit", breaks)
                await add(2)
    assert ran == [1]
    async with Session("job", store=store):
        await add(1)
        await add(2)
    assert ran == [1, 2]


async def test_lines_that_somebody_changes_halt_the_run(store: SqliteStore, path: Path) -> None:
    with pytest.raises(TraceUnwritable, match="somebody else changed it"):
        async with Session("job", store=store):
            await add(1)
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("DELETE FROM lines WHERE number = (SELECT max(number) FROM lines)")
            await add(2)
    assert ran == [1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking beside a thread
async def test_a_forked_child_writes_nothing_of_its_parent(store: SqliteStore) -> None:
    async with Session("job", store=store) as session:
        await add(1)
        child = os.fork()
        if not child:
            refused = False
            try:
                calls: Any = session._calls
                calls.driver.writer.append({"event": "x"})
            except Forked:
                refused = True
            os._exit(0 if refused else 1)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - it ends at once
        await add(2)
    assert outcomes(store, session.run_id) == ["ok", "ok"]


async def test_a_run_that_is_to_be_on_the_disk_is(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = store._database.sync

    def counted() -> None:
        synced.append(len(ran))
        sync()

    monkeypatch.setattr(store._database, "sync", counted)
    async with Session("job", store=store, durability="disk"):
        before = len(synced)
        await add(1)
        assert synced[before:] == [0, 1]
