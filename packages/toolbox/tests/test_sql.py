"""What the SQL tools read, write, refuse and undo; on real files and a real server."""

import datetime as dt
import decimal
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import rollcage
import sqlalchemy as sa
from cuts import cut_log
from rollcage import Options, Session
from rollcage_toolbox.sql import Database, SqlFailed, SqlRefused
from rollcage_toolbox.sql_access import Access

COMMON = """
CREATE TABLE places (
    country TEXT, town TEXT, name TEXT UNIQUE, PRIMARY KEY (country, town))

CREATE TABLE notes (text TEXT)

CREATE TABLE lines (
    id INTEGER PRIMARY KEY, order_id INTEGER REFERENCES orders(id) ON DELETE CASCADE)

CREATE TABLE totals (
    id INTEGER PRIMARY KEY, net INTEGER, gross INTEGER GENERATED ALWAYS AS (net * 2) STORED)

CREATE TABLE watched (id INTEGER PRIMARY KEY, text TEXT)

CREATE TABLE tree (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES tree(id))

CREATE TABLE "odd ""name" (id INTEGER PRIMARY KEY, "a:b" TEXT, "select" TEXT)
"""
SQLITE = """
CREATE TABLE orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT NOT NULL, price DECIMAL(10, 2),
    paid BOOLEAN DEFAULT 0, made TIMESTAMP, photo BLOB, count INTEGER CHECK (count >= 0))

{common}

CREATE TRIGGER watch AFTER UPDATE ON watched BEGIN INSERT INTO notes VALUES ('seen'); END
"""
POSTGRES = """
CREATE TABLE orders (
    id INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item TEXT NOT NULL, price NUMERIC(10, 2),
    paid BOOLEAN DEFAULT false, made TIMESTAMPTZ, photo BYTEA, count INTEGER CHECK (count >= 0))

{common}

CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO notes VALUES ('seen'); RETURN NEW; END$$

CREATE TRIGGER watch AFTER UPDATE ON watched FOR EACH ROW EXECUTE FUNCTION watch()
"""


@pytest.fixture(scope="session")
def postgres() -> Iterator[sa.URL]:
    """A real server in a folder of its own, reached through a socket in it."""
    pytest.importorskip("psycopg", reason="PostgreSQL is reached through psycopg")
    found = [Path(p).parent for p in (shutil.which("initdb"),) if p]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    bins = next((each for each in found if (each / "postgres").exists()), None)
    if bins is None:
        pytest.skip("no PostgreSQL server is installed here")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    user = "nobody" if os.getuid() == 0 else None  # the server refuses to run as root
    if user:
        shutil.chown(folder, user)
    data = folder / "data"
    subprocess.run(
        [bins / "initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8"],
        check=True,
        capture_output=True,
        user=user,
        cwd=folder,
    )
    options = f"-k {folder} -c listen_addresses='' -c fsync=off"
    control: list[str | Path] = [bins / "pg_ctl", "-D", data, "-w", "-o", options]
    control += ["-l", folder / "log"]
    subprocess.run([*control, "start"], check=True, capture_output=True, user=user, cwd=folder)
    try:
        yield sa.URL.create(
            "postgresql+psycopg", "tester", database="postgres", query={"host": str(folder)}
        )
    finally:
        stop = [*control, "-m", "immediate", "stop"]
        subprocess.run(stop, check=True, capture_output=True, user=user, cwd=folder)
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.URL]:
    if request.param == "sqlite":
        path = tmp_path / "shop.db"
        sqlite3.connect(path).close()
        place = sa.URL.create("sqlite", database=str(path))
        _make(place)
        yield place
        return
    server: sa.URL = request.getfixturevalue("postgres")
    admin = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE shop")
    place = server.set(database="shop")
    try:
        _make(place)
        yield place
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql("DROP DATABASE shop WITH (FORCE)")
        admin.dispose()


def _make(url: sa.URL) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        schema = SQLITE if url.get_backend_name() == "sqlite" else POSTGRES
        for statement in schema.format(common=COMMON.strip()).split("\n\n"):
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.fixture
def database(url: sa.URL) -> Iterator[Database]:
    with Database(url, receipts="receipts") as made:
        yield made


