"""How a run is named on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Record = Callable[..., str]


def shown(cli: Cli, reference: object) -> str:
    result = cli("show", reference, "--json")
    assert result.code == 0, result.err
    return str(result.data["run"]["run"])


def test_by_id_beginning_end_name_latest_and_file(cli: Cli, record: Record, store: Path) -> None:
    run, other = record("one"), record("two")
    assert shown(cli, run) == run
    assert shown(cli, run[-12:]) == run
    assert shown(cli, run[-12:].upper()) == run
    assert shown(cli, other[: _shared(run, other) + 1]) == other
    assert shown(cli, "@one") == run
    assert shown(cli, "latest") == other
    assert shown(cli, store / "logs" / f"{run}.jsonl") == run


def _shared(a: str, b: str) -> int:
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)


def test_a_name_means_its_newest_run(cli: Cli, record: Record) -> None:
    record("one")
    newest = record("one")
    assert shown(cli, "@one") == newest


def test_more_than_one_is_refused_with_a_list(cli: Cli, record: Record) -> None:
    runs = [record("one"), record("two")]
    result = cli("show", runs[0][:4])
    assert result.code == 2
    assert "means 2 runs" in result.err
    assert all(run in result.err for run in runs)
    code = cli("show", runs[0][:4], "--json")
    assert '"code": "run_ambiguous"' in code.err
    assert code.out == ""


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("zzzz", "no run begins or ends with 'zzzz'"),
        ("", "no run begins or ends with ''"),
        ("@jop", "no run is named 'jop'; there is @job"),
        ("@entirely else", "there is @job"),
        ("01890a5d-ac96-774b-bcce-b302099a8057", "no run begins or ends with '01890a5d"),
        ("./nothing.jsonl", "there is no file nothing.jsonl"),
    ],
)
def test_no_match_is_an_error_that_lists_what_there_is(
    cli: Cli, record: Record, reference: str, said: str
) -> None:
    record("job")
    result = cli("show", reference)
    assert result.code == 2
    assert said in result.err
    assert result.err.startswith("rollcage: ")


def test_a_file_by_another_name(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_bytes(b"")
    result = cli("verify", "trace.jsonl")
    assert result.code == 3
    assert "line 1: chain: the trace is empty" in result.out
    for command in ("show", "export"):
        other = cli(command, "trace.jsonl")
        assert (other.code, other.out) == (3, "")
        assert "trace.jsonl, line 1: the trace is empty" in other.err


def test_a_trace_by_another_name(cli: Cli, record: Record, tmp_path: Path) -> None:
    run = record("job")
    (tmp_path / "kept.jsonl").write_bytes(next(tmp_path.rglob(f"{run}.jsonl")).read_bytes())
    assert cli("verify", "kept.jsonl").code == 0
    assert f"job  {run}" in cli("show", "kept.jsonl").out


def test_without_a_store(cli: Cli) -> None:
    result = cli("show", "latest")
    assert result.code == 2
    assert result.err == (
        "rollcage: there are no runs in .rollcage; name their store with --store\n"
    )
