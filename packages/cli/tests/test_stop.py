"""`rollcage stop`: it reaches a live process, its resumes, and says how to go on."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import RunStopped, Session, SessionHalted
from rollcage.store import JsonlStore

Cli = Callable[..., Any]
Record = Callable[..., str]

JOB = """
import sys
from rollcage import RunStopped, Session, tool

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
    assert [step["state"] for step in shown["steps"]] == ["ran"] * 3
    assert cli("verify", "@live").code == 0
    assert cli("runs", "--json").data["runs"][0]["status"] == "halted"


def test_it_says_what_that_means_and_how_it_ends(cli: Cli, record: Record) -> None:
    run = record()
    result = cli("stop", run)
    assert f"run {run} is stopped" in result.out
    assert f"rollcage stop {run} --lift" in result.out
    result = cli("stop", run, "--lift")
    assert result.out == f"run {run} may be resumed\n"


def test_for_machines(cli: Cli, record: Record) -> None:
    run = record()
    said = cli("stop", run, "--reason", "why \x1b", "--by", "ann", "--json").data
    assert said == {"run": run, "stopped": True, "by": "ann", "reason": "why \x1b"}
    assert cli("stop", run, "--lift", "--json").data == {"run": run, "stopped": False}


def test_whoever_says_it_is_this_user_unless_said(
    cli: Cli, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record()
    monkeypatch.setenv("LOGNAME", "bob")
    assert cli("stop", run, "--json").data["by"] == "bob"

    def nobody() -> str:
        raise KeyError("uid")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert cli("stop", run, "--json").data["by"] == ""


def test_a_resume_waits_for_the_lift(cli: Cli, record: Record, store: Path) -> None:
    run = record()
    cli("stop", run)
    with pytest.raises(RunStopped), Session("job", store=store, replay="resume"):
        pytest.fail("it was resumed")
    cli("stop", run, "--lift")
    with Session("job", store=store, replay="resume") as session:
        assert session.halted is None


def test_an_order_is_lifted_where_it_was_given(cli: Cli, record: Record, store: Path) -> None:
    first = record()
    with (
        pytest.raises(RunStopped),
        Session("job", store=store, source=first, on_divergence="warn") as session,
    ):
        cli("stop", first)
        with pytest.raises(SessionHalted):
            session.call(lambda: None)
    result = cli("stop", session.run_id, "--lift")
    assert result.code == 2
    assert f"rollcage stop {first} --lift" in result.err
    assert cli("stop", first, "--lift").code == 0
    assert JsonlStore(store).stop_order(session.run_id) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["latest", "--lift"], "is not stopped: there is nothing to lift"),
        (["latest", "--lift", "--reason", "x"], "for a new stop, not for --lift"),
        (["latest", "--reason", "x" * 5000], "too long"),
        (["01a1fd42-024b-7930-99ac-d6a8ee306f29"], "there is no run"),
        (["01a1fd42-024b-7930-99ac-d6a8ee306f29", "--lift"], "there is no run"),
        (["@other"], "no run is named 'other'"),
    ],
)
def test_what_makes_no_sense(cli: Cli, record: Record, arguments: list[str], said: str) -> None:
    record()
    result = cli("stop", *arguments)
    assert result.code in (2, 5)
    assert said in result.err


def test_a_file_outside_of_a_store_has_nobody_to_stop(
    cli: Cli, record: Record, store: Path, tmp_path: Path
) -> None:
    run = record()
    path = tmp_path / f"{run}.jsonl"
    path.write_bytes((store / "runs" / f"{run}.jsonl").read_bytes())
    result = cli("stop", path)
    assert (result.code, "outside of a store" in result.err) == (2, True)


def test_a_name_that_can_not_be_seen_is_refused(cli: Cli, record: Record, store: Path) -> None:
    run = record()
    refused = cli("stop", run, "--by", "ann\u200b")
    assert refused.code == 2
    assert "U+200B" in refused.err
    assert JsonlStore(store).stop_order(run) is None