@pytest.fixture
def direct(url: sa.URL) -> Iterator[Callable[..., list[Any]]]:
    """Somebody else, who goes around the tools."""
    engine = sa.create_engine(url)

    def run(sql: str, **parameters: Any) -> list[Any]:
        with engine.begin() as connection:
            result = connection.execute(sa.text(sql), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []

    yield run
    engine.dispose()


def contract(function: Any) -> Any:
    return function.__rollcage_contract__


def observed(function: Callable[..., Any], **args: Any) -> dict[str, Any]:
    states: dict[str, Any] = contract(function).observe(args)
    return states


def take_back(database: Database, plan: list[rollcage.Compensation]) -> None:
    for each in plan:
        assert each.tool == "sql_restore"
        database.restore(**each.arguments)


def there_and_back(
    database: Database, function: Callable[..., Any], **args: Any
) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """A change, undone: the states before it, after it, and in the end."""
    before = observed(function, **args)
    result = function(**args)
    after = observed(function, **args)
    given = {"args": args, "before": before, "result": result}
    words = contract(function).undo_words
    take_back(database, contract(function).undo(**{w: given[w] for w in words}))
    return before, after, observed(function, **args)


def fill(direct: Callable[..., Any]) -> None:
    direct(
        "INSERT INTO orders (item, price, paid, made, photo, count) "
        "VALUES ('tea', 10.10, :paid, :made, :photo, 3), ('milk', NULL, NULL, NULL, NULL, NULL)",
        paid=True, made="2024-02-29 12:30:00.123456+00", photo=b"\x00\xff",
    )  # fmt: skip


ALL = "SELECT * FROM orders ORDER BY id"


# --- reading -------------------------------------------------------------------------------------


def test_query_gives_columns_and_rows(database: Database, direct: Callable[..., Any]) -> None:
    fill(direct)
    told = database.query("SELECT id, item FROM orders WHERE item = :item;", {"item": "tea"})
    assert told == {"columns": ["id", "item"], "rows": [[1, "tea"]], "more": False}


def test_a_query_gives_no_more_rows_than_the_limit(url: sa.URL, direct: Callable[..., Any]) -> None:
    fill(direct)
    with Database(url, row_limit=1) as database:
        told = database.query("SELECT item FROM orders ORDER BY id")
        assert told == {"columns": ["item"], "rows": [["tea"]], "more": True}
        assert [row["item"] for row in database.select("orders")] == ["tea"]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO notes VALUES ('x')",
        "UPDATE orders SET item = 'x'",
        "DELETE FROM orders",
        "DROP TABLE orders",
        "CREATE TABLE more (id INTEGER)",
        "SELECT 1; DELETE FROM orders",
        "SELECT 1; COMMIT; DELETE FROM orders; COMMIT",
        "COMMIT",
        "SELECT 1) AS a; DELETE FROM orders; --",
        "WITH gone AS (DELETE FROM orders RETURNING id) SELECT * FROM gone",
        "INSERT INTO notes VALUES ('x') RETURNING text",
        "",
        "no sql",
        "SELECT nothing FROM orders",
        "SELECT :missing",
    ],
)
def test_a_query_changes_nothing(database: Database, direct: Callable[..., Any], sql: str) -> None:
    fill(direct)
    before = direct(ALL)
    with pytest.raises((SqlFailed, SqlRefused)):
        database.query(sql)
    assert direct(ALL) == before
    assert direct("SELECT * FROM notes") == []
    assert database.query("SELECT 1 AS one")["rows"] == [[1]]


def test_sqlite_holds_a_query_by_its_own_means(
    url: sa.URL, database: Database, tmp_path: Path
) -> None:
    if url.get_backend_name() != "sqlite":
        pytest.skip("these are SQLite's own ways out")
    for sql in (
        f"ATTACH '{tmp_path / 'other.db'}' AS other",
        "PRAGMA query_only=OFF",
        "PRAGMA writable_schema=ON",
        f"VACUUM INTO '{tmp_path / 'copy.db'}'",
        "SELECT load_extension('x')",
        "BEGIN",
        "SAVEPOINT a",
    ):
        for tool in (database.query, database.execute):
            with pytest.raises(SqlFailed):
                tool(sql)
    assert [each.name for each in tmp_path.iterdir()] == ["shop.db"]


