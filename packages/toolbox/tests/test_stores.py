"""No tool touches a store: not its key, not its logs, by whichever way."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from rollcage import CaptureFailed, Contract, Session, list_runs, tool
from rollcage_governance import Registry
from rollcage_policy import Permissions
from rollcage_toolbox import PathRefused, Workspace
from rollcage_toolbox.sql import Database
from rollcage_toolbox.store_files import is_store

KEY = "docs/keys/seal"


@tool(effect="write", secret=["pin"])
def unlock(pin: str) -> str:
    return "open"


def store_at(path: Path) -> Path:
    """A store with a finished run in it."""
    with Session("job", store=path):
        unlock("1234")
    assert (path / KEY).is_file()
    return path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def workspace(here: Path) -> Iterator[Workspace]:
    with Workspace(here, read_hard_links=True) as workspace:
        yield workspace


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    with pytest.raises(PathRefused) as error:
        call(*args, **kwargs)
    assert error.value.code == "path_store"


def every_way(workspace: Workspace, at: str) -> None:
    """Each tool that could read or change a store at a path."""
    log = next(Path(at, "logs").iterdir()).name
    for name in (KEY, "bell", f"logs/{log}", "docs/names/job", "docs/registry/lines"):
        path = f"{at}/{name}"
        refused(workspace.read_file, path)
        refused(workspace.hash_file, path)
        refused(workspace.write_file, path, "forged", overwrite=True)
        refused(workspace.append_file, path, "forged")
        refused(workspace.delete_file, path)
        refused(workspace.copy_file, path, "stolen")
        refused(workspace.move_file, path, "stolen")
    workspace.write_file("mine.txt", "mine", overwrite=True)
    refused(workspace.copy_file, "mine.txt", f"{at}/{KEY}", overwrite=True)
    refused(workspace.move_file, "mine.txt", f"{at}/{KEY}", overwrite=True)
    refused(workspace.list_dir, at)
    refused(workspace.make_dir, f"{at}/docs/approvals")
    refused(workspace.delete_dir, at)
    refused(workspace.archive, at, "all.zip")
    assert [each for each in workspace.find_files("**") if each.startswith(f"{at}/")] == []


def test_what_a_store_keeps_beside_its_logs(workspace: Workspace) -> None:
    at = store_at(Path("deep/own"))
    every_way(workspace, str(at))
    refused(workspace.delete_dir, str(at))
    assert workspace.find_files("**") == ["mine.txt"]
    with Workspace(at / "docs" / "keys") as inside:
        refused(inside.read_file, "seal")
    os.link(at / KEY, "hard")
    refused(workspace.read_file, "hard")


def test_a_store_that_holds_a_registry_and_no_run(workspace: Workspace) -> None:
    Registry("tools").propose(Contract(name="look", parameters={}), by="ann")
    refused(workspace.read_file, "tools/docs/registry/lines")
    refused(workspace.write_file, "tools/docs/registry/lines", "forged", overwrite=True)
    refused(workspace.delete_dir, "tools")


def test_a_store_of_logs_whose_other_parts_are_lost(workspace: Workspace) -> None:
    at = store_at(Path("own"))
    shutil.rmtree(at / "docs")
    refused(workspace.list_dir, "own")
    log = next((at / "logs").iterdir()).name
    Path("mine/logs").mkdir(parents=True)
    Path("mine/logs", log).write_text("not a run")
    assert workspace.read_file(f"mine/logs/{log}") == "not a run"


def test_the_default_store_next_to_the_agent(workspace: Workspace) -> None:
    store_at(Path(".rollcage"))
    every_way(workspace, ".rollcage")
    kinds = {entry["name"]: entry["kind"] for entry in workspace.list_dir(".")}
    assert kinds[".rollcage"] == "refused"


def test_inside_of_a_session_an_agent_does_not_get_the_key(workspace: Workspace) -> None:
    store_at(Path(".rollcage"))
    with Session("agent") as session:
        refused(workspace.read_file, f".rollcage/{KEY}")
        with pytest.raises(CaptureFailed, match="store"):
            workspace.write_file(".rollcage/docs/decisions/x", "{}")
        assert session.stats.misses == 1  # the read; the write could not even be prepared
    with Session("strict", gate=[Permissions("strict")]):
        refused(workspace.read_file, f".rollcage/{KEY}")
        workspace.write_file("notes.txt", "hello")


def test_one_of_any_name_and_one_that_is_made_later(workspace: Workspace) -> None:
    store_at(Path("deep/er/evidence"))
    every_way(workspace, "deep/er/evidence")
    refused(workspace.archive, "deep", "all.zip")
    assert workspace.list_dir("deep")[0]["name"] == "er"
    assert workspace.list_dir("deep/er")[0]["kind"] == "refused"


def test_the_folder_above_it_is_renamed(workspace: Workspace) -> None:
    store_at(Path("before/store"))
    Path("before").rename("after")
    every_way(workspace, "after/store")


def test_parts_of_a_store_are_lost(workspace: Workspace) -> None:
    for index, lost in enumerate(("bell", KEY, "docs/names/job")):
        at = store_at(Path(f"store{index}"))
        (at / lost).unlink(missing_ok=True)
        refused(workspace.list_dir, str(at))
        refused(workspace.write_file, f"{at}/{lost}", "forged")


def test_the_agent_can_not_make_the_default_one_first(workspace: Workspace) -> None:
    refused(workspace.make_dir, ".rollcage")
    refused(workspace.write_file, ".Rollcage", "x")


def test_by_links(workspace: Workspace) -> None:
    store = store_at(Path("../elsewhere").resolve() / Path.cwd().name)
    Path("link").symlink_to(store)
    Path("key-link").symlink_to(store / KEY)
    os.link(store / KEY, "hard")
    for path in (f"link/{KEY}", "key-link"):
        with pytest.raises((PathRefused, NotADirectoryError)):
            workspace.read_file(path)
    refused(workspace.read_file, "hard")
    refused(workspace.write_file, "hard", "forged", overwrite=True)


@pytest.mark.parametrize("inside", ["logs", "docs", "docs/blobs"])
def test_a_workspace_in_a_store(inside: str) -> None:
    store = store_at(Path("store"))
    (store / inside).mkdir(parents=True, exist_ok=True)
    with Workspace(store / inside) as workspace:
        refused(workspace.list_dir, ".")
        refused(workspace.write_file, "x", "y")


def test_a_workspace_that_is_a_store_too(workspace: Workspace) -> None:
    store_at(Path())
    for name in (KEY, "bell", "docs/names/job"):
        refused(workspace.read_file, name)
        refused(workspace.delete_file, name)
    refused(workspace.list_dir, "logs")
    workspace.write_file("notes.txt", "hello")
    assert workspace.read_file("notes.txt") == "hello"
    assert workspace.find_files("**") == ["notes.txt"]


def test_a_folder_that_only_looks_like_one_is_let_be(workspace: Workspace) -> None:
    Path("experiments/runs/first").mkdir(parents=True)
    Path("experiments/index.jsonl").write_text("{}\n")
    workspace.write_file("experiments/runs/first/log.txt", "fine")
    assert workspace.read_file("experiments/index.jsonl") == "{}\n"


def test_sql_does_not_open_its_files() -> None:
    store = store_at(Path("store"))
    Path("link").symlink_to(store)
    for place in (store / "bell", store / "logs" / "x.db", Path("link/bell")):
        with pytest.raises(ValueError, match="no tool touches"):
            Database(f"sqlite:///{place}")
        database = Database(sa.create_engine(f"sqlite:///{place}"))
        with pytest.raises(ValueError, match="no tool touches"):
            database.query("SELECT 1")


def test_sql_does_not_open_a_file_of_a_store_that_was_made_since() -> None:
    folder = Path("data")
    (folder / "logs").mkdir(parents=True)
    sqlite3.connect(folder / "bell").close()
    (folder / "bell").touch()
    database = Database(f"sqlite:///{folder}/bell")
    store_at(Path("other"))
    (folder / "logs").rmdir()
    Path("other/logs").rename(folder / "logs")
    with pytest.raises(ValueError, match="no tool touches"):
        database.query("SELECT 1")


@pytest.mark.parametrize("whose", ["this process's", "another's"])
def test_a_store_in_a_sqlite_file(workspace: Workspace, whose: str) -> None:
    program = """
