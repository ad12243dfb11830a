"""A home folder with clients' files, and the command line of core's tests."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import cli, evil, plain_environment  # noqa: F401 - pytest finds them here


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder, where nothing is yet."""
    folder = tmp_path / "ann"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    return folder


@pytest.fixture
def config(home: Path) -> Callable[[str, str], Path]:
    """Writes a client's file."""

    def write(name: str, text: str) -> Path:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    return write
