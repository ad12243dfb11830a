"""`rollcage show`: every state of a step, in text and in JSON."""

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
    assert data["torn_bytes"] == 0
    steps = [(s["step"], s["name"], s["state"]) for s in data["steps"]]
    assert steps == [
        (1, "look", "ran"),
        (2, "put", "ran"),
        (3, "login", "ran"),
        (4, "fails", "failed"),
        (5, "put", "blocked"),
        (6, "outer", "ran"),
        (7, "put", "ran"),
        (8, "put", "ran"),
        (9, "side", "ran"),
    ]
    assert data["totals"]["steps"] == 9
    assert data["totals"]["states"]["ran"] == 7
    assert data["steps"][1]["args"] == {"path": "b.txt", "text": "some text"}
    assert data["steps"][1]["outcome"] == {"status": "ok", "value": {"wrote": 9}}
    assert data["steps"][4]["verdict"]["code"] == "path_escape"
    assert data["steps"][6]["parent"] == 6


def test_a_table_and_a_timeline(cli: Cli, record: Record) -> None:
    out = cli("show", record()).out
    table, timeline = out.split("step  over ")
    assert 'path="b.txt", text="some text"' in table
    assert "{wrote: 9}" in table
    assert "ValueError: some text" in table
    assert "path_escape: that path is outside of the workspace" in table
    assert "password=<secret>" in table
    assert "↳ put" in table
    assert "join of side" in table
    assert "━" in timeline
    assert "✕" in timeline
    assert "9 steps, 7 ran, 1 failed, 1 blocked" in timeline


def test_hits_and_what_they_saved(cli: Cli, store: Path, tools: Any) -> None:
    def model(**_: Any) -> str:
        return "fine"

    def answered(_: Any) -> Answer:
        return Answer("fine", usage={"input_tokens": 7})

    for replay in ("off", "resume"):
        with Session("job", store=store, replay=replay) as session:
            tools.put("a", "text")
            contract = tools.look.__rollcage_contract__
            session.run_call(contract, {"path": "x"}, model, kind="model", answer=answered)
    data = cli("show", "latest", "--json").data
    assert [s["state"] for s in data["steps"]] == ["hit", "hit"]
    assert data["totals"]["tokens_saved"] == 7
    assert data["totals"]["seconds_saved"] >= 0
    assert data["steps"][0]["origin"][1] == 1
    out = cli("show", "latest").out
    assert "◆" in out
    assert "2 hit; saved" in out
    assert "and 7 tokens" in out
    assert "first ran: step 2 of run" in cli("show", "latest", "--step", "2").out


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
    assert "has no step 77; it has 9 steps" in result.err


def test_a_run_without_steps(cli: Cli, store: Path) -> None:
    with Session("empty", store=store):
        pass
    assert "No steps." in cli("show", "latest").out


def test_only_the_last_steps(cli: Cli, record: Record) -> None:
    run = record()
    out = cli("show", run, "--limit", "2").out
    assert "The first 7 steps are not shown" in out
    assert "hunter2" not in out
    assert "login" not in out


def test_the_error_that_ended_a_run(cli: Cli, store: Path) -> None:
    with pytest.raises(RuntimeError), Session("job", store=store):
        raise RuntimeError("no [bold]bold[/bold]")
    out = cli("show", "latest").out
    assert "error, record" in out
    assert "RuntimeError: no [bold]bold[/bold]" in out


def test_a_torn_tail_is_left_out(cli: Cli, dead: str, store: Path) -> None:
    with (store / "logs" / f"{dead}.jsonl").open("ab") as trace:
        trace.write(b'{"event":"step.fin')
    assert "A torn last line of 18 bytes is left out." in cli("show", dead).out
    assert cli("show", dead, "--json").data["torn_bytes"] == 18


def test_a_corrupt_trace_is_refused(cli: Cli, record: Record, edit: Any) -> None:
    run = record()
    edit(run, lambda lines: [lines[0], *lines[2:]])
    result = cli("show", run)
    assert result.code == 3
    assert "line 2: its hash does not follow" in result.err
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
