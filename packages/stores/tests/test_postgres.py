"""The store in PostgreSQL: what every store promises, and what a network makes of it."""

from collections.abc import Iterator

import pytest
from postgres import new_store
from store_suite import StoreSuite

SHARED: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[None]:
    """A store for all cases of a property."""
    with new_store() as url:
        SHARED.append(url)
        yield


class TestPostgres(StoreSuite):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with new_store() as url:
            yield url

    def shared_url(self, folders: pytest.TempPathFactory) -> str:
        return SHARED[0]
