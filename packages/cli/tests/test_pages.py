"""`--html FILE`: a page is written whole or not at all, and over no other file by mistake."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markup import Markup

Cli = Callable[..., Any]
Record = Callable[..., str]


def test_a_run_is_written_as_a_page(record: Record, cli: Cli, tmp_path: Path) -> None:
    run = record()
    result = cli("show", run, "--html", "run.html")
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith("Wrote run.html (")
    assert all(len(line) <= 80 for line in result.err.splitlines())
    page = Markup((tmp_path / "run.html").read_text(encoding="utf-8"))
    page.check_alone()
    assert {f"step-{n}" for n in range(1, 9)} <= {given.get("id") for _, given in page.elements}


def test_a_dash_is_stdout(record: Record, cli: Cli, tmp_path: Path) -> None:
    run = record()
    result = cli("show", run, "--html", "-")
    assert (result.code, result.err) == (0, "")
    Markup(result.out).check_alone()
    assert cli("show", run, "--html", "run.html").code == 0
    assert (tmp_path / "run.html").read_text(encoding="utf-8") == result.out


def test_a_file_is_replaced_only_with_force(record: Record, cli: Cli, tmp_path: Path) -> None:
    run = record()
    (tmp_path / "run.html").write_text("mine")
    result = cli("show", run, "--html", "run.html")
    assert result.code == 2
    assert "run.html exists; --force replaces it" in result.err
    assert (tmp_path / "run.html").read_text() == "mine"
    assert cli("show", run, "--html", "run.html", "--force").code == 0
    assert (tmp_path / "run.html").read_text() != "mine"
    assert [*tmp_path.glob(".*.part")] == []


@pytest.mark.parametrize("option", ["--json", "--tree", "--step=1"])
def test_what_a_page_can_not_be(record: Record, cli: Cli, tmp_path: Path, option: str) -> None:
    result = cli("show", record(), "--html", "run.html", option)
    assert result.code == 2
    assert not (tmp_path / "run.html").exists()


def test_a_page_that_cannot_be_written(record: Record, cli: Cli, tmp_path: Path) -> None:
    run = record()
    result = cli("show", run, "--html", "nowhere/run.html")
    assert result.code == 5
    assert "nowhere/run.html can't be written" in result.err
    assert cli("show", "ffffffff", "--html", "run.html").code == 2
    assert not (tmp_path / "run.html").exists()


def test_a_page_has_the_steps_that_are_asked_for(record: Record, cli: Cli) -> None:
    page = Markup(cli("show", record(), "--html", "-", "--state", "failed").out)
    steps = [
        given["id"] for _, given in page.elements if (given.get("id") or "").startswith("step-")
    ]
    assert steps == ["step-4"]
    assert "1 of 8 steps" in page.text


def test_a_difference_is_written_as_a_page(record: Record, cli: Cli, tmp_path: Path) -> None:
    one, other = record(), record(text="another text")
    result = cli("diff", one, other, "--html", "diff.html")
    assert (result.code, result.out) == (1, "")
    page = Markup((tmp_path / "diff.html").read_text(encoding="utf-8"))
    page.check_alone()
    assert "another text" in page.text
    assert cli("diff", one, other, "--html", "diff.html").code == 2
    assert cli("diff", one, one, "--html", "diff.html", "--force").code == 0
    assert cli("diff", one, one, "--html", "-", "--json").code == 2
