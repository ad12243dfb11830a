"""Lists of the runs in a folder."""

from pathlib import Path

import pytest
from list_suite import ListSuite


class TestFolderLists(ListSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "store")
