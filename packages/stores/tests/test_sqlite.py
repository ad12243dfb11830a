"""The store in a SQLite file: what every store promises, and what a database makes of it."""

import contextlib
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from harm import in_sqlite
from rollcage.errors import (
    Fenced,
    RunNotFound,
    StoreError,
    StoreInvalid,
    StoreReadOnly,
    TraceUnwritable,
)
from rollcage.trace.store import open_store
from rollcage_conformance import StoreSuite
from rollcage_conformance.stores.base import Other, Tamper, begun, numbers
from rollcage_stores import sqlite
from rollcage_stores.sqlite import Sqlite


class TestSqlite(StoreSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/store.db"

    @pytest.fixture
    def tamper(self, tmp_path: Path) -> Tamper:
        return in_sqlite(tmp_path / "store.db")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "store.db"


@pytest.fixture
def store(path: Path) -> Sqlite:
    return Sqlite(f"sqlite:///{path}")


def change(path: Path, text: str) -> None:
    """What another program does."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(text)
    db.close()


def test_looking_makes_nothing(path: Path, store: Sqlite) -> None:
    assert (store.get("names", "a"), store.keys("names"), store.bell()) == (None, [], 0)
    with pytest.raises(RunNotFound):
        store.read("r1")
    assert not path.parent.exists()


def test_files_are_for_their_owner_alone(path: Path, store: Sqlite) -> None:
    before = os.umask(0)
    try:
        chain = begun(store)
        begun(store, take=True)
        assert {each.name for each in path.parent.iterdir()} >= {"store.db", "store.db-wal"}
        for each in [path.parent, *path.parent.rglob("*")]:
            mode = stat.S_IMODE(each.stat().st_mode)
            assert mode == (0o700 if each.is_dir() else 0o600), each
        chain.close()
    finally:
        os.umask(before)


def test_a_run_that_is_closed_leaves_no_lock(path: Path, store: Sqlite) -> None:
    begun(store, "a/b").close()
    begun(store, "x" * 200).close()
    assert list(Path(f"{path}-live").iterdir()) == []


def test_a_collected_lock_closes_no_other_file(path: Path, store: Sqlite) -> None:
    """What is collected together is finalized in any order: the log may be closed afterwards."""
    log: Any = begun(store, "r1")
    log.log._liveness.__del__()
    assert not store.is_live("r1")
    others = [path.open("rb") for _ in range(8)]  # one of them gets the lock's number
    with contextlib.suppress(TraceUnwritable):
        log.close()
    for each in others:
        assert each.read(6) == b"SQLite"
        each.close()


def test_a_collected_log_takes_no_further_line(path: Path, store: Sqlite) -> None:
    log: Any = begun(store, "r1")
    log.log.__del__()
    with pytest.raises(TraceUnwritable, match="is closed"):
        log.append({"event": "note", "n": 1})
    assert numbers(store) == []
    assert list(path.parent.glob("*-live/*")) == []


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///runs%20of%3Fme.db")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    begun(store).close()
    assert (tmp_path / "runs of?me.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://", "sqlite:///", "sqlite:////", "sqlite://host/a.db", "sqlite:///a#b",
        "sqlite:///a.db?mode=ro", "sqlite:///a%00b", "sqlite:///a/",
    ],
)  # fmt: skip
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(StoreInvalid):
        open_store(url)


def test_a_store_made_by_another_meanwhile(
    path: Path, store: Sqlite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two looks at a file that was empty at the first one."""
    connect = sqlite3.connect

    def connected(*given: Any, **how: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*given, **how)
        seen: list[str] = []

        def told(statement: str) -> None:
            seen.append(statement)
            if len(seen) == 2:
                monkeypatch.setattr(sqlite3, "connect", connect)
                Sqlite(f"sqlite:///{path}").swap("names", "job", None, b"run")

        db.set_trace_callback(told)
        return db

    monkeypatch.setattr(sqlite3, "connect", connected)
    assert store.swap("names", "job", None, b"another") is False
    assert store.get("names", "job") == b"run"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CREATE TABLE mine (a)", "another program"),
        ("PRAGMA application_id = 7", "another program"),
    ],
)
def test_a_database_of_another_program_is_refused(
    path: Path, store: Sqlite, text: str, said: str
) -> None:
    path.parent.mkdir()
    change(path, text)
    before = path.read_bytes()
    with pytest.raises(StoreInvalid, match=said):
        store.open("r1")
    with pytest.raises(StoreInvalid, match=said):
        store.get("names", "a")
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(path: Path, store: Sqlite) -> None:
    path.parent.mkdir()
    path.write_bytes(b"my diary\n" * 1000)
    with pytest.raises(StoreInvalid, match="not a SQLite file"):
        store.open("r1")
    assert path.read_bytes() == b"my diary\n" * 1000


