from pathlib import Path

import pytest
from mission import World


@pytest.fixture(params=["heart"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    made = World(tmp_path, str(tmp_path / "store"), request.param)
    made.fill()
    return made
