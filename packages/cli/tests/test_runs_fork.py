"""`rollcage fork` on runs: a program runs again with one thing changed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session, tool
from rollcage.errors import SessionError

AGENT = """
from rollcage import Session, tool

@tool(effect="read")
def look(item: str, shelf: int = 1) -> str:
    return item + "!"

@tool(effect="write")
def put(item: str) -> str:
    with open("done", "a") as file:
        file.write(item + " ")
    return "put " + item

with Session("agent"):
    try:
        put(look("pen"))
    except RuntimeError as error:
        put(str(error))
    put("more")
"""


@pytest.fixture
def agent(tmp_path: Path) -> list[str]:
    """A program that was run once."""
    (tmp_path / "agent.py").write_text(AGENT)
    command = [sys.executable, "agent.py"]
    subprocess.run(command, check=True)
    assert done() == "pen! more "
    return command


def done() -> str:
    return Path("done").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--at", 1, "--result", '"ink"'], 'put(item="ink")'),
        (["--at", 1, "--args", '{"item": "cup"}'], 'put(item="cup!")'),
        (["--at", 1, "--error", "boom"], 'put(item="boom")'),
        (["--at", 2, "--result", '"thrown"'], "it ran to its end"),
        ([], "it ran to its end"),
    ],
)
def test_a_fork_ends_before_its_first_new_write(
    cli: Any, agent: list[str], options: list[object], said: str
) -> None:
    (run,) = (row["run"] for row in cli("runs", "--json").data["runs"])
    told = cli("fork", run, *options, "--", *agent)
    assert told.code == 0, told.err
    assert said in told.out
    assert done() == "pen! more "
    fork, original = cli("runs", "--json").data["runs"]
    assert (original["run"], original["status"]) == (run, "ok")
    assert (fork["mode"], fork["source"]) == ("fork", run)
    assert fork["status"] == ("would_write" if "put" in said else "ok")
    assert cli("verify", fork["run"]).code == 0


def test_other_arguments_keep_those_that_are_not_named(cli: Any, agent: list[str]) -> None:
    cli("fork", "latest", "--at", 1, "--args", '{"shelf": 2}', "--", *agent)
    steps = {step["name"]: step for step in cli("show", "latest", "--json").data["steps"]}
    assert steps["look"]["args"] == {"item": "pen", "shelf": 2}


def test_a_live_fork_writes_and_says_so(cli: Any, agent: list[str]) -> None:
    told = cli("fork", "latest", "--at", 1, "--result", '"ink"', "--live", "--", *agent)
    assert told.code == 0, told.err
    assert 'It wrote: put(item="ink")' in told.out
    assert done() == "pen! more ink more "


def test_what_is_saved_is_what_the_next_program_is(cli: Any, agent: list[str]) -> None:
    told = cli("fork", "latest", "--at", 1, "--result", '"ink"', "--save", "fork.json")
    assert told.code == 0
    ended = subprocess.run(
        ["env", "ROLLCAGE_STAGE=fork:fork.json", *agent],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "would be written" in ended.stderr
    assert done() == "pen! more "


@tool(effect="write", name="shop_fork.never")
def never() -> None:
    raise AssertionError("it ran")


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("other", None, "which is one of 'agent', and opens a session of 'other'"),
        ("agent", "{", "can't be used"),
        ("agent", '{"store": "elsewhere", "run": "x", "name": "agent"}', "in .*elsewhere, and"),
        ("agent", '{"store": ".rollcage", "run": "x", "at": 1}', "say what changes there"),
        ("agent", '{"store": ".rollcage", "run": "x", "tools": ["none"]}', "No module named"),
    ],
)
def test_a_process_that_is_to_be_a_fork_runs_nothing_else(
    cli: Any, agent: list[str], name: str, file: str | None, said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cli("fork", "latest", "--save", "fork.json")
    if file is not None:
        Path("fork.json").write_text(file)
    monkeypatch.setenv("ROLLCAGE_STAGE", "fork:fork.json")
    with pytest.raises(SessionError, match=said), Session(name):
        never()
    with Session("agent", replay="offline") as session:  # it runs nothing
        assert session.stats.calls == 0


def test_a_function_gets_the_input_of_the_run(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "given.py").write_text(
        AGENT.partition("with Session")[0]
        + """
def program(order):
    with Session("given", input=order):
        put(look(order["item"]))
"""
    )
    command = "import given; given.program({'item': 'pen'})"
    subprocess.run([sys.executable, "-c", command], check=True)
    told = cli("fork", "latest", "--at", 1, "--result", '"ink"', "--run", "given:program")
    assert told.code == 0, told.err
    assert 'put(item="ink")' in told.out
    assert done() == "pen! "
