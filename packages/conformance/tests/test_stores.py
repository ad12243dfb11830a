"""The stores that come with core pass the stores' suite."""

from pathlib import Path

import pytest

from rollcage_conformance import StoreSuite


class TestFolder(StoreSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "runs of today")


class TestSqlite(StoreSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'some where' / 'runs.db'}"
