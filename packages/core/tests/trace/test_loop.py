"""Async sessions on the folder block no loop."""

from pathlib import Path

import pytest
from loop_suite import LoopSuite


class TestFolderLoop(LoopSuite):
    @pytest.fixture(params=["os", "disk"])
    def url(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        return f"file://{tmp_path}/store?durability={request.param}"
