from pathlib import Path

import pytest
from mission import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, str(tmp_path / "store"))
    made.fill()
    return made
