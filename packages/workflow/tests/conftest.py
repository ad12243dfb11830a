"""What the tests of workflows share."""

from pathlib import Path

import pytest
from worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")