def test_postgresql_holds_a_query_by_its_own_means(
    url: sa.URL, database: Database, direct: Callable[..., Any]
) -> None:
    if url.get_backend_name() != "postgresql":
        pytest.skip("these are PostgreSQL's own ways out")
    direct("CREATE FUNCTION wipe() RETURNS int LANGUAGE sql AS 'DELETE FROM orders RETURNING 1'")
    direct("CREATE SEQUENCE numbers")
    fill(direct)
    for sql in (
        "SELECT wipe()",
        "SELECT nextval('numbers')",
        "SELECT set_config('transaction_read_only', 'off', false)",
        "SET TRANSACTION READ WRITE",
        "COPY orders TO '/tmp/orders'",
        "LOCK TABLE orders",
    ):
        with pytest.raises(SqlFailed):
            database.query(sql)
    assert len(direct(ALL)) == 2
    for sql in ("COMMIT", "ROLLBACK", "SELECT 1; SELECT 2"):
        with pytest.raises((SqlFailed, SqlRefused)):
            database.execute(sql)


def test_a_statement_ends_with_its_time(url: sa.URL) -> None:
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )
    with (
        Database(url, timeout=0.2) as database,
        pytest.raises(SqlFailed, match=r"interrupted|timeout"),
    ):
        database.query(endless)


def test_tables_hold_all_tools(url: sa.URL, direct: Callable[..., Any]) -> None:
    fill(direct)
    with Database(url, tables=["places"]) as database:
        assert list(database.describe()) == ["places"]
        for call in (
            lambda: database.select("orders"),
            lambda: database.insert_rows("orders", [{"item": "x"}]),
            lambda: database.update_rows("orders", [{"id": 1}], {"item": "x"}),
            lambda: database.delete_rows("orders", [{"id": 1}]),
        ):
            with pytest.raises(SqlRefused, match="no table 'orders'"):
                call()
        names = {contract(each).name for each in database.tools()}
        assert {contract(each).effect for each in database.tools(read_only=True)} == {"read"}
        if url.get_backend_name() == "postgresql":
            assert not names & {"sql_query", "sql_execute"}
            return
        assert database.query("SELECT count(*) AS n FROM places")["rows"] == [[0]]
        for sql in (
            "SELECT * FROM orders",
            "SELECT count(*) FROM orders",
            "SELECT * FROM sqlite_master",
        ):
            with pytest.raises(SqlFailed):
                database.query(sql)
        for sql in ("DELETE FROM orders", "DROP TABLE orders", "CREATE TABLE x (a)",
                    "INSERT INTO places SELECT 'a', 'b', item FROM orders"):  # fmt: skip
            with pytest.raises(SqlFailed):
                database.execute(sql)
    assert len(direct(ALL)) == 2


# --- changes, there and back ---------------------------------------------------------------------


def test_an_update_is_undone_exactly(database: Database, direct: Callable[..., Any]) -> None:
    fill(direct)
    original = direct(ALL)
    before, after, end = there_and_back(
        database,
        database.update_rows,
        table="orders",
        where=[{"id": 1}, {"id": 2}],
        values={"item": "x", "price": decimal.Decimal("1.25"), "paid": None, "photo": b"\x01",
                "made": dt.datetime(2025, 1, 1, tzinfo=dt.UTC), "count": 0},
    )  # fmt: skip
    assert set(before) == {'row:orders:{"id": 1}', 'row:orders:{"id": 2}'}
    assert after != before
    assert end == before
    assert direct(ALL) == original


def test_deleted_rows_come_back_with_their_keys(
    database: Database, direct: Callable[..., Any]
) -> None:
    fill(direct)
    original = direct(ALL)
    before, after, end = there_and_back(
        database, database.delete_rows, table="orders", where=[{"id": 1}, {"id": "2"}]
    )
    assert set(after.values()) == {None}
    assert end == before
    assert direct(ALL) == original


def test_inserted_rows_go_again(database: Database, direct: Callable[..., Any]) -> None:
    fill(direct)
    original = direct(ALL)
    jam = {"item": "jam", "count": 1}
    before, after, end = there_and_back(
        database,
        database.insert_rows,
        table="orders",
        rows=[{"item": "tea", "price": "10.10", "photo": b"x"}, jam, jam],
    )
    (made,) = before
    assert before[made] == []
    assert after[made] == ['{"id": 3}', '{"id": 4}', '{"id": 5}']
    assert after['row:orders:{"id": 5}']["item"] == "jam"
    assert end == before
    assert direct(ALL) == original


