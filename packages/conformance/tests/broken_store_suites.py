"""The suite for each store of `broken_stores`; `test_broken_stores.py` runs parts of it."""

from pathlib import Path

import harm
import pytest
from broken_stores import STORES

from rollcage_conformance import StoreSuite
from rollcage_conformance.stores.base import Tamper


class OnShelf(StoreSuite):
    name = "sound"

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"shelf://{self.name}/{tmp_path / 'runs.db'}"

    @pytest.fixture
    def tamper(self, tmp_path: Path) -> Tamper:
        return harm.in_sqlite(tmp_path / "runs.db")


for name, store in STORES.items():
    test = f"Test{store.__name__}"
    globals()[test] = type(test, (OnShelf,), {"name": name})
