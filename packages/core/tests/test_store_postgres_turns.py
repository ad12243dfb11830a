"""Who commits to PostgreSQL, and when: threads take turns, tasks leave it to another thread."""

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psycopg
import pytest
from postgres import Network, new_store, server
from rollcage import UnknownOutcome, tool
from rollcage.errors import RunInUse, TraceUnwritable
from rollcage.session.session import Session
from rollcage.store import check_attested, postgres_lines, postgres_runs
from rollcage.store.postgres import PostgresStore, Shared
from rollcage.store.postgres_taking import take
from rollcage.store.url import open_store
from rollcage.trace import check_events

INTERRUPTS = max(int(os.environ.get("ROLLCAGE_FAULTS", "0")), 12)
CALLS: Final = 2000  # so many that no interrupt comes after the last of them

ran: list[int] = []


@tool(effect="write", name="turns.add")
def add(number: int) -> int:
    ran.append(number)
    return number


@tool(effect="write", name="turns.aadd")
async def aadd(number: int) -> int:
    ran.append(number)
    return number


@tool(effect="read", name="turns.look")
def look(number: int) -> int:
    return number


@pytest.fixture
def url() -> Iterator[str]:
    ran.clear()
    with new_store() as url:
        yield f"{url}&silence_timeout=1&store_timeout=20"


