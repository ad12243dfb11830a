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
from typing import Any

import pytest
from postgres import Network, new_store
from rollcage import Session, UnknownOutcome, open_store, tool
from rollcage.store import check_attested, postgres_lines, postgres_runs
from rollcage.store.postgres import PostgresStore
from rollcage.trace import check_events

INTERRUPTS = max(int(os.environ.get("ROLLCAGE_FAULTS", "0")), 12)

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
def network(url: str) -> Iterator[Network]:
    network = Network(url)
    yield network
    network.close()


@pytest.fixture
def adding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that have added lines, one a statement."""
    threads: list[int] = []
    add_lines = postgres_lines.add_lines

    def noted(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return add_lines(*given)

    monkeypatch.setattr(postgres_runs, "add_lines", noted)
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
        given = "'{1}', '{9}', '{x}', '{1}', '{1}'"
        plan = store._shared.committer.do(
            lambda db: db.execute(f"EXPLAIN EXECUTE add_lines ({given})").fetchall()
        )
    assert "lines_pkey" in str(plan)
    assert "Seq Scan" not in str(plan)


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


def test_an_interrupt_while_lines_are_added_loses_and_doubles_nothing(
    store: PostgresStore, alarm: Callable[[float], None]
) -> None:
    chance = random.Random(12)  # noqa: S311 - no secret
    for round_ in range(INTERRUPTS):
        first = 1000 * round_
        with contextlib.suppress(KeyboardInterrupt), Session(f"job-{round_}", store=store):
            alarm(chance.uniform(0.0005, 0.05))
            for number in range(first, first + 500):
                add(number)
        alarm(0)
        done = sum(number >= first for number in ran)
        with contextlib.suppress(UnknownOutcome), Session(f"job-{round_}", store=store):
            for number in range(first, first + min(done + 3, 500)):
                add(number)
            assert sum(number >= first for number in ran) >= done + 3 or done > 497
    checked(store)
