"""`rollcage demo` where it can't begin."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage_cli.demo import stage

Cli = Callable[..., Any]


def test_without_its_extra_it_says_how(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "NEEDED", ("no_such_library",))
    result = cli("demo")
    assert result.code == 2
    assert result.err == ('rollcage: the demo needs LangChain: pip install "rollcage[demo]"\n')
    assert not list(Path.cwd().iterdir())


def test_a_folder_that_is_there_is_left_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "NEEDED", ())
    Path("mine").mkdir()
    result = cli("demo", "--dir", "mine")
    assert result.code == 2
    assert "mine exists already; choose another one with --dir" in result.err
    assert not list(Path("mine").iterdir())


def test_by_default_each_demo_has_a_folder_of_its_own() -> None:
    folders = [stage.folder_for(None).folder for _ in range(3)]
    assert folders == [Path("rollcage-demo"), Path("rollcage-demo-2"), Path("rollcage-demo-3")]


def test_a_folder_that_can_not_be_made(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "NEEDED", ())
    Path("file").write_text("")
    result = cli("demo", "--dir", "file/demo")
    assert result.code == 2
    assert "can't be made" in result.err
