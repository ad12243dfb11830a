"""`rollcage demo` as a user runs it: real processes, a real agent, real files, a real database."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rollcage import list_runs
from rollcage.trace.recorded import trace_of
from rollcage_views import read_run


class Played(NamedTuple):
    folder: Path
    said: str
    data: dict[str, Any]


def rollcage(folder: Path, *arguments: str, **environment: str) -> Any:
    command = [sys.executable, "-m", "rollcage", *arguments]
    env = {**os.environ, "COLUMNS": "140", **environment}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, encoding="utf-8", check=False
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Play the demo once, for machines: what it says to people is on stderr then."""
    folder = tmp_path_factory.mktemp("demo")
    result = rollcage(folder, "demo", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    return Played(folder / "rollcage-demo", result.stderr, json.loads(result.stdout))


def test_it_says_what_happens(played: Played) -> None:
    said = played.said
    assert len(re.findall(r"^ +\d+ +hit ", said, re.MULTILINE)) == 8
    assert len(re.findall(r"^ +\d+ +ran ", said, re.MULTILINE)) == 8 + 2 + 1 + 2 + 6
    assert "8 steps were replayed: nothing ran" in said
    assert "embedded null byte" in said
    assert "the model read why: ../salaries.txt is outside of the workspace" in said
    assert "in the copy it finds line 4: the line, or one before it, was changed" in said
    assert "the drift is in the trace: output_wrong_type at $" in said
    assert "nothing ran, and the trace says why: send_reminder: to: Field required" in said
    assert "$ rollcage undo" in said
    assert said.count("reversible") == 6
    assert len(re.findall(r"^ +step \d \(\w+\): verified$", said, re.MULTILINE)) == 6
    assert "6 effects were undone, and each was verified" in said
    assert "✗" not in said
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", said)


def test_the_traces_say_the_same(played: Played) -> None:
    store = played.folder / ".rollcage"
    runs = [read_run(trace_of(store, info.run)) for info in reversed(list_runs(store))]
    resumed, blocked, drifted, corrected, wrecked = runs
    assert [each.status for each in runs] == ["ok", "ok", "error", "ok", "undone"]
    assert [attempt.status for attempt in resumed.attempts] == ["error", "ok"]
    assert [row.attempt for row in resumed.steps] == [1] * 9 + [2] * 2
    assert resumed.attempts[1].replayed == [(1, 8)]
    assert [row.code for row in blocked.refused] == ["path_escape"]
    assert len(blocked.steps) == len(drifted.steps) == len(corrected.steps) == 1
    assert len(corrected.refused) == 1
    assert [row.undone for row in wrecked.steps if row.undoes is None] == ["verified"] * 6


def test_the_world_holds_each_write_once(played: Played) -> None:
    folder = played.folder
    with closing(sqlite3.connect(folder / "orders.db")) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (3,)
    workspace = folder / "workspace"
    assert (workspace / "log.txt").read_text() == "report written\n"
    sent = workspace / "outbox" / "report.md"
    assert sent.read_text() == (workspace / "report.md").read_text()


def test_what_the_agent_wrecked_is_as_it_was(played: Played) -> None:
    folder = played.folder
    assert "1,Ann,120.50\n" in (folder / "workspace" / "orders.csv").read_text()
    with closing(sqlite3.connect(folder / "orders.db")) as connection:
        rows = connection.execute("SELECT * FROM customers ORDER BY id").fetchall()
    assert rows == [(1, "Ann", "ann@example.org"), (2, "Bob", "bob@example.org"), (3, "Cid", None)]


def test_the_commands_that_it_prints_work(played: Played) -> None:
    folder, said, _ = played
    commands = re.findall(r"^ +rollcage (.*)$", said, re.MULTILINE)
    results = [rollcage(folder.parent, *command.split()) for command in commands]
    assert [command.split()[0] for command in commands] == [
        "runs", "show", "show", "show", "show", "verify", "show",
    ]  # fmt: skip
    assert [result.returncode for result in results] == [0, 0, 0, 0, 0, 3, 0]
    assert re.search(r"^ +2 +ok +\S+ \S+ +1\D8 ", results[1].stdout, re.MULTILINE)
    assert "path_escape" in results[2].stdout
    assert "output_wrong_type" in results[3].stdout
    assert "1 call refused" in results[4].stdout
    assert "line 4" in results[5].stdout
    assert "ran, undone" in results[6].stdout


def test_for_machines(played: Played) -> None:
    data = played.data
    assert data.keys() == {"folder", "store", "runs", "claims"}
    assert data["runs"].keys() == {
        "crashed",
        "resumed",
        "blocked",
        "drifted",
        "corrected",
        "wrecked",
    }
    assert all(claim["true"] for claim in data["claims"])


UNGUARDED = """
from langchain.agents.middleware import AgentMiddleware

def guard_tools(tools, session, effects, contracts):
    return tools

class RollcageMiddleware(AgentMiddleware):
    def __init__(self, session):
        pass
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("module", "body", "said"),
    [
        ("rollcage_langchain", UNGUARDED, "do not show this: eight steps ran; the ninth failed"),
        ("langchain_core", "raise ImportError('broken')", "the agent left no run"),
    ],
)
def test_the_demo_claims_only_what_traces_show(
    tmp_path: Path, module: str, body: str, said: str
) -> None:
    """An adapter that guards nothing, and a process that can't begin."""
    (tmp_path / f"{module}.py").write_text(body)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = rollcage(tmp_path, "demo", "--json", PYTHONPATH=path)
    assert result.returncode == 1
    assert said in result.stderr
    assert "claim_failed" in result.stderr
    assert "Traceback" not in result.stderr
    assert {"said": "eight steps ran", "true": True} not in json.loads(result.stdout)["claims"]


MEDDLER = """
import sys
from pathlib import Path

if "undo" in sys.orig_argv:
    Path("workspace/orders.csv").write_text("somebody else's")
"""


@pytest.mark.nightly
def test_the_demo_claims_only_verified_undos(tmp_path: Path) -> None:
    """Somebody changes a file between the agent and the undo."""
    (tmp_path / "sitecustomize.py").write_text(MEDDLER)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = rollcage(tmp_path, "demo", "--dir", "here", PYTHONPATH=path)
    assert result.returncode == 1
    assert (tmp_path / "here" / ".rollcage").is_dir()
    assert "somebody else has changed it since" in re.sub(r"\s+", " ", result.stdout)
    assert "Nothing was changed: resolve the conflict first." in result.stdout
    assert "✗ 0 effects were undone" in result.stdout
    assert "do not show this: 0 effects were undone" in result.stderr
