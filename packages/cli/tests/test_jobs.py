"""`rollcage jobs`: a line a job, whose attempts are a chain."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcage import Session

Cli = Callable[..., Any]
Record = Callable[..., str]


def test_a_job_that_died_and_was_resumed_is_one_line(
    cli: Cli, payment: Any, dead: str, record: Record
) -> None:
    other = record("other")
    assert cli("resolve", dead, "2", "--did-not-happen").code == 0
    assert payment("live").returncode == 0
    data = cli("jobs", "--json").data
    assert [job["name"] for job in data["jobs"]] == ["other", "payment"]
    (one,) = data["jobs"][1]["attempts"]
    assert (one["run"], one["attempts"], one["status"]) == (dead, 2, "ok")
    assert data["jobs"][0]["run"] == other
    assert f"1 before → ok {dead[-8:]}" in cli("jobs").out
    assert "Older" in cli("jobs", "--limit", "1").out


def test_a_run_that_is_being_written_is_running(cli: Cli, store: Path, tools: Any) -> None:
    with Session("long", store=store):
        tools.look("a")
        assert cli("jobs", "--json").data["jobs"][0]["status"] == "running"


def test_replays_that_only_look_are_no_attempts(cli: Cli, store: Path, tools: Any) -> None:
    for replay in ("off", "verify", "offline"):
        with Session("job", store=store, replay=replay):
            tools.look("a")
    (job,) = cli("jobs", "--json").data["jobs"]
    assert [each["mode"] for each in job["attempts"]] == ["record"]


def test_a_hostile_name_stays_text_and_none_is_completed(cli: Cli, store: Path, evil: str) -> None:
    for name in (f"job{evil}", "good"):
        with Session(name, store=store):
            pass
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2028"} & set(cli("jobs").out)
    from rollcage_cli.completion import complete_name, complete_run

    context: Any = type("Context", (), {"params": {"store": str(store)}})()
    assert complete_name(context, "") == ["good"]
    assert [each for each, _ in complete_run(context, "@")] == ["@good"]
    assert complete_run(context, "latest") == [("latest", "the newest run")]
    context.params["store"] = "nobody://knows"
    assert complete_name(context, "") == []


def test_eighty_columns_are_enough(
    cli: Cli, record: Record, tools: Any, store: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = record("a job whose name takes its room", text="some " * 40)
    for shown in (cli("runs"), cli("jobs"), cli("show")):
        lines = [each for each in shown.out.splitlines() if "rollcage resolve" not in each]
        tables = [each for each in lines if not each.startswith("refused")]
        assert max(map(len, tables)) <= 80, shown.out
    assert f"{run[-8:]}  a job whose name ta…  ok" in cli("runs").out
    line = next(line for line in cli("show").out.splitlines() if line.startswith("   3  "))
    assert 'login(user="ann", passwo…' in line
    assert '"hello ann"' in line