@pytest.fixture
def store(url: str) -> PostgresStore:
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    return store


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Somebody else's connection to the store's tables."""
    schema = url.partition("schema=")[2].partition("&")[0]
    with psycopg.connect(server(), autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        yield connection


@pytest.fixture
def network(url: str) -> Iterator[Network]:
    network = Network(url)
    yield network
    network.close()


@pytest.fixture
def adding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that have added lines, one a statement."""
    threads: list[int] = []
    send_lines = postgres_lines.send_lines

    def noted(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return send_lines(*given)

    monkeypatch.setattr(postgres_runs, "send_lines", noted)
    return threads


def checked(store: PostgresStore) -> None:
    """Each trace is whole, and no write happened twice."""
    assert len(ran) == len(set(ran))
    for info in store.runs():
        trace = store.read(info.run)
        check_events(trace.data, trace.where)
        check_attested(trace)


def at_once(*jobs: Callable[[], object]) -> None:
    """Have each done in a thread of its own; the first error is raised."""
    errors: list[BaseException] = []

    def noting(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - it is raised again
            errors.append(error)

    threads = [threading.Thread(target=noting, args=(job,)) for job in jobs]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
        assert not each.is_alive()
    if errors:
        raise errors[0]


def test_a_call_adds_its_lines_in_its_own_thread(store: PostgresStore, adding: list[int]) -> None:
    with Session("job", store=store):
        adding.clear()
        for number in range(20):
            add(number)
        assert adding.count(threading.get_ident()) >= 30  # 40, but for what is added beside


def test_a_line_that_nobody_waits_for_is_soon_in_the_store(store: PostgresStore) -> None:
    with Session("job", store=store) as session:
        look(1)
        deadline = time.monotonic() + 20
        while b"step.finished" not in store.read(session.run_id).data:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_line_costs_the_server_the_same_however_many_there_are(store: PostgresStore) -> None:
    with Session("job", store=store):
        add(1)
        given = "'{1}', '{9}', '{x}', '{1}', '{1}', '{y}'"
        plan = store._shared.committer.do(
            lambda db: db.execute(f"EXPLAIN EXECUTE add_lines ({given})").fetchall()
        )
    assert "lines_pkey" in str(plan)
    assert "Seq Scan" not in str(plan)


# --- outcomes that are on their way ---------------------------------------------------------------


def test_a_write_returns_when_its_outcome_is_on_its_way(
    url: str, store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    """Nothing can be added before the call has returned, and no silence is as long as that."""

    @tool(effect="write", name="turns.locks")
    def locks(number: int) -> int:
        db.execute("BEGIN")
        db.execute("LOCK TABLE lines IN SHARE MODE")
        ran.append(number)
        return number

    with Session("job", store=url) as session:
        for number in range(5):
            assert locks(number) == number
            db.execute("ROLLBACK")
    events = [e["event"] for e in check_events(store.read(session.run_id).data, "here")]
    assert events.count("step.finished") == 5
    checked(store)


def test_a_killed_worker_loses_no_outcome_that_was_on_its_way(
    url: str, store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    """It is killed as soon as its call has returned, while the server can't add anything yet."""

    @tool(effect="write", name="turns.add")
    def locked(number: int) -> int:
        os.write(there, b"!")
        os.read(goes_on, 1)
        return number

    come, there = os.pipe()
    goes_on, go = os.pipe()
    child = os.fork()
    if not child:
        with Session("job", store=url):
            locked(1)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.read(come, 1) == b"!"
    with db.transaction():
        db.execute("LOCK TABLE lines IN SHARE MODE")
        os.write(go, b"!")
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    for each in (come, there, goes_on, go):
        os.close(each)
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(RunInUse), Session("job", store=url) as session:
            assert add(1) == 1
            break
        assert time.monotonic() < deadline
    assert session.stats.hits == 1
    assert ran == []


def test_an_outcome_that_meets_a_fence_takes_the_next_intent_with_it(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intent is sent before it is known that the outcome was refused, and is refused, too."""
    committer = store._shared.committer

    @tool(effect="write", name="turns.fenced")
    def fenced(number: int) -> int:
        ran.append(number)
        committer.do(lambda db: db.execute("SELECT pg_advisory_unlock_all()") and None)
        other = Shared(store._shared.database.address)
        other.committer.do(lambda db: take(other.committer.runs, db, run, place))
        return number

    session = Session("job", store=url)
    with pytest.raises(TraceUnwritable, match="taken it over"), session:
        run = session.run_id
        (place,) = committer.runs.held
        monkeypatch.setattr(committer, "hear", lambda: None)
        assert fenced(1) == 1
        add(2)
    assert ran == [1]
    events = [e["event"] for e in check_events(store.read(session.run_id).data, "here")]
    assert events == ["run.started", "step.started"]


# --- many at once --------------------------------------------------------------------------------


def test_threads_and_tasks_commit_at_once(store: PostgresStore) -> None:
    def thread(first: int) -> None:
        with Session(f"job-{first}", store=store):
            for number in range(first, first + 15):
                add(number)
                look(number)

    async def task(first: int) -> None:
        async with Session(f"job-{first}", store=store):
            for number in range(first, first + 15):
                await aadd(number)

    async def tasks() -> None:
        await asyncio.gather(*(task(100 * each) for each in range(5, 9)))

    at_once(
        *(lambda first=100 * each: thread(first) for each in range(5)), lambda: asyncio.run(tasks())
    )
    assert len(ran) == 9 * 15
    checked(store)


def test_threads_whose_network_is_cut_go_on_together(
    store: PostgresStore, network: Network
) -> None:
    open_all = threading.Barrier(4)

    def thread(first: int) -> None:
        with Session(f"job-{first}", store=network.url):
            open_all.wait(30)
            for number in range(first, first + 30):
                add(number)
                if number == 7:
                    network.cut()
                if number == 217:
                    network.lose_answer()

    at_once(*(lambda first=100 * each: thread(first) for each in range(4)))
    assert len(ran) == 4 * 30
    checked(store)


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Presses Ctrl-C after so many seconds; never, after 0."""

    def pressed(number: int, frame: FrameType | None) -> None:
        at = frame
        while at is not None:
            if Path(at.f_code.co_filename).parent.name == "coverage":
                press(0.0002)  # a lock that measures lines would never be given back
                return
            at = at.f_back if at is frame else None
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, pressed)

    def press(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    yield press
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


# An interrupt may come when a call's coroutine exists and nothing of it has run yet.
@pytest.mark.filterwarnings("ignore:coroutine 'Driver._driven_through' was never awaited")
def test_an_interrupt_while_lines_are_added_loses_and_doubles_nothing(
    store: PostgresStore, alarm: Callable[[float], None]
) -> None:
    chance = random.Random(12)  # noqa: S311 - no secret
    for round_ in range(INTERRUPTS):
        first = CALLS * round_
        with contextlib.suppress(KeyboardInterrupt), Session(f"job-{round_}", store=store):
            alarm(chance.uniform(0.0005, 0.05))
            for number in range(first, first + CALLS):
                add(number)
        alarm(0)
        done = sum(number >= first for number in ran)
        with contextlib.suppress(UnknownOutcome), Session(f"job-{round_}", store=store):
            for number in range(first, first + min(done + 3, CALLS)):
                add(number)
            assert sum(number >= first for number in ran) >= done + 3 or done > CALLS - 3
    checked(store)