def test_without_receipts_a_row_needs_its_key(url: sa.URL, direct: Callable[..., Any]) -> None:
    with Database(url) as database:
        for call in (observed, lambda function, **args: function(**args)):
            with pytest.raises(SqlRefused, match="let the database keep receipts"):
                call(database.insert_rows, table="orders", rows=[{"item": "x"}])
        assert database.insert_rows("places", [{"country": "fr", "town": "Tours"}])["inserted"] == 1
        assert "receipts" not in database.describe()
    assert direct(ALL) == []


def test_receipts_are_no_table_for_agents(database: Database) -> None:
    database.insert_rows("orders", [{"item": "x"}])
    assert "receipts" not in database.describe()
    with pytest.raises(SqlRefused, match="no table 'receipts'"):
        database.select("receipts")


def test_rows_with_a_key_of_several_columns(database: Database, direct: Callable[..., Any]) -> None:
    rows = [{"country": "fr", "town": "Tours", "name": "a"}, {"country": "de", "town": "Ulm"}]
    before, after, end = there_and_back(database, database.insert_rows, table="places", rows=rows)
    assert set(before) == {
        'row:places:{"country": "fr", "town": "Tours"}',
        'row:places:{"country": "de", "town": "Ulm"}',
    }
    assert end == before
    assert None not in after.values()
    assert direct("SELECT * FROM places") == []


def test_rows_that_refer_to_each_other(database: Database, direct: Callable[..., Any]) -> None:
    direct("INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2)")
    before, _, end = there_and_back(
        database, database.delete_rows, table="tree", where=[{"id": 1}, {"id": 2}, {"id": 3}]
    )
    assert end == before


def test_names_that_need_quoting(database: Database, direct: Callable[..., Any]) -> None:
    table = 'odd "name'
    rows = [{"id": 1, "a:b": "x", "select": "; DROP TABLE orders"}]
    before, _, end = there_and_back(database, database.insert_rows, table=table, rows=rows)
    assert end == before
    database.insert_rows(table=table, rows=rows)
    before, _, end = there_and_back(database, database.delete_rows, table=table, where=[{"id": 1}])
    assert end == before
    assert database.select(table, where={"a:b": "x"}) == rows


def test_generated_columns_are_computed_again(
    database: Database, direct: Callable[..., Any]
) -> None:
    direct("INSERT INTO totals (id, net) VALUES (1, 4)")
    before, _, end = there_and_back(
        database, database.delete_rows, table="totals", where=[{"id": 1}]
    )
    assert end == before == {'row:totals:{"id": 1}': {"id": 1, "net": 4, "gross": 8}}
    with pytest.raises(SqlRefused, match=r"gross is written by the database alone"):
        database.update_rows("totals", [{"id": 1}], {"gross": 1})


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "says"),
    [("notes", "no primary key"), ("watched", "trigger 'watch'"), ("nothing", "no table")],
)
def test_what_can_not_be_undone_is_refused(
    database: Database, direct: Callable[..., Any], table: str, says: str
) -> None:
    direct("INSERT INTO watched VALUES (1, 'a')")
    for function, args in (
        (database.insert_rows, {"rows": [{"text": "b"}]}),
        (database.update_rows, {"where": [{"id": 1}], "values": {"text": "b"}}),
        (database.delete_rows, {"where": [{"id": 1}]}),
    ):
        with pytest.raises(SqlRefused, match=says):
            observed(function, table=table, **args)
        with pytest.raises(SqlRefused, match=says):
            function(table=table, **args)


def test_free_sql_is_irreversible(database: Database, direct: Callable[..., Any]) -> None:
    assert not contract(database.execute).reversible
    assert contract(database.update_rows).reversible
    assert database.execute("INSERT INTO notes VALUES (:text)", {"text": "a"}) == {"changed": 1}
    assert database.execute("DELETE FROM notes RETURNING text")["rows"] == [["a"]]
    assert direct("SELECT * FROM notes") == []


def test_rows_that_a_foreign_key_would_delete(
    database: Database, direct: Callable[..., Any]
) -> None:
    fill(direct)
    direct("INSERT INTO lines VALUES (7, 1)")
    with pytest.raises(SqlRefused, match="rows of 'lines' would change"):
        database.delete_rows("orders", [{"id": 1}])
    assert database.delete_rows("orders", [{"id": 2}]) == {"deleted": 1}


