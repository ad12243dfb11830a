"""`rollcage runs`: what runs there are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session

Cli = Callable[..., Any]
Record = Callable[..., str]


def test_lists_the_newest_first(cli: Cli, record: Record) -> None:
    first, second = record("one"), record("two")
    result = cli("runs")
    assert result.code == 0
    assert result.out.index(second) < result.out.index(first)
    assert "one" in result.out


def test_json(cli: Cli, record: Record, store: Path) -> None:
    run = record("one")
    result = cli("runs", "--json", "--store", store)
    assert result.data["more"] is False
    assert result.data["store"] == str(store)
    (only,) = result.data["runs"]
    known = {"run", "name", "mode", "source", "time", "status", "ended", "attempts", "waits"}
    assert only.keys() == known | {
        "input", "pruned", "unknown", "unclear", "left_behind", "not_asked_for", "refused",
        "paused",
    }  # fmt: skip
    assert (only["run"], only["name"], only["status"]) == (run, "one", "ok")


def test_an_unfinished_run_is_shown_as_one(cli: Cli, dead: str) -> None:
    assert cli("runs", "--json").data["runs"][0]["status"] == "unfinished"
    assert "unfinished" in cli("runs").out


def test_by_name_and_limited(cli: Cli, record: Record) -> None:
    runs = [record("one"), record("two"), record("two")]
    result = cli("runs", "--name", "two", "--json")
    assert {each["run"] for each in result.data["runs"]} == set(runs[1:])
    limited = cli("runs", "--limit", "1")
    assert runs[2] in limited.out
    assert runs[0] not in limited.out
    assert "Older ones are not shown" in limited.out
    assert runs[0] in cli("runs", "--limit", "0").out


def test_no_store_is_no_error(cli: Cli, store: Path) -> None:
    result = cli("runs")
    assert (result.code, result.out) == (0, "No runs in .rollcage.\n")
    assert cli("runs", "--json").data == {"store": ".rollcage", "more": False, "runs": []}
    assert not store.exists()


def test_a_corrupt_trace_does_not_break_it(cli: Cli, record: Record, edit: Any) -> None:
    bad, good = record("bad"), record("good")
    edit(bad, lambda _lines: [b"\xff\xfe nonsense\n"])
    result = cli("runs")
    assert result.code == 0
    assert bad in result.out
    assert good in result.out


def test_the_store_comes_from_the_environment(
    cli: Cli, record: Record, monkeypatch: Any, tmp_path: Path
) -> None:
    run = record()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("ROLLCAGE_STORE", str(tmp_path / ".rollcage"))
    monkeypatch.chdir(elsewhere)
    assert run in cli("runs").out
    assert cli("runs", "--store", "other").code == 2


@pytest.mark.parametrize("command", ["runs", "jobs", "audit", "approvals", "show"])
def test_a_store_that_is_named_has_to_be_there(
    cli: Cli, store: Path, record: Record, command: str
) -> None:
    record()
    result = cli(command, "--store", "othre")
    assert result.code == 2
    assert "in othre" in result.err or "no store at othre" in result.err
    assert result.out == ""


def test_a_hostile_name_stays_text(cli: Cli, store: Path, evil: str) -> None:
    with Session(f"job{evil}", store=store):
        pass
    for result in (cli("runs"), cli("runs", "--json")):
        assert result.code == 0
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2028"} & set(result.out)
    assert "[red]x[/red]" in cli("runs").out
    assert cli("runs", "--json").data["runs"][0]["name"] == f"job{evil}"
