"""`rollcage quickstart` as a user runs it: each framework in processes that are killed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rollcage.trace.recorded import trace_of
from rollcage_views import read_run

FRAMEWORKS = ["langchain", "autogen", "crewai"]


def rollcage(folder: Path, *arguments: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "rollcage", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, str]:
    """Play the quickstart once; returns its folder, and its output for machines and for people."""
    folder = tmp_path_factory.mktemp("quickstart")
    ended = rollcage(folder, "quickstart", "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder, json.loads(ended.stdout), ended.stderr


def test_each_framework_that_is_installed_plays(played: tuple[Path, Any, str]) -> None:
    _, data, said = played
    assert data["frameworks"] == FRAMEWORKS
    assert len(data["claims"]) == 5 * len(FRAMEWORKS) + 1
    assert all(claim["true"] for claim in data["claims"])
    assert said.count("6 mails: each customer got 2") == len(FRAMEWORKS)
    assert said.count("3 mails are out: each customer got 1") == len(FRAMEWORKS)


def test_it_fits_80_columns_and_has_no_colour(played: tuple[Path, Any, str]) -> None:
    said = played[2]
    assert max(map(len, said.splitlines())) <= 80
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", said)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_log_says_the_same(played: tuple[Path, Any, str], framework: str) -> None:
    folder, data, _ = played
    run = read_run(trace_of(folder / data["store"], data["runs"][framework]["run"]))
    first, second = run.attempts[:2]
    assert (first.status, len(first.steps)) == ("", 8)
    assert (second.status, second.hits, len(second.steps)) == ("ok", 8, 2)
    assert [step.name for step in run.steps[10:]] == ["recall"] * 3


def test_the_commands_that_it_prints_work(played: tuple[Path, Any, str]) -> None:
    folder, _, said = played
    there = folder / "rollcage-quickstart"
    assert f"    cd {there.name}\n" in said
    commands = re.findall(r"^ {4}rollcage (.*)$", said, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["jobs", "show", "show", "undo"]
    assert len(list((there / "outbox").iterdir())) == 3
    results = [rollcage(there, *command.split()) for command in commands[:-1]]
    results.append(rollcage(there, *commands[-1].split(), "--yes"))
    assert [result.returncode for result in results] == [0] * 4, results
    assert re.search(r"^ +2  ok +.*  1-8 +2 *$", results[1].stdout, re.MULTILINE)
    assert "3 effects undone" in results[3].stdout
    assert not list((there / "outbox").iterdir())
