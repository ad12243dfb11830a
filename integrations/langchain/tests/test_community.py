"""Tools that we did not write: langchain-community's file and SQL toolkits, as they are."""

import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool

# Not declared by the adapter: the demo and an environment with everything have it.
pytest.importorskip("langchain_community")
create_engine = pytest.importorskip("sqlalchemy").create_engine

with warnings.catch_warnings():
    # On import it warns that it will be split up, and of SWIG types in what it imports.
    warnings.simplefilter("ignore", DeprecationWarning)
    from langchain_community.agent_toolkits import FileManagementToolkit
    from langchain_community.tools.sql_database.tool import (
        InfoSQLDatabaseTool,
        ListSQLDatabaseTool,
        QuerySQLDatabaseTool,
    )
    from langchain_community.utilities import SQLDatabase

EFFECTS = {
    "read_file": "read",
    "list_directory": "read",
    "file_search": "read",
    "sql_db_list_tables": "read",
    "sql_db_schema": "read",
}


class Crash(Exception):
    """The process ends."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to work in."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "in.txt").write_text("three apples")
    return folder


@pytest.fixture
def tools(folder: Path) -> Iterator[list[BaseTool]]:
    """Both toolkits, over a real folder and a real database."""
    database = folder / "shop.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE stock (item TEXT, number INTEGER)")
    connection.close()
    engine = create_engine(f"sqlite:///{database}")
    shop = SQLDatabase(engine)
    sql: list[Any] = [ListSQLDatabaseTool, InfoSQLDatabaseTool, QuerySQLDatabaseTool]
    files = FileManagementToolkit(root_dir=str(folder)).get_tools()
    yield [*files, *(make(db=shop) for make in sql)]
    engine.dispose()  # Python 3.13 warns of a connection that nobody closed


SCRIPT: list[Any] = [
    [("list_directory", {})],
    [("read_file", {"file_path": "in.txt"})],
    [("sql_db_list_tables", {"tool_input": ""})],
    [("sql_db_schema", {"table_names": "stock"})],
    [("sql_db_query", {"query": "INSERT INTO stock VALUES ('apple', 3)"})],
    [("write_file", {"file_path": "out.txt", "text": "noted\n", "append": True})],
    [("copy_file", {"source_path": "out.txt", "destination_path": "copy.txt"})],
    [("move_file", {"source_path": "copy.txt", "destination_path": "moved.txt"})],
    [("sql_db_query", {"query": "SELECT * FROM stock"})],
    [("file_delete", {"file_path": "moved.txt"})],
    "done",
]


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_an_agent_over_them_survives_its_crash(
    lab: Any, tools: list[BaseTool], folder: Path, way: str
) -> None:
    async def run(script: list[Any], **settings: Any) -> Any:
        if way == "sync":
            return lab.run(tools, script, effects=EFFECTS, **settings)
        return await lab.arun(tools, script, effects=EFFECTS, **settings)

    died = await run([*SCRIPT[:8], Crash()])
    assert isinstance(died.error, Crash)
    resumed = await run(SCRIPT)
    assert resumed.error is None
    assert (resumed.session.stats.hits, resumed.session.stats.misses) == (8, 2)
    assert (folder / "out.txt").read_text() == "noted\n"
    assert not (folder / "moved.txt").exists()
    assert resumed.texts[8] == "[('apple', 3)]"
    assert resumed.texts[:8] == died_texts(died)


def died_texts(died: Any) -> list[str]:
    """What the model had been shown before the end."""
    return [str(m.content) for m in died.model.seen[-1] if m.type == "tool"]
