"""What a store in PostgreSQL does where its network, its server or its schema fails it."""

import asyncio
import contextlib
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from postgres import Network, Pooler, new_store, server
from rollcage import (
    RunStopped,
    SessionError,
    StoreError,
    TraceCorrupt,
    TraceUnwritable,
    UnknownOutcome,
    tool,
)
from rollcage.errors import RunInUse, StoreReadOnly
from rollcage.session.session import Session
from rollcage.store import StopOrder, check_attested
from rollcage.store.postgres import PostgresStore
from rollcage.store.url import open_store
from rollcage.trace import check_events
from rollcage.trace.constructors import run_abandoned

FAULTS = int(os.environ.get("ROLLCAGE_FAULTS", "4"))  # networks that break; `nox -s faults`: 200
LOST_LOCKS = max(FAULTS // 4, 2)

ran: list[int] = []


@tool(effect="write", name="postgres.add")
def add(number: int) -> int:
    ran.append(number)
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
def db(url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Somebody else's connection to the store's tables."""
    schema = url.partition("schema=")[2].partition("&")[0]
    with psycopg.connect(server(), autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        yield connection


def until(found: Callable[[], Any], seconds: float = 30) -> Any:
    """What is found, once it is."""
    deadline = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    return answer


def taken_over(url: str, *numbers: int) -> None:
    """Do a job in another worker, as soon as it gets the run."""

    def once() -> bool:
        with contextlib.suppress(RunInUse), Session("job", store=url):
            for number in numbers:
                add(number)
            return True
        return False

    until(once)


def arrived(store: PostgresStore) -> None:
    """Wait until the outcome of the last write is in the store: its call waits for the way only."""

    def last() -> str:
        (trace,) = [store.read(info.run) for info in store.runs()]
        return str(check_events(trace.data, trace.where)[-1]["event"])

    until(lambda: last() == "step.finished")


def checked(store: PostgresStore) -> None:
    """Each trace is whole, and no write happened twice."""
    assert len(ran) == len(set(ran))
    for info in store.runs():
        trace = store.read(info.run)
        check_events(trace.data, trace.where)
        check_attested(trace)


# --- the network ---------------------------------------------------------------------------------


@pytest.mark.parametrize("round_", range(max(FAULTS // 20, 1)))
def test_a_frozen_network_frees_the_run_and_fences_the_old_worker(
    url: str, store: PostgresStore, network: Network, round_: int
) -> None:
    with pytest.raises(TraceUnwritable, match="taken it over"), Session("job", store=network.url):
        add(1)
        arrived(store)
        network.freeze()
        began = time.monotonic()
        taken_over(url, 1, 2)
        assert time.monotonic() - began < 15
        network.thaw()
        add(3)
    assert ran == [1, 2]
    checked(store)


def test_networks_that_break_lose_and_double_nothing(
    store: PostgresStore, network: Network
) -> None:
    chance = random.Random(FAULTS)  # noqa: S311 - a test
    done = 0
    with Session("job", store=network.url) as session:
        for _ in range(FAULTS):
            breaks = chance.choice([network.cut, network.lose_answer, network.stutter])
            later = threading.Timer(chance.random() / 100, breaks)
            later.start()
            for _call in range(5):
                add(done)
                done += 1
            later.join()
    assert ran == list(range(done))
    trace = store.read(session.run_id)
    events = check_events(trace.data, trace.where)
    assert [e["args"]["number"] for e in events if e["event"] == "step.started"] == ran
    assert sum(e["event"] == "step.finished" for e in events) == done
    checked(store)


@pytest.mark.parametrize("round_", range(LOST_LOCKS))
def test_whoever_lost_its_lock_is_refused_before_the_body(
    url: str, store: PostgresStore, network: Network, round_: int
) -> None:
    """The connection lives, and the lock is gone: only the fence keeps the old worker out."""
    with pytest.raises(TraceUnwritable, match="taken it over"), Session("job", store=network.url):
        add(1)
        shared = PostgresStore(network.url)._shared
        shared.committer.do(lambda db: db.execute("SELECT pg_advisory_unlock_all()") and None)
        taken_over(url, 1, 2)
        add(3)
    assert ran == [1, 2]
    checked(store)


def test_a_session_that_the_server_ends_goes_on_where_nobody_took_it_over(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    with Session("job", store=store):
        for number in range(LOST_LOCKS):
            db.execute(ends, (store._shared.committer._name,))
            add(number)
        assert len(ran) == LOST_LOCKS
        with pytest.raises(RunInUse):
            open_store(store.url).lock(store.runs()[-1].run)
    checked(store)


def test_a_database_that_is_down_is_waited_for(
    store: PostgresStore, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    with Session("job", store=network.url):
        add(1)
        network.take_down()
        threading.Timer(0.3, setattr, (network, "is_down", False)).start()
        add(2)
    assert ran == [1, 2]
    assert [each.levelname for each in caplog.records].count("WARNING") == 1
    checked(store)


def test_a_database_that_stays_down_halts_the_run(store: PostgresStore, network: Network) -> None:
    @tool(effect="write", name="postgres.cut_off")
    def cut_off(number: int) -> int:
        ran.append(number)
        network.take_down()
        return number

    url = network.url.replace("store_timeout=20", "store_timeout=0.2")
    with pytest.raises(TraceUnwritable, match="can't be used"), Session("job", store=url):
        add(1)
        cut_off(2)
    with pytest.raises(UnknownOutcome), Session("job", store=store):
        add(1)
        cut_off(2)
    assert ran == [1, 2]


def test_a_failover_that_lost_lines_halts_the_run_and_says_which(
    store: PostgresStore, network: Network, db: psycopg.Connection[Any]
) -> None:
    with (
        pytest.raises(TraceUnwritable, match=r"(lines 4 to 5 are|line 4 is) gone"),
        Session("job", store=network.url),
    ):
        add(1)
        add(2)
        db.execute("DELETE FROM lines WHERE number > 3")
        network.cut()
        add(3)
    assert ran == [1, 2]
    with pytest.raises(TraceCorrupt, match="another end"), Session("job", store=store):
        pytest.fail("it goes on over a gap")


# --- the server ----------------------------------------------------------------------------------


def test_a_pooler_in_transaction_mode_is_refused(url: str) -> None:
    pooler = Pooler(url)
    try:
        with (
            pytest.raises(StoreError, match="pool_mode = session"),
            Session("job", store=pooler.url),
        ):
            pytest.fail("its locks would be nobody's")
    finally:
        pooler.close()


def test_a_newer_schema_is_refused_and_an_older_one_is_brought_up(
    url: str, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollcage.store import postgres_database

    def reopened() -> PostgresStore:
        return PostgresStore(f"{url}&application_name={os.urandom(4).hex()}")  # nothing is shared

    with Session("job", store=url):
        add(1)
    migrations = (*postgres_database._MIGRATIONS, "CREATE TABLE more (a integer)")
    with monkeypatch.context() as newer:
        newer.setattr(postgres_database, "_MIGRATIONS", migrations)
        with Session("job", store=reopened()):
            add(2)
        assert db.execute("SELECT count(*) FROM more").fetchone() == (0,)
    with pytest.raises(StoreError, match="has the schema 4, and this Rollcage knows 3"):
        reopened().runs()


def test_a_store_of_the_first_schema_is_brought_up_with_its_orders(
    url: str, db: psycopg.Connection[Any]
) -> None:
    with Session("job", store=url) as session:
        add(1)
    run = session.run_id
    db.execute("ALTER TABLE orders DROP COLUMN kind")
    db.execute("DROP INDEX runs_by_status")
    db.execute("UPDATE kept SET value = '1' WHERE name = 'version'")
    db.execute("INSERT INTO orders SELECT place, run, 'ann', 'enough', 7 FROM runs")
    read_only = f"{url}&options=-c%20default_transaction_read_only%3Don"
    for address in (read_only, f"{url}&application_name=another"):
        store = PostgresStore(address)
        assert store.runs()[0].run == run
        assert store.stop_order(run) == StopOrder(run, "ann", "enough", 7, "stop")
    assert db.execute("SELECT value FROM kept WHERE name = 'version'").fetchone() == (b"3",)


def test_who_may_only_read_replays_offline(url: str, db: psycopg.Connection[Any]) -> None:
    with Session("job", store=url):
        add(1)
    read_only = f"{url}&options=-c%20default_transaction_read_only%3Don"
    with Session("job", store=read_only, replay="offline") as session:
        assert add(1) == 1
    assert session.stats.hits == 1
    with pytest.raises(StoreReadOnly), Session("job", store=read_only):
        pytest.fail("it can't be recorded")


def test_a_password_is_told_to_nobody(url: str) -> None:
    secret = "p%40ss:w0rd"
    user, at, rest = url.partition("@")
    with_password = f"{user.rstrip(':')}:{secret}{at}{rest}"
    store = open_store(with_password)
    with Session("job", store=store) as session:
        add(1)
    shown = [repr(store), store.url, store.read(session.run_id).where, repr(store.__dict__)]
    shown.append(store.read(session.run_id).data.decode())
    for wrong in ("&schema=A", "&store_timeout=x", "&sslmode=never", "&host=127.0.0.1&port=1"):
        with pytest.raises(StoreError) as error:
            open_store(f"{with_password}&store_timeout=0.1{wrong}").runs()
        shown += [str(error.value), str(error.value.__cause__), str(error.value.__context__)]
    for text in ("p%40ss", "p@ss", "w0rd"):
        assert not [each for each in shown if text in each]


def test_an_order_to_stop_is_seen_by_a_call_that_writes_nothing(
    url: str, store: PostgresStore
) -> None:
    @tool(effect="read", name="postgres.look")
    def look(number: int) -> int:
        return number

    with pytest.raises(RunStopped), Session("job", store=store) as session:
        look(1)
        elsewhere = PostgresStore(f"{url}&application_name=other")
        elsewhere.stop(StopOrder(session.run_id, "ann", "enough", 1))
        calls = session._calls
        assert calls is not None
        until(calls.driver.writer.stop_order)
        look(2)
    with pytest.raises(RunStopped), Session("job", store=store):
        look(1)


async def test_async_sessions_commit_together(store: PostgresStore) -> None:

    @tool(effect="write", name="postgres.aadd")
    async def aadd(number: int) -> int:
        ran.append(number)
        return number

    async def job(first: int) -> None:
        async with Session(f"job-{first}", store=store):
            for number in range(first, first + 10):
                await aadd(number)

    await asyncio.gather(*(job(10 * each) for each in range(8)))
    assert sorted(ran) == list(range(80))
    checked(store)


async def test_a_write_that_waits_for_the_store_when_its_session_is_left_did_not_happen(
    store: PostgresStore, network: Network
) -> None:
    @tool(effect="write", name="postgres.waits")
    async def waits(number: int) -> int:
        ran.append(number)
        return number

    async with Session("job", store=network.url) as session:
        await waits(1)
        network.stutter()
        late = asyncio.ensure_future(waits(2))
        await asyncio.sleep(0)
    with pytest.raises(SessionError, match="left before this call began"):
        await late
    assert ran == [1]
    trace = store.read(session.run_id)
    ends = [e["outcome"]["status"] for e in check_events(trace.data, "") if "outcome" in e]
    assert ends == ["ok", "not_started"]
    checked(store)


def test_a_run_that_is_to_be_on_the_disk_waits_for_that(url: str, network: Network) -> None:
    lazy = f"{network.url}&options=-c%20synchronous_commit%3Doff"
    store = PostgresStore(lazy)
    committer = store._shared.committer

    def setting() -> str:
        return committer.do(lambda db: str(db.execute("SHOW synchronous_commit").fetchone()[0]))

    with Session("job", store=store):
        assert setting() == "off"
    with Session("other", store=store, durability="disk"):
        assert setting() == "on"
        network.cut()
        add(1)
        assert setting() == "on"


def test_a_writer_outlives_the_store_that_gave_it(url: str) -> None:
    with Session("job", store=url) as session:
        add(1)
    writer = open_store(url).reopen(session.run_id)
    gc.collect()
    writer.append(run_abandoned(time=0, by="ann", reason="enough"))
    writer.sync()
    writer.attest("abandoned")
    writer.close()
    assert open_store(url).runs()[0].status == "abandoned"


def test_what_nobody_uses_any_more_is_closed(url: str) -> None:
    def threads() -> int:
        return sum("rollcage commits" in each.name for each in threading.enumerate())

    before = threads()
    with Session("job", store=url):
        add(1)
        assert threads() == before + 1
    gc.collect()
    until(lambda: threads() <= before)


class Paused:
    """A connection that waits for a moment after its first statement, while others go on."""

    def __init__(self, db: Any, first: threading.Event) -> None:
        self._db, self._first = db, first

    def execute(self, *statement: Any) -> Any:
        found = self._db.execute(*statement)
        if not self._first.is_set():
            self._first.set()
            time.sleep(0.5)  # for what must wait for this: there is nothing else to wait for
        return found


def test_a_stop_that_comes_in_the_middle_of_a_lift_holds(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session("job", store=store) as session:
        add(1)
    pause = StopOrder(session.run_id, "ann", "a look", 1, "pause")
    stop = StopOrder(session.run_id, "bob", "enough", 2)
    store.stop(pause)
    first, lift = threading.Event(), PostgresStore._lift

    def slowly(db: Any, where: str, values: tuple[Any, ...]) -> bool:
        return lift(Paused(db, first), where, values)

    monkeypatch.setattr(PostgresStore, "_lift", staticmethod(slowly))
    lifting = threading.Thread(target=store.lift, args=(session.run_id, "pause"))
    lifting.start()
    assert first.wait(30)
    store.stop(stop)
    lifting.join(30)
    assert store.stop_order(session.run_id) == stop
