"""`rollcage resolve`: a person's word lets an unknown step be resumed."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Session, UnknownOutcome

Cli = Callable[..., Any]
Payment = Callable[..., Any]


def test_it_happened_so_it_is_replayed(cli: Cli, dead: str, payment: Payment) -> None:
    result = cli("resolve", dead, 2, "--happened", "--result", '{"paid": 100, "by": "hand"}')
    assert result.code == 0
    assert "step 2 (pay) happened" in result.out
    resumed = payment("live")
    assert resumed.stdout == "{'paid': 100, 'by': 'hand'}\n"
    states = [s["state"] for s in cli("show", "@payment", "--json").data["steps"]]
    assert states == ["hit", "hit"]
    step = cli("show", dead, "--json").data["steps"][1]
    assert (step["state"], step["resolved_by"]) == ("ran", "operator")


def test_it_happened_and_gave_nothing(cli: Cli, dead: str, payment: Payment) -> None:
    assert cli("resolve", dead, 2, "--happened", "--json").data == {
        "run": dead,
        "step": 2,
        "name": "pay",
        "outcome": {"status": "ok", "value": None},
        "attested": False,
    }
    assert payment("live").stdout == "None\n"


def test_it_did_not_happen_so_it_runs_again(cli: Cli, dead: str, payment: Payment) -> None:
    result = cli("resolve", dead, 2, "--did-not-happen")
    assert "step 2 (pay) did not happen" in result.out
    assert payment("live").stdout == "{'paid': 100, 'by': 'the tool'}\n"
    states = [s["state"] for s in cli("show", "@payment", "--json").data["steps"]]
    assert states == ["hit", "ran"]


def test_without_a_word_the_resume_halts(cli: Cli, dead: str, payment: Payment) -> None:
    halted = payment("live")
    assert halted.returncode == 1
    assert f"rollcage resolve {dead} 2" in halted.stderr
    # the halted run knows the step as blocked; the word goes to the run in which it is unknown
    refused = cli("resolve", "latest", 2, "--happened")
    assert refused.code == 2
    assert "it was blocked, nothing ran" in refused.err
    assert cli("resolve", "@payment", 2, "--did-not-happen", "--json").data["run"] == dead
    assert payment("live").returncode == 0


def test_the_resolved_trace_verifies(cli: Cli, dead: str) -> None:
    cli("resolve", dead, 2, "--happened", "--result", '[1.0, {"$rollcage": 1}]')
    assert cli("verify", dead).code == 0


def test_a_finished_run_is_attested_anew(cli: Cli, store: Path, tools: Any) -> None:
    with pytest.raises(KeyboardInterrupt), Session("job", store=store) as session:
        session.call(interrupted)
    run = session.run_id
    assert cli("runs", "--json").data["runs"][0]["status"] == "halted"
    assert cli("resolve", run, 1, "--did-not-happen", "--json").data["attested"] is True
    assert cli("verify", run, "--json").data["attested"] is True
    assert cli("runs", "--json").data["runs"][0]["status"] == "halted"


def test_a_resolve_that_was_killed_leaves_a_whole_run(cli: Cli, store: Path, tools: Any) -> None:
    with pytest.raises(KeyboardInterrupt), Session("job", store=store) as session:
        session.call(interrupted)
    run, index = session.run_id, store / "index.jsonl"
    attested = index.read_bytes()
    assert cli("resolve", run, 1, "--did-not-happen").code == 0
    index.write_bytes(attested)  # killed between the trace and the index
    result = cli("verify", run)
    assert result.code == 0
    assert "1 word(s) on unknown steps or on the run stand after the end" in result.out
    trace = store / "logs" / f"{run}.jsonl"
    trace.write_bytes(trace.read_bytes()[:-9])  # or in the middle of the line
    result = cli("verify", run)
    assert result.code == 0
    assert "its writing was cut off" in result.out
    assert cli("resolve", run, 1, "--did-not-happen", "--json").data["attested"] is True
    assert cli("verify", run, "--json").data["notes"] == []


def interrupted() -> None:
    raise KeyboardInterrupt


def test_only_an_unknown_step_can_be_resolved(cli: Cli, record: Any, dead: str) -> None:
    run = record()
    for step, said in [(1, "it ran"), (4, "it ran and failed"), (5, "it was blocked")]:
        result = cli("resolve", run, step, "--happened")
        assert result.code == 2
        assert said in result.err
    assert "has no step 50" in cli("resolve", run, 50, "--happened").err
    cli("resolve", dead, 2, "--did-not-happen")
    again = cli("resolve", dead, 2, "--happened", "--json")
    assert again.code == 2
    error = orjson.loads(again.err)["error"]
    assert error["code"] == "step_not_unknown"
    assert "it was resolved already, by operator" in error["message"]


def test_an_offline_replay_points_at_where_it_first_ran(cli: Cli, store: Path, dead: str) -> None:
    with Session("payment", store=store, replay="offline") as session:
        session.call(put, path="a.txt")
        with pytest.raises(UnknownOutcome):
            session.call(pay, amount=100)
    result = cli("resolve", session.run_id, 2, "--happened")
    assert result.code == 2
    assert f"step 2 is a replay of step 2 of run {dead}: resolve that one" in result.err


def put(path: str) -> str:
    return "put"


def pay(amount: int) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "pass --happened [--result JSON], --did-not-happen, or --undone"),
        (["--undone", "--happened"], "--did-not-happen, or --undone"),
        (["--undone", "--result", "1"], "--undone takes no --result"),
        (["--undone"], "has the format rollcage/1"),
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


def test_a_torn_tail_is_set_aside(cli: Cli, dead: str, store: Path) -> None:
    with (store / "logs" / f"{dead}.jsonl").open("ab") as trace:
        trace.write(b'{"event":"step.finished"')
    assert cli("resolve", dead, 2, "--did-not-happen").code == 0
    assert cli("verify", dead, "--json").data["torn_bytes"] == 0
    assert (store / "logs" / f"{dead}.torn").exists()


def test_a_file_outside_of_a_store(cli: Cli, dead: str, store: Path, tmp_path: Path) -> None:
    copy = tmp_path / f"{dead}.jsonl"
    copy.write_bytes((store / "runs" / copy.name).read_bytes())
    result = cli("resolve", copy, 2, "--happened")
    assert result.code == 2
    assert "outside of a store" in result.err
