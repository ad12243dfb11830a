"""`rollcage stop`: it reaches a live process, its resumes, and says how to go on."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import RunStopped, Session, order_of, tool

Cli = Callable[..., Any]
Record = Callable[..., str]

JOB = """
import sys
from rollcage import RunStopped, tool
from rollcage import Session

@tool
def put(number: int) -> int:
    return number

try:
    with Session("live", store=sys.argv[1]) as session:
        for number, _ in enumerate(sys.stdin):
            print(put(number), flush=True)
except RunStopped as error:
    print(error, flush=True)
"""


@tool
def put(number: int) -> int:
    return number


@pytest.fixture
def failed(store: Path) -> str:
    """A run that a next session would go on with."""
    with pytest.raises(ValueError, match="it fails"), Session("job", store=store) as session:
        raise ValueError("it fails")
    return session.run_id


def test_it_stops_another_process_that_never_asked(cli: Cli, store: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", JOB, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(3):
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{number}\n"
        result = cli("stop", "@live", "--reason", "it spends too much", "--by", "ann")
        assert result.code == 0
        process.stdin.write("\n")
        process.stdin.flush()
        said = process.stdout.readline()
    assert "was stopped by ann: it spends too much. To let it go on: rollcage stop" in said
    shown = cli("show", "@live", "--json").data
    assert [step["state"] for step in shown["steps"]] == ["ran"] * 3 + ["not_started"]
    assert cli("verify", "@live").code == 0
    assert cli("runs", "--json").data["runs"][0]["status"] == "halted"


def test_it_says_what_that_means_and_how_it_ends(cli: Cli, failed: str) -> None:
    run = failed
    result = cli("stop", run)
    assert f"run {run} is stopped" in result.out
    assert f"rollcage stop {run} --lift" in result.out
    result = cli("stop", run, "--lift")
    assert result.out == f"run {run} may be resumed\n"


def test_for_machines(cli: Cli, failed: str) -> None:
    run = failed
    said = cli("stop", run, "--reason", "why \x1b", "--by", "ann", "--json").data
    assert said == {"run": run, "stopped": True, "by": "ann", "reason": "why \x1b"}
    assert cli("stop", run, "--lift", "--json").data == {"run": run, "stopped": False}


def test_by_default_the_order_is_of_this_user(
    cli: Cli, failed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = failed
    monkeypatch.setenv("LOGNAME", "bob")
    assert cli("stop", run, "--json").data["by"] == "bob"

    def nobody() -> str:
        raise KeyError("uid")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert cli("stop", run, "--json").data["by"] == ""


def test_a_resume_waits_for_the_lift(cli: Cli, failed: str, store: Path) -> None:
    run = failed
    cli("stop", run)
    with pytest.raises(RunStopped), Session("job", store=store, replay="resume"):
        put(1)
    cli("stop", run, "--lift")
    with Session("job", store=store, replay="resume"):
        assert put(1) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["latest", "--lift"], "is not stopped: there is nothing to lift"),
        (["latest", "--lift", "--reason", "x"], "for a new stop, not for --lift"),
        (["01a1fd42-024b-7930-99ac-d6a8ee306f29"], "no run begins or ends with"),
        (["01a1fd42-024b-7930-99ac-d6a8ee306f29", "--lift"], "no run begins or ends with"),
        (["@other"], "no run is named 'other'"),
    ],
)
def test_what_makes_no_sense(cli: Cli, failed: str, arguments: list[str], said: str) -> None:
    assert failed
    result = cli("stop", *arguments)
    assert result.code == 2
    assert said in result.err


def test_a_file_outside_of_a_store_has_nobody_to_stop(
    cli: Cli, record: Record, store: Path, tmp_path: Path
) -> None:
    run = record()
    path = tmp_path / f"{run}.jsonl"
    path.write_bytes((store / "logs" / f"{run}.jsonl").read_bytes())
    result = cli("stop", path)
    assert (result.code, "outside of a store" in result.err) == (2, True)


def test_a_name_that_can_not_be_seen_is_refused(cli: Cli, record: Record, store: Path) -> None:
    run = record()
    refused = cli("stop", run, "--by", "ann\u200b")
    assert refused.code == 2
    assert "U+200B" in refused.err
    assert order_of(store, run) is None


def test_a_run_that_is_over_can_not_be_stopped(cli: Cli, record: Record, store: Path) -> None:
    run = record()
    result = cli("stop", run)
    assert (result.code, result.out) == (2, "")
    assert "ended as 'ok', and nothing runs in it any more" in result.err
    assert f"rollcage undo {run}" in result.err
    assert order_of(store, run) is None
