"""What the tests of workflows share."""

from pathlib import Path

import pytest
from fixtures import every_trace_is_valid  # noqa: F401 - pytest finds it here
from worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")
