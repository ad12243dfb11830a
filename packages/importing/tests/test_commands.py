"""`rollcage import`, and what the other commands make of an imported run."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage_cli.app import main


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLCAGE_STORE", raising=False)
    times = {"start_time": "2026-03-01T10:00:00Z", "end_time": "2026-03-01T10:00:01Z"}
    runs: list[dict[str, Any]] = [
        {"id": "a", "run_type": "chain", "name": "shop", **times},
        {
            "id": "b", "run_type": "tool", "name": "price", "parent_run_id": "a", "trace_id": "a",
            "inputs": {"item": "apple"}, "outputs": {"output": "2"}, **times,
        },
    ]  # fmt: skip
    file = tmp_path / "runs.jsonl"
    file.write_bytes(b"\n".join(map(orjson.dumps, runs)) + b"\nnothing\n")
    return file


def test_a_file_is_imported_and_imported_again(
    export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(export)]) == 0
    said = capsys.readouterr().out
    assert "shop: 1 step" in said
    assert "skipped: a line that is not JSON: 1" in said
    assert "1 run imported from langsmith" in said
    assert main(["import", str(export), "--json"]) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert told["runs"][0]["there"]


def test_every_command_says_what_it_is(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["import", str(export), "--name", "mine"])
    capsys.readouterr()
    for command, code, said in (
        ("runs", 0, "imported"),
        ("show", 0, "imported from langsmith"),
        ("verify", 0, "it was imported"),
        ("audit", 0, "imported"),
        ("undo", 2, "was imported"),
        ("abandon", 2, "was imported"),
    ):
        asked = [command] if command == "runs" else [command, "@mine"]
        assert main(asked) == code, command
        told = capsys.readouterr()
        assert said in told.out + told.err, command


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["nowhere.json"], "can't be read"),
        (["runs.jsonl", "--format", "csv"], "is none of"),
        (["runs.jsonl", "--format", "otel"], "holds no span"),
    ],
)
def test_what_can_not_be_is_reported(
    export: Path, capsys: pytest.CaptureFixture[str], asked: list[str], said: str
) -> None:
    assert main(["import", *asked]) != 0
    assert said in capsys.readouterr().err
    assert not (export.parent / ".rollcage").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'[{"id": "a",\n "run_type": "t\xff"}]', "byte 29, in line 2, is not valid UTF-8"),
        (b'{"run_type": "\xe9"}\n{"run_type": "\xe9"}', "byte 15, in line 1, is not valid UTF-8"),
        ('{"run_type": "tool"}'.encode("utf-16"), "is text in UTF-16: save it as UTF-8"),
        (
            b'[{"run_type": "tool"',
            "read as JSON: unexpected end of data: line 1 column 21",
        ),
        (b" \n", "can't be read as JSON: it is empty"),
        (b'{"somebody": "else\'s"}', "has no known format"),
    ],
)
def test_what_keeps_a_file_unread_is_reported(
    export: Path, capsys: pytest.CaptureFixture[str], data: bytes, said: str
) -> None:
    export.write_bytes(data)
    assert main(["import", str(export)]) != 0
    assert said in " ".join(capsys.readouterr().err.split())