@pytest.mark.parametrize(
    ("where", "values", "says"),
    [
        ([{"id": 1}, {"id": 9}], {"item": "x"}, "there is no"),
        ([{"id": 1}, {"id": 1}], {"item": "x"}, "named twice"),
        ([{"id": 1}, {"id": "1"}], {"item": "x"}, "named twice"),
        ([{"item": "tea"}], {"item": "x"}, "whole primary key"),
        ([{"id": None}], {"item": "x"}, "whole primary key"),
        ([{"id": "1 OR 1=1"}], {"item": "x"}, "whole number"),
        ([{"id": True}], {"item": "x"}, "whole number"),
        ([{"id": 1, "item": "milk"}], {"item": "x"}, "does not hold"),
        ([{"id": 1}], {"item; --": "x"}, "no columns"),
        ([{"id": 1, "1=1 OR id": 2}], {"item": "x"}, "no columns"),
        ([{"id": 1}], {"id": 5}, "name the row"),
        ([{"id": 1}], {}, "no values"),
        ([{"id": 1}], {"photo": "text"}, "holds bytes"),
        ([], {"item": "x"}, "0 rows"),
        ([{"id": 1}] * 501, {"item": "x"}, "501 rows"),
    ],
)
def test_refused_updates_change_nothing(
    database: Database, direct: Callable[..., Any], where: Any, values: Any, says: str
) -> None:
    fill(direct)
    before = direct(ALL)
    with pytest.raises(SqlRefused, match=says):
        database.update_rows("orders", where, values)
    assert direct(ALL) == before


def test_what_the_database_refuses_changes_nothing(
    database: Database, direct: Callable[..., Any]
) -> None:
    fill(direct)
    before = direct(ALL)
    calls: list[Callable[[], object]] = [
        lambda: database.update_rows("orders", [{"id": 2}, {"id": 1}], {"count": -1}),
        lambda: database.insert_rows("orders", [{"item": "x"}, {"item": None}]),
        lambda: database.insert_rows("lines", [{"id": 1, "order_id": 99}]),
    ]
    for call in calls:
        with pytest.raises(SqlFailed, match=r"(?i)constraint"):
            call()
    assert direct(ALL) == before


# --- probes --------------------------------------------------------------------------------------


def probed(function: Callable[..., Any], before: Any, **args: Any) -> Any:
    return contract(function).probe(args=args, before=before)


def test_a_probe_tells_from_the_rows(database: Database, direct: Callable[..., Any]) -> None:
    fill(direct)
    calls: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (database.insert_rows, {"rows": [{"item": "jam"}, {"item": "jam"}, {"item": "tea"}]}),
        (
            database.update_rows,
            {"where": [{"id": 1}, {"id": 2}], "values": {"item": "x", "count": 5}},
        ),
        (database.delete_rows, {"where": [{"id": 1}, {"id": 2}]}),
    ]
    for function, rest in calls:
        args = {"table": "orders", **rest}
        before = observed(function, **args)
        assert probed(function, before, **args) == rollcage.DidNotHappen()
        result = function(**args)
        assert probed(function, before, **args) == rollcage.Happened(result)


def test_a_probe_says_where_it_can_not_tell(database: Database, direct: Callable[..., Any]) -> None:
    fill(direct)
    update = {"table": "orders", "where": [{"id": 1}], "values": {"item": "x"}}
    delete = {"table": "orders", "where": [{"id": 1}, {"id": 2}]}
    insert = {"table": "places", "rows": [{"country": "fr", "town": t} for t in ("Tours", "Laon")]}
    before = [
        observed(database.update_rows, **update),
        observed(database.delete_rows, **delete),
        observed(database.insert_rows, **insert),
    ]
    direct("UPDATE orders SET item = 'y' WHERE id = 1")
    assert probed(database.update_rows, before[0], **update) is None
    direct("UPDATE orders SET item = 'x', count = 4 WHERE id = 1")
    assert probed(database.update_rows, before[0], **update) is None
    direct("DELETE FROM orders WHERE id = 2")
    assert probed(database.delete_rows, before[1], **delete) is None
    direct("INSERT INTO places VALUES ('fr', 'Tours', NULL)")
    assert probed(database.insert_rows, before[2], **insert) is None


