"""Async sessions on databases block no loop."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from loop_suite import LoopSuite
from postgres import new_store


class TestSqliteLoop(LoopSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/runs.db"


class TestPostgresLoop(LoopSuite):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with new_store() as url:
            yield url
