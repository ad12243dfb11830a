"""The store in PostgreSQL: what every store promises; see `test_postgres_faults` for networks."""

from collections.abc import Iterator

import pytest
from harm import in_postgres
from postgres import new_store
from rollcage_conformance import StoreSuite
from rollcage_conformance.stores.base import Tamper


class TestPostgres(StoreSuite):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with new_store() as url:
            yield url

    @pytest.fixture
    def tamper(self, url: str) -> Tamper:
        return in_postgres(url)
