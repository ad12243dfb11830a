"""`rollcage repair` makes the index again, changes no trace, and says what it found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]
Record = Callable[..., str]


def test_a_whole_index_is_left_as_it_is(cli: Cli, record: Record, store: Path) -> None:
    record()
    before = (store / "index.jsonl").read_bytes()
    result = cli("repair")
    assert (result.code, result.out) == (0, "the index was complete: 1 run\n")
    assert (store / "index.jsonl").read_bytes() == before


def test_a_lost_index_is_made_again(cli: Cli, record: Record, store: Path) -> None:
    runs = [record("one"), record("two")]
    traces = {path: path.read_bytes() for path in (store / "runs").iterdir()}
    (store / "index.jsonl").unlink()
    result = cli("repair")
    assert result.code == 0
    for run in runs:
        assert f"run {run} was missing, and is in the index again" in result.out
        assert f"run {run} ended, and only its own last lines" in result.out
    assert "the index was rebuilt: 2 runs" in result.out
    assert {path: path.read_bytes() for path in (store / "runs").iterdir()} == traces
    again = cli("repair", "--json").data
    assert (again["lost"], again["damaged"], again["unattested"]) == ([], [], runs)
    assert [each["status"] for each in cli("runs", "--json").data["runs"]] == ["ok", "ok"]


def test_damaged_lines_are_named(cli: Cli, record: Record, store: Path) -> None:
    record()
    index = store / "index.jsonl"
    index.write_bytes(b"\xff\n" + index.read_bytes() + b"[]\n")
    assert "damaged lines of the index, left out: 1, 4" in cli("repair").out
    assert cli("repair").out == "the index was complete: 1 run\n"


def test_a_trace_that_nobody_can_place_is_reported(
    cli: Cli, record: Record, store: Path, edit: Any
) -> None:
    bad, good = record("bad"), record("good")
    edit(bad, lambda lines: [b"{}\n", *lines[1:]])
    (store / "index.jsonl").unlink()
    result = cli("repair", "--json")
    assert result.code == 3
    assert result.data["lost"] == [good]
    assert bad in result.data["unreadable"][0]
    shown = cli("repair")
    assert shown.code == 3
    assert "which job it belongs to" in shown.out


def test_where_there_is_no_store_none_is_made(cli: Cli, store: Path) -> None:
    result = cli("repair")
    assert result.code == 2
    assert "there is no store at .rollcage" in result.err
    assert not store.exists()
