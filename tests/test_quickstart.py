"""`rollcage quickstart` as a user runs it: each framework in processes that are killed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rollcage.trace.recorded import trace_of
from rollcage_views import read_run

FRAMEWORKS = ["langchain", "autogen", "crewai"]


class Played(NamedTuple):
    frameworks: list[str]
    folder: Path
    data: Any
    said: str


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


@pytest.fixture(
    scope="module",
    params=[["langchain"], pytest.param(FRAMEWORKS, marks=pytest.mark.nightly)],
    ids=["one", "all"],
)
def played(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Played:
    """Play the quickstart once, of one framework or of all that are installed."""
    folder = tmp_path_factory.mktemp("quickstart")
    named = [] if request.param == FRAMEWORKS else ["--framework", *request.param]
    ended = rollcage(folder, "quickstart", "--json", *named)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return Played(request.param, folder, json.loads(ended.stdout), ended.stderr)


def test_each_framework_plays(played: Played) -> None:
    data, said, count = played.data, played.said, len(played.frameworks)
    assert data["frameworks"] == played.frameworks
    assert len(data["claims"]) == 5 * count + 1
    assert all(claim["true"] for claim in data["claims"])
    assert said.count("6 mails: each customer got 2") == count
    assert said.count("3 mails are out: each customer got 1") == count


def test_it_fits_80_columns_and_has_no_colour(played: Played) -> None:
    assert max(map(len, played.said.splitlines())) <= 80
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", played.said)


def test_the_log_says_the_same(played: Played) -> None:
    for framework in played.frameworks:
        store, run = played.data["store"], played.data["runs"][framework]["run"]
        told = read_run(trace_of(played.folder / store, run))
        first, second = told.attempts[:2]
        assert (first.status, len(first.steps)) == ("", 8)
        assert (second.status, second.hits, len(second.steps)) == ("ok", 8, 2)
        assert [step.name for step in told.steps[10:]] == ["recall"] * 3


def test_the_commands_that_it_prints_work(played: Played) -> None:
    _, folder, _, said = played
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
