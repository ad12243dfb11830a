"""The command line, in this process, for tests of its commands."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rollcage_cli.app import main

__all__ = ["EVIL", "Cli", "Result", "cli", "evil", "plain_environment"]

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J [red]x[/red] \u202eabc\u2028"


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of whoever runs the tests, and no store but the test's own."""
    for name in ("ROLLCAGE_STORE", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """The command line, in this process."""

    def run(*arguments: object) -> Result:
        capfdbinary.readouterr()
        code = main([str(each) for each in arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Result(code, out.decode(), err.decode())

    return run


@pytest.fixture
def evil() -> str:
    """Text that would act on a terminal."""
    return EVIL
