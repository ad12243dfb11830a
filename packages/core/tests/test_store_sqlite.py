"""What a store in a SQLite file does where the file is not as it should be."""

import asyncio
import contextlib
import gc
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from rollcage import ControlLost, StoreError, StoreReadOnly, TraceCorrupt, TraceUnwritable, tool
from rollcage.session.session import Session
from rollcage.store import StopOrder, check_attested
from rollcage.store.sqlite import SqliteStore
from rollcage.store.sqlite_writer import SqliteWriter
from rollcage.store.url import open_store
from rollcage.trace import check_events


@tool(effect="write", name="sqlite.note")
def note(text: str) -> str:
    return text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> SqliteStore:
    return SqliteStore(path)


@pytest.fixture
def db(path: Path, store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection, to a store with one finished run."""
    with Session("job", store=store):
        note("one")
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


def test_its_files_are_for_their_owner_alone(path: Path, store: SqliteStore) -> None:
    umask = os.umask(0)
    try:
        with Session("job", store=store):
            note("one")
            names = {each.name for each in path.parent.iterdir()}
            assert names == {"runs.db", "runs.db-wal", "runs.db-shm", "runs.db-runs"}
            modes = {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
            assert modes == {0o600}
    finally:
        os.umask(umask)
    path.chmod(0o644)
    with pytest.raises(StoreError, match="chmod 600"):
        SqliteStore(path).secret_key()


def test_a_file_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE mine (a)")
    before = path.read_bytes()
    with (
        pytest.raises(StoreError, match="is not a Rollcage store"),
        Session("a", store=url(path)),
    ):
        pytest.fail("it began")
    assert path.read_bytes() == before
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="SQLITE_NOTADB"):
        SqliteStore(path).runs()


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def test_a_newer_schema_is_refused(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA user_version = 4")
    with pytest.raises(StoreError, match="has the schema 4, and this Rollcage knows 3"):
        SqliteStore(path).runs()


@pytest.mark.parametrize("writable", [True, False])
def test_a_store_of_the_first_schema_is_brought_up_with_its_orders(
    db: sqlite3.Connection, path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    store = SqliteStore(path)
    run = store.runs()[0].run
    db.execute("DROP INDEX runs_by_status")
    db.execute("DROP TABLE orders")
    db.execute(
        "CREATE TABLE orders (place INTEGER PRIMARY KEY, run TEXT NOT NULL, said_by TEXT NOT NULL,"
        "\n  reason TEXT NOT NULL, time INTEGER NOT NULL) STRICT"
    )
    db.execute("INSERT INTO orders VALUES (1, ?, 'ann', 'enough', 7)", (run,))
    db.execute("PRAGMA user_version = 1")
    db.commit()
    older = SqliteStore(path)
    if not writable:  # it is read as it is
        monkeypatch.setattr(os, "access", lambda *_: False)
    assert older.stop_order(run) == StopOrder(run, "ann", "enough", 7, "stop")
    if writable:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)
        assert older.lift(run, "stop")
        older.stop(StopOrder(run, "bob", "", 8, "pause"))
        order = SqliteStore(path).stop_order(run)
        assert order is not None
        assert order.is_pause


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TRIGGER t AFTER INSERT ON lines BEGIN DELETE FROM lines; END",
        "CREATE VIEW v AS SELECT 1",
        "DROP TABLE orders",
    ],
)
def test_tables_that_somebody_changed_are_refused(
    db: sqlite3.Connection, path: Path, change: str
) -> None:
    db.execute(change)
    with pytest.raises(StoreError, match="somebody changed them"):
        SqliteStore(path).runs()


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM lines WHERE number = (SELECT max(number) FROM lines)",
        "INSERT INTO lines SELECT place, max(number) + 1, line FROM lines",
        "UPDATE lines SET line = CAST(replace(line, 'one', 'two') AS BLOB)",
    ],
)
def test_a_finished_trace_that_was_changed_is_found(
    db: sqlite3.Connection, store: SqliteStore, change: str
) -> None:
    db.execute(change)
    db.commit()
    run = store.runs()[0].run
    trace = store.read(run)
    with pytest.raises(TraceCorrupt):
        check_attested(trace)
        check_events(trace.data, trace.where)


@pytest.mark.parametrize("change", ["DELETE FROM lines", "INSERT INTO lines VALUES (2, 9, x'00')"])
def test_a_trace_that_is_changed_while_it_is_live_halts_its_run(
    db: sqlite3.Connection, store: SqliteStore, change: str
) -> None:
    ran: list[str] = []

    @tool(effect="write", name="sqlite.see")
    def see(text: str) -> None:
        ran.append(text)

    with (
        pytest.raises(TraceUnwritable, match="else changed it"),
        Session("b", store=store),
    ):
        see("one")
        db.execute(change)
        db.commit()
        see("two")
    assert ran == ["one"]


def test_a_file_that_is_moved_while_a_run_is_live_halts_it(path: Path, store: SqliteStore) -> None:
    ran: list[str] = []

    @tool(effect="write", name="sqlite.move")
    def move(text: str) -> None:
        ran.append(text)

    with pytest.raises((ControlLost, TraceUnwritable)), Session("b", store=store):
        move("one")
        path.rename(path.with_name("moved.db"))
        move("two")
    assert ran == ["one"]


def test_whoever_writes_is_waited_for(db: sqlite3.Connection, store: SqliteStore) -> None:
    db.isolation_level = None
    db.execute("BEGIN IMMEDIATE")
    result: list[Any] = []

    def work() -> None:
        with Session("b", store=store):
            result.append(note("two"))

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(0.3)
    assert result == []
    db.execute("COMMIT")
    worker.join(30)
    assert result == ["two"]


def test_connections_are_closed_with_the_store_that_opened_them(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "own.db")
    with Session("job", store=store):
        note("one")
    (connection, *_) = store._database._idle
    assert connection.execute("SELECT 1").fetchone() == (1,)
    del store
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")


@pytest.mark.skipif(not shutil.which("setpriv"), reason="a test that runs as root needs setpriv")
def test_a_burst_of_sessions_leaves_few_connections_open(store: SqliteStore) -> None:
    """A service that once had many sessions at once does not keep all of that for ever."""
    most = 0

    async def job(number: int, together: asyncio.Barrier) -> None:
        nonlocal most
        async with Session(f"job {number}", store=store):
            note(str(number))
            await together.wait()
            most = max(most, open_files(store))
            await together.wait()

    async def burst() -> None:
        together = asyncio.Barrier(50)
        await asyncio.gather(*(job(number, together) for number in range(50)))

    asyncio.run(burst())
    database = store._database
    assert most > 50
    assert len(database._idle) == len(database._opened) == 32
    assert open_files(store) == 32
    with Session("later", store=store):
        note("later")
    assert {info.status for info in store.runs()} == {"ok"}


def open_files(store: SqliteStore) -> int:
    """How often this process has the log of the database open.

    SQLite itself keeps the database's own descriptors, to lend them to the next connections.
    """
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(each.readlink()) == f"{store._database.path}-wal"
    return found


def test_a_store_that_can_not_be_written_replays_offline(
    db: sqlite3.Connection, path: Path, store: SqliteStore, tmp_path: Path
) -> None:
    db.close()
    for connection in store._database._idle:
        connection.close()
    store._database._idle.clear()
    program = f"""
import os, pathlib, sys
from rollcage import StoreReadOnly, tool
from rollcage.session.session import Session
@tool(effect="write", name="sqlite.note")
def note(text: str) -> str:
    raise AssertionError("it ran")
try:
    with Session("job", store="sqlite:///{path}"):
        note("one")
except StoreReadOnly as error:
    print("refused")
with Session("job", store="sqlite:///{path}", replay="offline") as session:
    print(note("one"), session.stats.hits)
"""
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    for folder in tmp_path.parents:
        if folder.name.startswith(("pytest-", "popen-")):  # that of a worker of pytest, too
            folder.chmod(0o755)
    command = [sys.executable, "-c", program]
    if os.geteuid() == 0:
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        if subprocess.run([*nobody, sys.executable, "-c", ""], check=False).returncode:
            pytest.skip("this Python is for root alone")
        command = [*nobody, *command]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, cwd="/"
    )
    tmp_path.chmod(0o755)
    assert found.stdout.split("\n")[:2] == ["refused", "one 1"], found.stderr


def test_a_full_disk_is_told_and_nothing_is_half_written(
    db: sqlite3.Connection, store: SqliteStore
) -> None:
    with pytest.raises(TraceUnwritable, match="SQLITE_FULL"), Session("b", store=store) as session:
        note("two")
        connection = cast("SqliteWriter", session._entered().driver.writer)._connection
        assert connection is not None
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        for _ in range(50):
            note("x" * 3000)
    events = check_events(store.read(session.run_id).data, "")
    assert [each["step"] for each in events if each["event"] == "step.started"]


def test_what_is_refused_has_its_own_type(path: Path, db: sqlite3.Connection) -> None:
    assert issubclass(StoreReadOnly, StoreError)
    with pytest.raises(StoreError, match="is not a Rollcage store"):
        db.execute("PRAGMA application_id = 7")
        open_store(url(path)).runs()
