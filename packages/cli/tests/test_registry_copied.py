"""The registry of tools goes with a copied store, as far as the other one is behind it."""

from pathlib import Path

import pytest
from rollcage import RunConflict, Store, open_store, tool
from rollcage_cli.documents import copy_beside
from rollcage_governance import Registry


@tool(effect="read")
def look(at: str) -> str:
    """Look."""
    return at


@pytest.fixture
def source(tmp_path: Path) -> Store:
    """A store in whose registry one tool is approved."""
    store = open_store(tmp_path / "source")
    Registry(store).propose(look, by="ann")
    Registry(store).approve("look", by="bob")
    return store


@pytest.fixture(params=["folder", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store."""
    folder = tmp_path / "target"
    return open_store(folder if request.param == "folder" else f"sqlite:///{folder}.db")


def copied(source: Store, target: Store) -> list[tuple[str, str]]:
    found = list(copy_beside(source, target, None, move=False))
    return [(each.kind, each.what) for each in found]


def test_a_registry_is_copied_as_it_grows(source: Store, target: Store) -> None:
    assert copied(source, target) == [("registry", "copied")]
    assert Registry(target).history() == Registry(source).history()
    assert copied(source, target) == [("registry", "already there")]
    Registry(source).freeze("look", by="eve")
    assert copied(source, target) == [("registry", "copied")]
    assert Registry(target).tool("look").status == "frozen"
    Registry(target).unfreeze("look", by="eve")
    assert copied(source, target) == [("registry", "already there")]
    assert Registry(target).tool("look").status == "approved"


def test_a_registry_of_its_own_stays(source: Store, target: Store) -> None:
    assert copied(source, target) == [("registry", "copied")]
    Registry(source).freeze("look", by="eve")
    Registry(target).deprecate("look", by="bob")
    (found,) = copy_beside(source, target, None, move=False)
    assert found.what == "conflict"
    assert isinstance(found.error, RunConflict)
    assert "approved in both stores" in str(found.error)
    assert Registry(target).tool("look").status == "deprecated"


def test_runs_that_are_named_bring_no_registry(source: Store, target: Store) -> None:
    assert list(copy_beside(source, target, ["job"], move=False)) == []
    assert Registry(target).history() == []
