"""`rollcage pause` and `unpause`: they reach a live process, and every listing tells of it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session, list_runs

Cli = Callable[..., Any]
Record = Callable[..., str]

JOB = """
import sys
from rollcage import tool
from rollcage import Session

@tool
def put(number: int) -> int:
    return number

with Session("live", store=sys.argv[1]) as session:
    for number, _ in enumerate(sys.stdin):
        print(put(number), flush=True)
"""


@pytest.fixture
def broken(store: Path) -> str:
    """A run that did not get to its end."""
    with pytest.raises(KeyError), Session("job", store=store) as session:
        raise KeyError
    return session.run_id


@contextmanager
def job(store: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that makes a call for each line that it is given, and has made one."""
    with subprocess.Popen(
        [sys.executable, "-c", JOB, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        ask(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def ask(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_it_pauses_another_process_and_every_listing_tells(cli: Cli, store: Path) -> None:
    with job(store) as process:
        said = cli("pause", "@live", "--reason", "the budget", "--by", "ann")
        run = list_runs(store)[0].run
        assert f"run {run} is paused" in said.out
        assert f"rollcage unpause {run}" in said.out
        ask(process)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        states = [each["state"] for each in cli("show", "@live", "--json").data["steps"]]
        assert states in (["ran"], ["ran", "not_started"])
        shown = cli("show", "@live").out
        assert "It is paused by ann since 20" in shown
        assert f": the budget. To let it go on: rollcage unpause {run}" in shown
        assert "paused by ann since 20" in cli("runs").out
        assert "running, paused" in cli("jobs").out
        for told in (
            cli("runs", "--json").data["runs"][0],
            cli("jobs", "--json").data["jobs"][0],
            cli("show", "@live", "--json").data,
        ):
            assert told["paused"] | {"time": 0} == {
                "by": "ann", "reason": "the budget", "time": 0, "kind": "pause",
            }  # fmt: skip
        assert "It goes on." in cli("unpause", "@live").out
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        assert cli("runs", "--json").data["runs"][0]["paused"] is None


def test_watch_tells_that_it_is_paused_and_goes_on(cli: Cli, store: Path) -> None:
    with job(store) as process, subprocess.Popen(
        [sys.executable, "-m", "rollcage", "watch", "live", "--store", str(store),
         "--every", "0.05"],
        stdout=subprocess.PIPE, text=True,
    ) as watching:  # fmt: skip
        assert watching.stdout is not None
        lines = iter(watching.stdout)
        assert "put" in next(line for line in lines if "put" in line)
        cli("pause", "@live", "--reason", "a look", "--by", "ann")
        assert "paused by ann since" in next(lines)
        cli("unpause", "@live")
        assert "it goes on" in next(lines)
        assert process.stdin is not None
        process.stdin.close()
        assert watching.wait(60) == 0


def test_for_machines(cli: Cli, broken: str) -> None:
    run = broken
    said = cli("pause", run, "--reason", "why \x1b", "--by", "ann", "--json").data
    order = said.pop("order")
    assert said == {"run": run, "paused": True}
    assert order.pop("time") > 0
    assert order == {"by": "ann", "reason": "why \x1b", "kind": "pause"}
    said = cli("unpause", run, "--json").data
    assert said.pop("lifted")["by"] == "ann"
    assert said == {"run": run, "paused": False}


def test_a_second_word_says_whose_it_replaces(cli: Cli, broken: str) -> None:
    run = broken
    cli("pause", run, "--by", "ann", "--reason", "one")
    assert "It was paused by ann since" in cli("pause", run, "--by", "bob").out
    assert f"Run {run} was paused by bob since" in cli("unpause", run).out


def test_a_stop_and_a_pause_name_each_other(cli: Cli, broken: str) -> None:
    run = broken
    cli("pause", run)
    refused = cli("stop", run, "--lift")
    assert refused.code == 2
    assert "is not stopped but paused by" in refused.err
    assert f"rollcage unpause {run}" in refused.err
    assert cli("doctor").code == 1
    assert f"rollcage unpause {run}" in cli("doctor").out
    assert cli("stop", run, "--by", "bob").code == 0
    for command in ("pause", "unpause"):
        refused = cli(command, run)
        assert refused.code == 2
        assert "stopped by bob" in refused.err
        assert f"rollcage stop {run} --lift" in refused.err
    assert cli("stop", run, "--lift").code == 0
    assert cli("unpause", run).code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pause", "latest"], "can't be paused: it ended as 'ok'"),
        (["unpause", "latest"], "is not paused: there is nothing to lift"),
        (["pause", "01a1fd42-024b-7930-99ac-d6a8ee306f29"], "no run begins or ends with"),
    ],
)
def test_what_makes_no_sense(cli: Cli, record: Record, arguments: list[str], said: str) -> None:
    record()
    result = cli(*arguments)
    assert result.code == 2
    assert said in result.err


def test_a_file_outside_of_a_store_cannot_be_paused(
    cli: Cli, record: Record, store: Path, tmp_path: Path
) -> None:
    run = record()
    lone = tmp_path / f"{run}.jsonl"
    lone.write_bytes((store / "logs" / f"{run}.jsonl").read_bytes())
    refused = cli("pause", str(lone))
    assert refused.code == 2
    assert "outside of a store" in refused.err


def test_a_copy_of_a_paused_run_is_paused(cli: Cli, broken: str, tmp_path: Path) -> None:
    run = broken
    cli("pause", run, "--by", "ann")
    copied = f"sqlite:///{tmp_path / 'copied.db'}"
    assert cli("copy", "--to", copied).code == 0
    refused = cli("stop", run, "--lift", "--store", copied)
    assert "not stopped but paused" in refused.err
    assert cli("unpause", run, "--store", copied).code == 0
