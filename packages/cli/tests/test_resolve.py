"""`rollcage resolve`: a person's word lets an unknown step be resumed."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

Cli = Callable[..., Any]
Payment = Callable[..., Any]


def test_it_happened_so_it_is_replayed(cli: Cli, dead: str, payment: Payment) -> None:
    result = cli("resolve", dead, 2, "--happened", "--result", '{"paid": 100, "by": "hand"}')
    assert result.code == 0
    assert "step 2 (pay) happened" in result.out
    resumed = payment("live")
    assert resumed.stdout == "{'paid': 100, 'by': 'hand'}\n"
    states = [s["state"] for s in cli("show", "@payment", "--json").data["steps"]]
    assert states == ["ran", "ran"]


def test_it_happened_and_gave_nothing(cli: Cli, dead: str, payment: Payment) -> None:
    assert cli("resolve", dead, 2, "--happened", "--json").data == {
        "run": dead, "step": 2, "name": "pay", "outcome": {"status": "ok"},
    }  # fmt: skip
    halted = payment("live")  # the program wants the result, and nobody has said it
    assert (halted.returncode, halted.stdout) == (1, "")
    assert cli("resolve", dead, 2, "--happened", "--result", "null").code == 0
    assert payment("live").stdout == "None\n"


def test_it_did_not_happen_so_it_runs_again(cli: Cli, dead: str, payment: Payment) -> None:
    result = cli("resolve", dead, 2, "--did-not-happen")
    assert "step 2 (pay) did not happen" in result.out
    assert payment("live").stdout == "{'paid': 100, 'by': 'the tool'}\n"
    ends = [(s["state"], s["attempt"]) for s in cli("show", dead, "--json").data["steps"]]
    assert ends == [("ran", 1), ("not_started", 1), ("ran", 2)]


def test_without_a_word_the_resume_halts(cli: Cli, dead: str, payment: Payment) -> None:
    halted = payment("live")
    assert halted.returncode == 1
    assert f"rollcage resolve {dead} 2" in halted.stderr
    assert cli("resolve", "@payment", 2, "--did-not-happen", "--json").data["run"] == dead
    assert payment("live").returncode == 0


def test_the_resolved_trace_verifies(cli: Cli, dead: str) -> None:
    cli("resolve", dead, 2, "--happened", "--result", '[1.0, {"$rollcage": 1}]')
    assert cli("verify", dead).code == 0


def test_only_an_unknown_step_can_be_resolved(cli: Cli, record: Any, dead: str) -> None:
    run = record()
    for step, said in [(1, "(look) of run"), (2, "is ok: there is nothing to resolve")]:
        result = cli("resolve", run, step, "--happened")
        assert result.code == 2
        assert said in result.err
    assert "has no step 50" in cli("resolve", run, 50, "--happened").err
    cli("resolve", dead, 2, "--did-not-happen")
    again = cli("resolve", dead, 2, "--happened", "--json")
    assert again.code == 2
    error = orjson.loads(again.err)["error"]
    assert error["code"] == "step_not_unknown"
    assert "there is nothing to resolve" in error["message"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "pass --happened [--result JSON], --did-not-happen, or --undone"),
        (["--undone", "--happened"], "--did-not-happen, or --undone"),
        (["--undone", "--result", "1"], "--undone takes no --result"),
        (["--did-not-happen", "--result", "1"], "--did-not-happen takes no --result"),
        (["--happened", "--result", "{nonsense"], "--result is not JSON"),
        (["--happened", "--result", "NaN"], "--result is not JSON"),
    ],
)
def test_options_that_make_no_sense(cli: Cli, dead: str, options: list[str], said: str) -> None:
    result = cli("resolve", dead, 2, *options)
    assert result.code == 2
    assert said in result.err
    assert cli("show", dead, "--json").data["steps"][1]["state"] == "unknown"


def test_a_run_in_use_is_left_alone(cli: Cli, dead: str, store: Path) -> None:
    path = store / "logs" / f"{dead}.jsonl"
    before = path.read_bytes()
    with path.open("rb") as trace:
        fcntl.flock(trace, fcntl.LOCK_EX)
        result = cli("resolve", dead, 2, "--happened", "--json")
    assert result.code == 4
    assert orjson.loads(result.err)["error"]["code"] == "run_in_use"
    assert path.read_bytes() == before


def test_a_corrupt_run_is_left_alone(cli: Cli, dead: str, edit: Any) -> None:
    edit(dead, lambda lines: [*lines[:2], lines[2].replace(b"put", b"pit"), *lines[3:]])
    assert cli("resolve", dead, 2, "--happened").code == 3


def test_a_file_outside_of_a_store(cli: Cli, dead: str, store: Path, tmp_path: Path) -> None:
    copy = tmp_path / f"{dead}.jsonl"
    copy.write_bytes((store / "logs" / copy.name).read_bytes())
    result = cli("resolve", copy, 2, "--happened")
    assert result.code == 2
    assert "outside of a store" in result.err
