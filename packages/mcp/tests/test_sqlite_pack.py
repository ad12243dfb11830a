"""The pack for SQLite, on hostile SQL: it undoes what is its own, and never tells of more."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from rollcage_mcp.conversation import ServerDeclarations
from rollcage_mcp.pack import Pack
from scripted import Client, Server, Talk

SCHEMA = """
CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT);
INSERT INTO notes VALUES (5, 'five'), (10, 'ten');
CREATE TABLE once(id INTEGER PRIMARY KEY, text TEXT UNIQUE ON CONFLICT REPLACE);
INSERT INTO once VALUES (1, 'a'), (2, 'b');
CREATE TABLE watched(id INTEGER PRIMARY KEY, text TEXT);
CREATE TRIGGER watching AFTER INSERT ON watched BEGIN UPDATE notes SET text = 'seen'; END;
CREATE TABLE keyed(id TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID;
CREATE TABLE odd(rowid INTEGER, text TEXT);
INSERT INTO odd VALUES (100, 'a');
"""


class Database:
    """The tools of mcp-server-sqlite, as it has them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.open() as there:
            there.executescript(SCHEMA)
        self.server = Server(
            read_query=self.query,
            write_query=self.query,
            create_table=self.query,
            list_tables=self.query,
            describe_table=self.query,
            append_insight=self.query,
        )
        for name in self.server.tools:
            self.server.said[name] = {"inputSchema": {"properties": {"query": {}}}}

    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None)

    async def query(self, server: Server, query: str) -> str:
        there = self.open()
        try:
            there.row_factory = sqlite3.Row
            cursor = there.execute(query)
            if query.strip().upper().startswith(("INSERT", "UPDATE", "DELETE", "CREATE", "DROP")):
                return str([{"affected_rows": cursor.rowcount}])
            return str([dict(each) for each in cursor.fetchall()])
        except sqlite3.Error as error:
            return f"Database error: {error}"
        finally:
            there.close()

    def all(self) -> dict[str, Any]:
        there = self.open()
        names = [each[0] for each in there.execute("SELECT name FROM sqlite_master ORDER BY name")]
        tables = there.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        rows = {name: there.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables}  # noqa: S608
        there.close()
        return {"names": names, **rows}

    def run(self, sql: str) -> None:
        there = self.open()
        there.execute(sql)
        there.close()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "data.db")


async def undone(talk: Talk, database: Database, sql: str, *meanwhile: str) -> set[str]:
    """Make a write, let somebody else make others, undo it: the statuses."""

    async def work(client: Client) -> set[str]:
        await client.greet()
        tool = "create_table" if sql.upper().startswith("CREATE") else "write_query"
        await client.call(tool, query=sql)
        for each in meanwhile:
            database.run(each)
        report = await client.conversation.session.aundo()
        return {str(each.status) for each in report.steps}

    async with talk(database.server, declared=ServerDeclarations(Pack.load("sqlite"))) as client:
        return await work(client)


@pytest.mark.parametrize("sql", [
    "INSERT INTO notes(text) VALUES ('a')",
    "insert into \"notes\" (text) values ('a'), ('b')",
    "INSERT INTO notes SELECT id + 100, text FROM notes",
    "INSERT INTO notes VALUES (77, 'it''s \"quoted\"; really')",
    "CREATE TABLE mine(id INTEGER)",
])  # fmt: skip
async def test_what_is_its_own_is_undone(talk: Talk, database: Database, sql: str) -> None:
    before = database.all()
    statuses = await undone(talk, database, sql)
    if "; " in sql:  # two statements, for all that the pack can tell
        assert "verified" not in statuses
    else:
        assert statuses == {"verified"}
        assert database.all() == before


@pytest.mark.parametrize("sql", [
    "INSERT INTO notes VALUES (7, 'below the maximum')",
    "INSERT INTO notes VALUES (7, 'below'), (77, 'above')",
    "INSERT OR REPLACE INTO notes VALUES (5, 'replaced')",
    "REPLACE INTO notes VALUES (5, 'replaced')",
    "INSERT INTO notes VALUES (5, 'x') ON CONFLICT(id) DO UPDATE SET text = 'upserted'",
    "INSERT INTO notes VALUES (5, 'x') ON/**/CONFLICT(id) DO UPDATE SET text = 'upserted'",
    "INSERT /* x */ INTO notes(text) VALUES ('a')",
    "INSERT INTO once VALUES (3, 'a')",
    "INSERT INTO watched(text) VALUES ('a')",
    "INSERT INTO keyed VALUES ('k', 'a')",
    "INSERT INTO odd VALUES (100, 'b')",
    "INSERT INTO odd VALUES (101, 'b')",
    "UPDATE notes SET text = 'changed'",
    "DELETE FROM notes WHERE id = 10",
])  # fmt: skip
async def test_what_else_has_come_of_it_is_never_called_verified(
    talk: Talk, database: Database, sql: str
) -> None:
    before = database.all()
    statuses = await undone(talk, database, sql)
    assert "verified" not in statuses
    assert database.all() != before  # and nobody says that it is as it was


@pytest.mark.parametrize(("sql", "other"), [
    ("INSERT INTO notes(text) VALUES ('a')", "INSERT INTO notes(text) VALUES ('theirs')"),
    ("INSERT INTO notes(text) VALUES ('a')", "UPDATE notes SET text = 'theirs' WHERE id = 11"),
    ("INSERT INTO notes(text) VALUES ('a')", "UPDATE notes SET id = 12 WHERE id = 11"),
    ("CREATE TABLE mine(id INTEGER)", "INSERT INTO mine VALUES (1)"),
    ("CREATE TABLE mine(id INTEGER)", "CREATE INDEX theirs ON mine(id)"),
])  # fmt: skip
async def test_what_others_did_since_is_a_conflict(
    talk: Talk, database: Database, sql: str, other: str
) -> None:
    statuses = await undone(talk, database, sql, other)
    assert statuses == {"conflict"}
    assert any("theirs" in str(each) or each == [(1,)] or "12" in str(each)
               for each in database.all().values())  # fmt: skip


async def test_a_row_that_came_in_between_is_not_deleted(talk: Talk, database: Database) -> None:
    """Somebody inserts between the look and the write: their row stands behind those of before."""

    async def meanwhile(server: Server, query: str) -> str:
        if query.startswith("INSERT"):
            database.run("INSERT INTO notes VALUES (50, 'theirs')")
        return await database.query(server, query)

    database.server.tools["write_query"] = meanwhile
    for sql in ("INSERT INTO notes(text) VALUES ('ours')",):
        await undone(talk, database, sql)
        assert (50, "theirs") in database.all()["notes"]


async def test_a_table_that_was_there_is_not_dropped(talk: Talk, database: Database) -> None:
    """Not even when the look at it failed."""

    async def locked(server: Server, query: str) -> str:
        return "Database error: database is locked"

    database.server.tools["read_query"] = locked
    await undone(talk, database, "CREATE TABLE IF NOT EXISTS notes(id INTEGER)")
    assert database.all()["notes"] == [(5, "five"), (10, "ten")]
