"""The suite for each store of `broken_stores`; `test_broken_stores.py` runs parts of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import harm
import pytest
from broken_stores import STORES, Sound
from postgres import new_store
from rollcage.store import Store

from rollcage_conformance import StoreSuite


class OnShelf(StoreSuite):
    name = "sound"

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"shelf://{self.name}/{tmp_path / 'runs.db'}"

    @pytest.fixture
    def tamper(self, tmp_path: Path) -> harm.Tamper:
        return harm.in_sqlite(tmp_path / "runs.db")


class TestUnfenced(StoreSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> Iterator[str]:
        with new_store() as url:
            (tmp_path / "where").write_text(url)
            yield f"shelf://unfenced/{tmp_path / 'where'}"

    @pytest.fixture
    def lose_locks(self) -> Callable[[Store], None]:
        return harm.lose_locks


for name, store in STORES.items():
    if issubclass(store, Sound):
        test = f"Test{store.__name__}"
        globals()[test] = type(test, (OnShelf,), {"name": name})
