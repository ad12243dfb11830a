"""What a user sees when a store fails: rows of the table in docs/stores.md, as they stand there."""

import contextlib
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from postgres import Network, new_store, server
from rollcage import StoreError, TraceUnwritable, UnknownOutcome, tool
from rollcage.session.session import Session
from rollcage.store import check_attested
from rollcage.store.sqlite import SqliteStore
from rollcage.store.url import open_store
from rollcage.trace import check_events

ROOT: Final = Path(__file__).parents[3]
ran: list[int] = []


@tool(effect="write", name="failures.add")
def add(number: int) -> int:
    ran.append(number)
    return number


@pytest.fixture
def url() -> Iterator[str]:
    ran.clear()
    with new_store() as url:
        yield f"{url}&store_timeout=20"


def test_an_answer_to_a_commit_that_is_lost_is_asked_for_again(url: str) -> None:
    network = Network(url)
    with Session("job", store=network.url) as session:
        for number in range(6):
            network.lose_answer()  # the line is there, and nobody was told so
            add(number)
    network.close()
    assert ran == list(range(6))
    trace = open_store(url).read(session.run_id)
    events = check_events(trace.data, trace.where)
    check_attested(trace)
    assert [each["step"] for each in events if each["event"] == "step.finished"] == [*range(1, 7)]


def test_a_line_that_the_server_refuses_halts_before_the_body(url: str) -> None:
    """As a server does that has no room left."""
    schema = url.partition("schema=")[2].partition("&")[0]
    with Session("job", store=url):
        add(1)
    with psycopg.connect(server(), autocommit=True) as db:
        db.execute(f"SET search_path = {schema}".encode())
        db.execute(
            "CREATE FUNCTION full_() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION"
            " 'could not extend file' USING ERRCODE = '53100'; END $$"
        )
        with (
            pytest.raises(TraceUnwritable, match="could not extend file"),
            Session("job", store=url, replay="off") as session,
        ):
            add(2)
            looked, until = open_store(url), time.monotonic() + 30
            while b'"event":"step.finished"' not in looked.read(session.run_id).data:
                assert time.monotonic() < until, "the outcome was sent, and did not arrive"
                time.sleep(0.01)
            db.execute(
                "CREATE TRIGGER full_ BEFORE INSERT ON lines FOR EACH ROW EXECUTE FUNCTION full_()"
            )
            add(3)
        assert ran == [1, 2]
        db.execute("DROP TRIGGER full_ ON lines")
    with Session("job", store=url) as again:  # there is room
        assert [add(2), add(3)] == [2, 3]
    assert (again.root, again.stats.hits, ran) == (session.run_id, 1, [1, 2, 3])


def test_without_its_library_a_store_in_postgresql_is_not_opened(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from rollcage import open_store\n"
        "try: open_store('postgresql://localhost/runs')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("StoreInvalid ")
    assert 'pip install "rollcage[postgres]"' in done.stdout


def test_a_job_that_is_not_listed_counts_as_not_done_until_it_is_repaired(tmp_path: Path) -> None:
    ran.clear()
    store = SqliteStore(tmp_path / "runs.db")
    with Session("job", store=store) as session:
        add(1)
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as db, db:
        db.execute("DELETE FROM runs")
    assert not store.runs()
    assert store.newest("job", None) is None
    assert store.check().lost == (session.run_id,)
    store.repair()
    with Session("job", store=store, replay="continue") as again:
        assert add(1) == 1
    assert (again.stats.hits, ran) == (1, [1])


def test_a_full_sqlite_file_goes_on_once_there_is_room(tmp_path: Path) -> None:
    """`SQLITE_FULL`, as where the disk has no room, or a quota ends."""
    store = SqliteStore(tmp_path / "runs.db")
    sizes: list[int] = []

    @tool(effect="write", name="failures.fill")
    def fill(number: int) -> str:
        sizes.append(number)
        return "x" * 3000

    with pytest.raises(TraceUnwritable, match="SQLITE_FULL"), Session("job", store=store) as first:
        fill(0)
        writer: Any = first._entered().driver.writer
        pages = writer._connection.execute("PRAGMA page_count").fetchone()[0]
        writer._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        for number in range(1, 50):
            fill(number)
    last = sizes[-1]
    assert last < 49
    with store._database.using() as db:
        db.execute("PRAGMA max_page_count = 1000000")
    with contextlib.suppress(UnknownOutcome), Session("job", store=store) as again:
        for number in range(last + 2):
            fill(number)
    assert again.root == first.run_id
    assert again.stats.hits in (
        last,
        last + 1,
    )  # of the last body, the outcome may have had no room
    assert len(sizes) == len(set(sizes)), "nothing ran twice"


def test_each_row_of_the_table_names_a_test_that_shows_it() -> None:
    page = (ROOT / "docs/stores.md").read_text()
    rows = page.partition("## When something fails")[2].partition("\n\n|")[2].split("\n\n")[0]
    lines = rows.splitlines()[2:]
    assert len(lines) > 15
    packages = ROOT.glob("packages/*/**/*.py")
    there = {
        name
        for path in packages
        if "/tests/" in str(path) or "conformance/src" in str(path)
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    for line in lines:
        named = re.findall(r"`(test_\w+)`", line.rstrip(" |").rpartition("|")[2])
        assert named, f"no test is named in: {line}"
        assert not set(named) - there, line


def test_a_damaged_key_is_told(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    with Session("job", store=store, input=1):
        add(1)
    with store._database.changing() as db:
        db.execute("UPDATE kept SET value = x'00' WHERE name = 'key'")
    with (
        pytest.raises(StoreError, match="is not 32 bytes long"),
        Session("job", store=store, input=1),
    ):
        pytest.fail("nobody could tell which job this is")
    assert store.check().unreadable
