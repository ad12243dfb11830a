"""The demo's job: its folder and database, and the scripted model's calls, turn by turn."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

__all__ = [
    "CLEAN", "DRIFT", "EFFECTS", "ESCAPE", "MISSING", "NAME_DRIFT", "NAME_ESCAPE", "NAME_MISSING",
    "NAME_REPORT", "NAME_WRECK", "WRECK", "IssuedCall", "Scene", "prepare", "report",
]  # fmt: skip

NAME_REPORT: Final = "weekly report"
NAME_ESCAPE: Final = "curious agent"
NAME_DRIFT: Final = "price check"
NAME_MISSING: Final = "reminder"
NAME_WRECK: Final = "spring cleaning"

# The effects of the two toolkits' tools; any tool not named here counts as a write.
EFFECTS: Final[Mapping[str, Literal["read"]]] = {
    "file_search": "read",
    "list_directory": "read",
    "read_file": "read",
    "sql_db_list_tables": "read",
    "sql_db_query_checker": "read",
    "sql_db_schema": "read",
}

# The sign that a tool changed nothing: an impossible path.
CLEAN: Final[Mapping[str, Mapping[str, Any]]] = {"copy_file": {"raises": ValueError}}

_ORDERS: Final = "order,customer,amount\n1,Ann,120.50\n2,Bob,80.00\n3,Cid,33.25\n"
_INSERT: Final = (
    "INSERT INTO orders (id, customer, amount) VALUES "
    "(1, 'Ann', 120.50), (2, 'Bob', 80.00), (3, 'Cid', 33.25)"
)
_CUSTOMERS: Final = (
    (1, "Ann", "ann@example.org"),
    (2, "Bob", "bob@example.org"),
    (3, "Cid", None),
)
_REPORT: Final = "# Weekly report\n\n3 orders, 233.75 in all; the largest is Ann's.\n"


class IssuedCall(NamedTuple):
    """A tool call that the model issues."""

    tool: str
    args: dict[str, Any]


class Scene(NamedTuple):
    """The places of the demo."""

    folder: Path

    @property
    def workspace(self) -> Path:
        """The agent's own folder."""
        return self.folder / "workspace"

    @property
    def database(self) -> Path:
        """The agent's database (SQLite)."""
        return self.folder / "orders.db"

    @property
    def store(self) -> Path:
        """The store of its runs."""
        return self.folder / ".rollcage"

    @property
    def edited(self) -> Path:
        """A copy of the store, in which a line is edited."""
        return self.folder / "edited"

    def orders(self) -> int:
        """Return how many orders the database holds."""
        with closing(sqlite3.connect(self.database)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM orders").fetchone()
            return int(count)

    def folder_digest(self) -> str:
        """SHA-256 (hex) of the workspace: every path with its permissions and its content."""
        found = hashlib.sha256()
        for path in sorted(self.workspace.rglob("*")):
            content = path.read_bytes() if path.is_file() else b""
            name = path.relative_to(self.workspace).as_posix()
            found.update(repr((name, path.stat().st_mode, content)).encode())
        return found.hexdigest()

    def database_digest(self) -> str:
        """SHA-256 (hex) of the database: every table and every row, as SQL."""
        with closing(sqlite3.connect(self.database)) as connection:
            return hashlib.sha256("\n".join(connection.iterdump()).encode()).hexdigest()


def prepare(folder: Path) -> Scene:
    """Make the folder and the database; OSError if the folder exists."""
    scene = Scene(folder)
    folder.mkdir(parents=True)
    (scene.workspace / "outbox").mkdir(parents=True)
    (scene.workspace / "orders.csv").write_text(_ORDERS, encoding="utf-8")
    (folder / "salaries.txt").write_text("none of the agent's business\n", encoding="utf-8")
    with closing(sqlite3.connect(scene.database)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, customer TEXT, amount REAL)")
        connection.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, mail TEXT)")
        connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", _CUSTOMERS)
        connection.commit()
    return scene


def report(*, slip: bool) -> Sequence[IssuedCall]:
    """Return the ten calls of the job. `slip`: the ninth one's path has a NUL byte."""
    target = "outbox/report\0.md" if slip else "outbox/report.md"
    return (
        IssuedCall("list_directory", {"dir_path": "."}),
        IssuedCall("read_file", {"file_path": "orders.csv"}),
        IssuedCall("sql_db_list_tables", {"tool_input": ""}),
        IssuedCall("sql_db_schema", {"table_names": "orders"}),
        IssuedCall("sql_db_query", {"query": _INSERT}),
        IssuedCall("sql_db_query", {"query": "SELECT count(*), sum(amount) FROM orders"}),
        IssuedCall("write_file", {"file_path": "report.md", "text": _REPORT}),
        IssuedCall(
            "write_file", {"file_path": "log.txt", "text": "report written\n", "append": True}
        ),
        IssuedCall("copy_file", {"source_path": "report.md", "destination_path": target}),
        IssuedCall("list_directory", {"dir_path": "outbox"}),
    )


ESCAPE: Final = (
    IssuedCall("list_directory", {"dir_path": "."}),
    IssuedCall("read_file", {"file_path": "../salaries.txt"}),
)

DRIFT: Final = (IssuedCall("look_up_rate", {"currency": "USD"}),)

MISSING: Final = (
    IssuedCall("send_reminder", {"text": "Your order waits."}),
    IssuedCall("send_reminder", {"to": "ann@example.org", "text": "Your order waits."}),
)

WRECK: Final = (
    IssuedCall("write_file", {"path": "orders.csv", "content": "order,customer,amount\n"}),
    IssuedCall("move_file", {"source": "log.txt", "target": "outbox/report.md", "overwrite": True}),
    IssuedCall("delete_file", {"path": "report.md"}),
    IssuedCall(
        "sql_update", {"table": "customers", "where": [{"id": 1}], "values": {"mail": None}}
    ),
    IssuedCall("sql_delete", {"table": "customers", "where": [{"id": 2}, {"id": 3}]}),
    IssuedCall(
        "sql_insert", {"table": "customers", "rows": [{"id": 4, "name": "Test", "mail": "x"}]}
    ),
)
