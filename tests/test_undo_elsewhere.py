"""The effects of a LangChain agent are undone by a process that can't import any framework."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(__file__).with_name("undo_elsewhere.py")
BLOCKER = """
import sys

FRAMEWORKS = ("langchain", "langgraph", "autogen", "crewai")

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.removeprefix("rollcage_").startswith(FRAMEWORKS):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder and a database that an agent of LangChain has changed."""
    folder = tmp_path_factory.mktemp("elsewhere") / "recorded"
    command = [sys.executable, str(COMMAND), "record", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "an agent of LangChain changed the folder and the database\n"
    return folder


@pytest.fixture
def here(recorded: Path, tmp_path: Path) -> Path:
    """Return a copy: an undo finds its folder by the place of its tools."""
    return shutil.copytree(recorded, tmp_path / "here")


@pytest.fixture
def blocked(tmp_path: Path) -> Run:
    """Return a command that runs Python without any framework."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BLOCKER)
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "error", "COLUMNS": "160"}

    def run(*arguments: str, cwd: Path) -> Any:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_it_is_taken_back_and_verified(here: Path, blocked: Run) -> None:
    ended = blocked(str(COMMAND), "undo", str(here), cwd=here)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "frameworks here: none"
    assert sum(line.endswith(": verified") for line in lines) == 8
    assert lines[-1] == "both are as they were"
    assert (here / "workspace/notes.txt").read_text() == "do not lose this\n"
    assert not (here / "workspace/archive").exists()
    with closing(sqlite3.connect(here / "shop.db")) as database:
        rows = database.execute("SELECT * FROM item ORDER BY id").fetchall()
    assert rows == [(1, "tea", 3), (2, "cup", 5.5)]
    assert ended.stderr == ""


@pytest.mark.parametrize("command", [["show", "latest"], ["verify", "latest"], ["runs"]])
def test_the_other_commands_need_no_framework_either(
    here: Path, blocked: Run, command: list[str]
) -> None:
    ended = blocked("-m", "rollcage", *command, cwd=here)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("module", ["langchain", "langgraph.graph", "crewai", "autogen_core"])
def test_no_framework_can_be_imported_there(blocked: Run, tmp_path: Path, module: str) -> None:
    ended = blocked("-c", f"import {module}", cwd=tmp_path)
    assert "ModuleNotFoundError: No module named" in ended.stderr


def test_where_a_framework_is_the_command_proves_nothing(here: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(COMMAND), "undo", str(here)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout.startswith("frameworks here: langchain")


def test_what_is_not_as_it_was_is_said(here: Path, blocked: Run) -> None:
    (here / "workspace/prices.csv").write_text("somebody else's")
    ended = blocked(str(COMMAND), "undo", str(here), cwd=here)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1] == "NOT as they were (exit code 1)"
    assert (here / "workspace/prices.csv").read_text() == "somebody else's"