import rollcage

@rollcage.tool(effect="write")
def note() -> None: ...

with rollcage.Session("job", store="sqlite:///runs.db"):
    note()
"""
    Path("deep").mkdir()
    subprocess.run([sys.executable, "-c", program], check=True)
    if whose == "this process's":
        assert list_runs("sqlite:///runs.db")[0].status == "ok"
    os.link("runs.db", "hard")
    for name in ("runs.db", "runs.db-live", "hard"):
        refused(workspace.read_file, name)
        refused(workspace.write_file, name, "forged", overwrite=True)
        refused(workspace.delete_file, name)
        refused(workspace.move_file, name, "stolen")
        refused(workspace.copy_file, name, "stolen")
        with pytest.raises(ValueError, match="no tool touches"):
            Database(f"sqlite:///{name}")
    kinds = {entry["name"]: entry["kind"] for entry in workspace.list_dir(".")}
    assert (kinds["runs.db"], kinds["hard"]) == ("refused", "refused")
    assert workspace.find_files("**") == []
    sqlite3.connect("mine.db").execute("CREATE TABLE mine (a)").connection.close()
    assert workspace.find_files("**") == ["mine.db"]
    assert Database("sqlite:///mine.db").query("SELECT * FROM mine")["rows"] == []


def test_what_reads_a_store_by_right_still_does() -> None:
    store = store_at(Path("store"))
    assert len(list_runs(store)) == 1
    assert is_store(None, str(store))
