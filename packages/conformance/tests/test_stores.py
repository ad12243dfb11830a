"""The stores that come with core pass the stores' suite."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres import new_store

from rollcage_conformance import StoreSuite


class TestFolder(StoreSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "runs of today")


class TestSqlite(StoreSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'some where' / 'runs.db'}"


class TestPostgres(StoreSuite):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with new_store() as url:
            yield url