def test_a_newer_version_is_refused(path: Path, store: Sqlite) -> None:
    begun(store).close()
    change(path, "UPDATE log_version SET version = 2")
    with pytest.raises(StoreError, match="update it"):
        Sqlite(store.url).open("r2")


def test_a_folder_that_may_not_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="can't be made"):
        Sqlite(f"sqlite:///{tmp_path}/file/a.db").open("r1")


def test_a_full_disk_halts_and_the_run_goes_on_once_there_is_room(
    path: Path, store: Sqlite
) -> None:
    chain = begun(store)
    chain.append({"n": 1})
    with store.using() as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")
        for _ in range(2):
            with pytest.raises(TraceUnwritable, match="SQLITE_FULL"):
                chain.append({"n": 2, "text": "x" * 100_000})
        db.execute(f"PRAGMA max_page_count = {pages + 1000}")
    chain.append({"n": 3})
    chain.close()
    assert numbers(store) == [1, 3]


def test_a_database_that_is_locked_too_long_says_so(
    path: Path, store: Sqlite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_WAIT", 0.0)
    chain = begun(store)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TraceUnwritable, match="SQLITE_BUSY"):
        chain.append({"n": 1})
    with pytest.raises(StoreError, match="SQLITE_BUSY"):
        store.swap("names", "a", None, b"a")
    with pytest.raises(StoreError, match="SQLITE_BUSY"):
        store.swap("orders", "a", None, b"a")
    other.execute("ROLLBACK")
    other.close()
    chain.append({"n": 2})
    chain.close()
    assert numbers(store) == [2]


def test_a_database_that_may_only_be_read(path: Path, store: Sqlite) -> None:
    chain = begun(store)
    with store.using() as db:
        db.execute("PRAGMA query_only = 1")
    with pytest.raises(TraceUnwritable, match="readonly"):
        chain.append({"n": 1})
    with pytest.raises(StoreReadOnly, match="readonly"):
        store.swap("names", "a", None, b"a")


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_who_removes_a_live_database_ends_its_sessions(path: Path, store: Sqlite, how: str) -> None:
    chain = begun(store)
    chain.wait()
    path.rename(path.with_name("gone"))
    if how == "replaced":
        path.write_bytes(b"")
    chain.append({"n": 1})
    with pytest.raises(Fenced, match="removed, or another file is there"):
        chain.wait()


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_while_a_line_is_inserted(
    store: Sqlite, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    chain = begun(store)
    using = store.using

    class Interrupted:
        def __init__(self, db: sqlite3.Connection) -> None:
            self.db = db

        def execute(self, text: str, given: tuple[object, ...]) -> object:
            if when == "after":
                self.db.execute(text, given)
            raise KeyboardInterrupt

    class Using:
        def __enter__(self) -> Interrupted:
            monkeypatch.setattr(store, "using", using)
            self.real = using()
            return Interrupted(self.real.__enter__())

        def __exit__(self, *error: object) -> None:
            self.real.__exit__(None, None, None)

    monkeypatch.setattr(store, "using", Using)
    with pytest.raises(KeyboardInterrupt):
        chain.append({"n": 1})
    chain.append({"n": 2})
    chain.close()
    assert numbers(store) == ([2] if when == "before" else [1, 2])


def test_many_processes_make_the_file_at_once(store: Sqlite) -> None:
    workers = [Other(store.url) for _ in range(4)]
    try:
        for n, each in enumerate(workers):
            each.ask("open", run=f"r{n}")
        assert [each.answer() for each in workers] == [0, 0, 0, 0]
    finally:
        for each in workers:
            each.end()


def test_durable_means_that_each_commit_is_on_the_disk(tmp_path: Path) -> None:
    for durability, level in (("os", 1), ("disk", 2)):
        store = Sqlite(f"sqlite:///{tmp_path}/{durability}.db?durability={durability}")
        begun(store).close()
        with store.using() as db:
            assert db.execute("PRAGMA synchronous").fetchone()[0] == level
            assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_a_write_costs_the_same_beside_a_thousand_runs(path: Path, store: Sqlite) -> None:
    """Each statement finds its rows by a key: it looks through no other run."""
    begun(store).close()
    with store.using() as db:
        for asked, given in (
            (sqlite._APPEND, ("r1", 1, b"", b"")),
            ("SELECT line FROM log_lines WHERE run = ?1 AND seq > ?2 ORDER BY seq", ("r1", 0)),
            ("SELECT value FROM log_values WHERE kind = ? AND key = ?", ("names", "a")),
            (
                "SELECT key FROM log_values WHERE kind = ? AND key > ? ORDER BY key LIMIT 9",
                ("", ""),
            ),
        ):
            plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {asked}", given))
            assert "SCAN log" not in plan, plan
            assert "TEMP B-TREE" not in plan, plan
