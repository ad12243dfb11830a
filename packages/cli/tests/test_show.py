"""`rollcage show`: every state of a step, in text and in JSON."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session
from rollcage_adapter import Answer

Cli = Callable[..., Any]
Record = Callable[..., str]


def test_each_step_with_its_state(cli: Cli, record: Record) -> None:
    run = record()
    data = cli("show", run, "--json").data
    assert data["run"]["run"] == run
    assert data["run"]["name"] == "job"
    assert data["status"] == "ok"
    steps = [(s["step"], s["name"], s["state"]) for s in data["steps"]]
    assert steps == [
        (1, "look", "ran"),
        (2, "put", "ran"),
        (3, "login", "ran"),
        (4, "fails", "failed"),
        (5, "outer", "ran"),
        (6, "put", "ran"),
        (7, "side", "ran"),
        (8, "put", "ran"),
    ]
    assert data["totals"]["steps"] == 8
    assert data["totals"]["states"]["ran"] == 7
    assert data["steps"][1]["args"] == {"path": "b.txt", "text": "some text"}
    assert data["steps"][1]["outcome"] == {"status": "ok", "value": {"wrote": 9}}
    (refused,) = data["refused"]
    assert (refused["name"], refused["code"]) == ("put", "path_escape")
    assert data["steps"][5]["parent"] == 5


def test_a_table_and_a_timeline(cli: Cli, record: Record) -> None:
    out = cli("show", record()).out
    table, timeline = out.split("step  over ")
    assert 'path="b.txt", text="some text"' in table
    assert "{wrote: 9}" in table
    assert "ValueError: some text" in table
    assert "path_escape: that path is outside of the workspace" in out
    assert "password=<secret>" in table
    assert "↳ put" in table
    assert "branch side" in table
    assert "━" in timeline
    assert "8 steps, 7 ran, 1 failed; 1 call refused" in timeline


def test_attempts_and_what_they_replayed(cli: Cli, store: Path, tools: Any) -> None:
    def model(**_: Any) -> str:
        return "fine"

    def answered(_: Any) -> Answer:
        return Answer("fine", usage={"input_tokens": 7})

    for last in (False, True):
        with contextlib.suppress(ConnectionError), Session("job", store=store) as session:
            tools.put("a", "text")
            contract = tools.look.__rollcage_contract__
            session.run_call(contract, {"path": "x"}, model, kind="model", answer=answered)
            if not last:
                raise ConnectionError
            tools.put("b", "text")
    data = cli("show", "latest", "--json").data
    assert [(s["state"], s["attempt"]) for s in data["steps"]] == [
        ("ran", 1),
        ("ran", 1),
        ("ran", 2),
    ]
    first, second = data["attempts"]
    assert (first["status"], second["status"]) == ("error", "ok")
    assert (second["replayed"], second["hits"]) == ([[1, 2]], 2)
    out = cli("show", "latest").out
    assert "2 attempts" in out
    assert "1-2" in out


def test_an_unknown_step_and_what_to_do(cli: Cli, dead: str) -> None:
    data = cli("show", dead, "--json").data
    assert data["status"] == "unfinished"
    assert [s["state"] for s in data["steps"]] == ["ran", "unknown"]
    command = f"rollcage resolve {dead} 2"
    assert f"{command} --happened; or, if not: {command} --did-not-happen" in cli("show", dead).out


def test_one_step_in_full(cli: Cli, record: Record) -> None:
    run = record(text="t" * 3000)
    out = cli("show", run, "--step", "2").out
    assert f'argument text: "{"t" * 3000}"' in out
    assert "effect: write" in out
    (step,) = cli("show", run, "--step", "2", "--json").data["steps"]
    assert step["step"] == 2


def test_a_step_that_is_not_there(cli: Cli, record: Record) -> None:
    result = cli("show", record(), "--step", "77")
    assert result.code == 2
    assert "has no step 77; it has 8 steps" in result.err


def test_a_run_without_steps(cli: Cli, store: Path) -> None:
    with Session("empty", store=store):
        pass
    assert "No steps." in cli("show", "latest").out


def test_only_the_last_steps(cli: Cli, record: Record) -> None:
    run = record()
    out = cli("show", run, "--limit", "2").out
    assert "The first 6 steps are not shown" in out
    assert "hunter2" not in out
    assert "login" not in out


def test_the_error_that_ended_a_run(cli: Cli, store: Path) -> None:
    with pytest.raises(RuntimeError), Session("job", store=store):
        raise RuntimeError("no [bold]bold[/bold]")
    out = cli("show", "latest").out
    assert "error, record" in out
    assert "RuntimeError: no [bold]bold[/bold]" in out


def test_a_torn_tail_is_left_out(cli: Cli, dead: str, store: Path) -> None:
    before = cli("show", dead).out
    with (store / "logs" / f"{dead}.jsonl").open("ab") as trace:
        trace.write(b'{"event":"step","st')
    assert cli("show", dead).out == before


def test_a_corrupt_trace_is_refused(cli: Cli, record: Record, edit: Any) -> None:
    run = record()
    edit(run, lambda lines: [lines[0], *lines[2:]])
    result = cli("show", run)
    assert result.code == 3
    assert "its hash differs" in result.err
    assert result.out == ""


def test_hostile_data_never_reach_the_terminal(cli: Cli, record: Record, evil: str) -> None:
    run = record(text=evil)
    shown = [cli("show", run), cli("show", run, "--json")]
    shown += [cli("show", run, "--step", step) for step in (2, 4, 7)]
    for result in shown:
        assert result.code == 0
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2028"} & set(result.out)
    assert "\\x1b]0;owned\\x07" in cli("show", run).out
    assert "[red]x[/red]" in cli("show", run, "--step", 2).out
    assert cli("show", run, "--json").data["steps"][1]["args"]["text"] == evil


def test_without_a_run_it_shows_the_one_that_began_last(cli: Cli, record: Record) -> None:
    record("one")
    newest = record("two")
    assert cli("show", "--json").data["run"]["run"] == newest


def test_without_any_run_it_says_so(cli: Cli) -> None:
    assert "there are no runs in .rollcage" in cli("show").err
