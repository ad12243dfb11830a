"""A workspace beside a folder that is none of its business, and the escapes' own command."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from rollcage_toolbox import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """An empty workspace."""
    with Workspace(tmp_path / "work", create=True) as made:
        yield made


@pytest.fixture(scope="session")
def escapes() -> Iterator[ModuleType]:
    """`escapes.py`: the command is a script, and in no package."""
    path = Path(__file__).with_name("escapes.py")
    spec = importlib.util.spec_from_file_location("rollcage_escapes", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
