"""One folder holds runs of both cores: neither sees the other's (until the old core goes)."""

from pathlib import Path

import pytest
import rollcage
from rollcage import Session, tool
from rollcage.errors import RunNotFound
from rollcage.heart.folder import Folder
from rollcage.heart.stages.orders import stop_run

sent: list[str] = []


@tool(effect="write")
def send(to: str) -> str:
    sent.append(to)
    return f"sent to {to}"


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, str, str]:
    """A folder with a run of each core, both of one job and cut off."""
    store = tmp_path / "store"
    sent.clear()
    with pytest.raises(KeyError), rollcage.Session("job", store=store) as old:
        send("old")
        raise KeyError
    with pytest.raises(KeyError), Session("job", store=store) as new:
        send("new")
        raise KeyError
    return store, old.run_id, new.run_id


def test_each_core_resumes_its_own(both: tuple[Path, str, str]) -> None:
    store, old, new = both
    assert sent == ["old", "new"]
    with rollcage.Session("job", store=store) as again:
        send("old")
    assert (again.stats.hits, again.run_id == old) == (1, False)
    with Session("job", store=store) as session:
        send("new")
    assert (session.stats.hits, session.run_id) == (1, new)
    assert sent == ["old", "new"]


def test_neither_finds_the_others_run(both: tuple[Path, str, str]) -> None:
    store, old, new = both
    known = rollcage.open_store(store)
    assert [info.run for info in known.runs()] == [old]
    with pytest.raises(RunNotFound):
        known.read(new)
    with pytest.raises(RunNotFound):
        Folder(store).read(old)
    with pytest.raises(RunNotFound):
        stop_run(store, old)


def test_a_repair_of_the_index_touches_no_log(both: tuple[Path, str, str]) -> None:
    store, old, new = both
    before = Folder(store).read(new)
    (store / "index.jsonl").unlink()
    known = rollcage.open_store(store)
    with known.opening():
        pass
    assert [info.run for info in known.runs()] == [old]
    assert Folder(store).read(new) == before
