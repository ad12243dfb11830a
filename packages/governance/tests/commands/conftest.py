"""The command line, and where it looks."""

from pathlib import Path

import pytest
from command_line import cli, evil, plain_environment  # noqa: F401 - pytest finds them here


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where the command line looks by default."""
    return tmp_path / ".rollcage"
