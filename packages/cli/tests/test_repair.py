"""`rollcage repair` changes nothing that is whole; `test_runs_stores` has what it mends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]
Record = Callable[..., str]


def test_a_whole_store_is_left_as_it_is(cli: Cli, record: Record, store: Path) -> None:
    record()
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    result = cli("repair")
    assert (result.code, result.out) == (0, "there was nothing to mend: 1 run\n")
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    assert cli("repair", "--json").data == {"store": ".rollcage", "runs": 1, "mended": []}


def test_where_there_is_no_store_none_is_made(cli: Cli, store: Path) -> None:
    result = cli("repair")
    assert result.code == 2
    assert "there is no store at .rollcage" in result.err
    assert not store.exists()
