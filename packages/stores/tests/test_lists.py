"""Lists of the runs in a database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from list_suite import ListSuite
from postgres import new_store


class TestSqliteLists(ListSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/runs.db"


class TestPostgresLists(ListSuite):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with new_store() as url:
            yield url
