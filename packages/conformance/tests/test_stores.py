"""The stores that come with core pass the stores' suite."""

from collections.abc import Callable, Iterator
from pathlib import Path

import harm
import pytest
from postgres import new_store
from rollcage.store import Store

from rollcage_conformance import StoreSuite


class TestFolder(StoreSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "runs of today")

    @pytest.fixture
    def tamper(self, url: str) -> harm.Tamper:
        return harm.in_folder(Path(url))


class TestSqlite(StoreSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'some where' / 'runs.db'}"

    @pytest.fixture
    def tamper(self, tmp_path: Path) -> harm.Tamper:
        return harm.in_sqlite(tmp_path / "some where" / "runs.db")


class TestPostgres(StoreSuite):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with new_store() as url:
            yield url

    @pytest.fixture
    def tamper(self, url: str) -> harm.Tamper:
        return harm.in_postgres(url)

    @pytest.fixture
    def lose_locks(self) -> Callable[[Store], None]:
        return harm.lose_locks