def test_a_key_that_is_used_again_is_followed_back_behind_a_probe(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)")
    connection.close()
    store = tmp_path / "store"
    with Database(f"sqlite:///{path}", receipts="receipts") as database:

        def job() -> str:
            with Session("job", store=store, replay="continue") as session:
                database.insert_rows("rows", [{"text": "first"}])
                database.delete_rows("rows", [{"id": 1}])
                database.insert_rows("rows", [{"text": "second"}])
            return session.run_id

        run = job()
        lines = rollcage.open_store(store).read(run)
        cut_log(store / "logs" / f"{run}.jsonl", len(lines) - 2)  # killed in the last insert
        assert job() == run
        assert b'"by":"probe"' in b"".join(rollcage.open_store(store).read(run))
        report = rollcage.undo_run(store, run, tools=database)
        assert report.complete, report
        assert database.select("rows") == []


# --- engines -------------------------------------------------------------------------------------


def test_a_database_in_memory_is_refused() -> None:
    for url in ("sqlite://", "sqlite:///:memory:"):
        with pytest.raises(ValueError, match="gone with its process"):
            Database(url)


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path / 'none.db'}") as database, pytest.raises(SqlFailed):
        database.describe()
    assert list(tmp_path.iterdir()) == []


def test_a_driver_that_can_not_be_held_is_refused() -> None:
    engine = sa.create_engine("postgresql+psycopg2://", module=sqlite3, _initialize=False)
    with pytest.raises(ValueError, match="can't be held"):
        Database(engine)


def test_one_name_is_no_list_of_tables(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pass a list"):
        Database(f"sqlite:///{tmp_path / 'a.db'}", tables="orders")


def test_a_callers_engine_stays_theirs(url: sa.URL, direct: Callable[..., Any]) -> None:
    engine = sa.create_engine(url)
    with Database(engine) as database:
        database.insert_rows("lines", [{"id": 1}])
    with engine.begin() as connection:  # it can still read, and write as it could
        connection.execute(sa.text("INSERT INTO orders (item) VALUES ('y')"))
    engine.dispose()
    assert len(direct(ALL)) == len(direct("SELECT * FROM lines")) == 1


def test_two_writers_wait_for_each_other(url: sa.URL, direct: Callable[..., Any]) -> None:
    fill(direct)
    failed: list[BaseException] = []

    def work(database: Database, item: str) -> None:
        try:
            for _ in range(10):
                database.update_rows("orders", [{"id": 1}], {"item": item})
        except BaseException as error:  # noqa: BLE001 - a thread's failure is shown by the test
            failed.append(error)

    with Database(url) as one:
        threads = [threading.Thread(target=work, args=(one, item)) for item in ("a", "b", "c")]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert failed == []


# --- in a session --------------------------------------------------------------------------------


def test_a_session_takes_all_of_it_back(
    database: Database, direct: Callable[..., Any], tmp_path: Path
) -> None:
    fill(direct)
    original = direct(ALL)
    with Session("shop", store=tmp_path / "store", options=Options(tools=database)) as session:
        database.insert_rows(table="orders", rows=[{"item": "jam", "photo": b"\x00"}])
        database.update_rows(table="orders", where=[{"id": 3}], values={"item": "ham"})
        database.update_rows(
            table="orders", where=[{"id": 1}], values={"made": None, "price": decimal.Decimal(1)}
        )
        database.delete_rows(table="orders", where=[{"id": 1}, {"id": 2}])
        assert direct("SELECT item FROM orders") == [("ham",)]
        report = session.undo()
    assert report.complete
    assert {each.status for each in report.steps} == {"verified"}
    assert direct(ALL) == original


def test_rows_that_changed_between_capture_and_write_are_refused(
    url: sa.URL,
    direct: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(direct)
    changing = Access.changing

    def slowly(access: Access, table: str, rows: Any) -> Any:
        """A transaction that begins a moment later: somebody else is quicker."""
        direct("UPDATE orders SET count = 7 WHERE id = 1")
        return changing(access, table, rows)

    monkeypatch.setattr(Access, "changing", slowly)
    with Database(url) as database, Session("race", store=tmp_path / "store"):
        for function, rest in (
            (database.update_rows, {"values": {"item": "x"}}),
            (database.delete_rows, {}),
        ):
            direct("UPDATE orders SET count = 1 WHERE id = 1")
            with pytest.raises(SqlRefused, match="somebody else has just changed row:orders"):
                function(table="orders", where=[{"id": 1}], **rest)
    assert direct("SELECT item, count FROM orders WHERE id = 1") == [("tea", 7)]


def test_what_a_third_party_changed_is_not_undone(
    database: Database, direct: Callable[..., Any], tmp_path: Path
) -> None:
    fill(direct)
    with Session("shop", store=tmp_path / "store") as session:
        database.update_rows(table="orders", where=[{"id": 1}], values={"item": "x"})
        database.delete_rows(table="orders", where=[{"id": 2}])
        direct("UPDATE orders SET count = 8 WHERE id = 1")
        then = direct(ALL)
        report = session.undo()
    assert not report.complete
    (conflict,) = [each for each in report.steps if each.status == "conflict"]
    assert conflict.differs == {'row:orders:{"id": 1}': ["count"]}
    assert direct(ALL) == then


def test_another_process_takes_it_back(
    url: sa.URL, direct: Callable[..., Any], tmp_path: Path
) -> None:
    fill(direct)
    original = direct(ALL)
    place = url.render_as_string(hide_password=False)
    work = """
import sys
from rollcage import Session, list_runs, undo_run
from rollcage_toolbox.sql import Database

with Database(sys.argv[1], receipts="receipts") as database:
    if sys.argv[3] == "work":
        with Session("shop", store=sys.argv[2]):
            database.insert_rows(table="orders", rows=[{"item": "jam"}])
            database.update_rows(table="orders", where=[{"id": 3}, {"id": 1}], values={"item": "x"})
            database.delete_rows(table="orders", where=[{"id": 2}])
    else:
        (run,) = list_runs(sys.argv[2])
        report = undo_run(sys.argv[2], run.run, tools=database)
        assert report.complete, report
        print(*(each.status for each in report.steps))
"""
    script = tmp_path / "work.py"
    script.write_text(work)

    def run(what: str) -> str:
        command = [sys.executable, str(script), place, str(tmp_path / "store"), what]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    run("work")
    assert [row[1] for row in direct(ALL)] == ["x", "x"]
    assert run("undo").split() == ["verified", "verified", "verified"]
    assert direct(ALL) == original


def test_a_key_that_is_given_out_again(
    url: sa.URL, database: Database, direct: Callable[..., Any], tmp_path: Path
) -> None:
    direct("INSERT INTO tree VALUES (1, NULL), (2, NULL)")
    with Session("reuse", store=tmp_path / "store") as session:
        database.delete_rows(table="tree", where=[{"id": 2}])
        database.insert_rows(table="tree", rows=[{"id": 2, "parent": 1}])
        if url.get_backend_name() == "sqlite":  # which gives the freed key to the next row
            database.delete_rows(table="tree", where=[{"id": 2}])
            database.insert_rows(table="tree", rows=[{"parent": 1}])
        report = session.undo()
    assert {each.status for each in report.steps} == {"verified"}
    assert direct("SELECT * FROM tree ORDER BY id") == [(1, None), (2, None)]


def test_a_key_that_was_given_out_again_and_taken_by_name(tmp_path: Path) -> None:
    path = tmp_path / "again.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
        connection.execute("INSERT INTO t VALUES (1, 'first'), (2, 'second')")
    connection.close()
    with (
        Database(f"sqlite:///{path}", receipts="receipts") as database,
        Session("again", store=tmp_path / "store") as session,
    ):
        database.delete_rows(table="t", where=[{"id": 2}])
        database.insert_rows(table="t", rows=[{"text": "unnamed"}])
        database.delete_rows(table="t", where=[{"id": 2}])
        database.insert_rows(table="t", rows=[{"id": 2, "text": "named"}])
        report = session.undo()
        assert {each.status for each in report.steps} == {"verified"}, str(report)
        assert database.query("SELECT * FROM t")["rows"] == [[1, "first"], [2, "second"]]


def test_a_key_that_was_given_out_again_is_undone_twice(tmp_path: Path) -> None:
    path = tmp_path / "again.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
        connection.execute("INSERT INTO t VALUES (1, 'first')")
    connection.close()
    with (
        Database(f"sqlite:///{path}", receipts="receipts") as database,
        Session("again", store=tmp_path / "store") as session,
    ):
        for text in ("second", "second", "third"):
            database.insert_rows(table="t", rows=[{"text": text}])
            database.delete_rows(table="t", where=[{"id": 2}])
        report = session.undo()
        assert report.complete, str(report)
        assert database.query("SELECT * FROM t")["rows"] == [[1, "first"]]
        assert database.query("SELECT count(*) FROM receipts")["rows"] == [[0]]
