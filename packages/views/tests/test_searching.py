"""A search, a page at a time: what it finds, how far it looks, and what it says of the rest."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rollcage import tool
from rollcage.session.session import Session
from rollcage.store import Store
from rollcage.store.url import open_store
from rollcage_views import RunFilter, Search, StepFilter, Viewer, search_page, search_runs

BLIND = Viewer(values=False)


@tool(name="searched.send", effect="write")
def send(to: str) -> str:
    return f"sent to {to}"


@tool(name="searched.look", effect="read")
def look(what: str) -> str:
    if what == "gone":
        raise ValueError("nothing there")
    return "found"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    url = str(tmp_path / "store")
    for number in range(6):
        with Session(f"job {number}", store=url) as session, session.place(agent=f"agent {number}"):
            for each in range(4):
                send(f"person {number}.{each}")
            look("x")
    return open_store(url)


def names(result: Search) -> list[str]:
    return [each.info.name for each in result.runs]


@pytest.mark.parametrize(
    ("wanted", "found", "count"),
    [
        (StepFilter(text="PERSON 3.2"), ["job 3"], 1),
        (StepFilter(text="job 4"), ["job 4"], 0),
        (StepFilter(tools=["searched.l*"], agents=["agent 1"]), ["job 1"], 1),
        (StepFilter(states=["ran"], agents=["agent 2"]), ["job 2"], 5),
        (StepFilter(states=["failed"]), [], 0),
        (StepFilter(text="person 5", tools=["searched.look"]), [], 0),
    ],
)
def test_steps_and_runs_are_found(
    store: Store, wanted: StepFilter, found: list[str], count: int
) -> None:
    result = search_page(store, RunFilter(), wanted)
    assert (names(result), sum(each.count for each in result.runs)) == (found, count)
    assert (result.looked, result.unread, result.before) == (6, 0, None)


def test_pages_come_one_after_the_other_and_nothing_is_listed_twice_or_never(store: Store) -> None:
    wanted = StepFilter(tools=["searched.send"])
    found: list[str] = []
    before: int | None = None
    for _ in range(9):
        result = search_page(store, RunFilter(before=before), wanted, most_steps=4, each=2)
        assert [(len(each.steps), each.count) for each in result.runs] == [(2, 4)] * len(
            result.runs
        )
        found += names(result)
        before = result.before
        if before is None:
            break
    assert found == [f"job {number}" for number in range(5, -1, -1)]


def test_a_page_looks_no_further_than_it_says(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Counter[str]()
    own = type(store).read

    def counted(self: Any, run: str, **more: Any) -> Any:
        read[run] += 1
        return own(self, run, **more)

    monkeypatch.setattr(type(store), "read", counted)
    result = search_page(store, RunFilter(), StepFilter(text="person 0.1"), most_runs=4)
    assert (names(result), result.looked, read.total()) == ([], 4, 4)
    assert result.before is not None
    result = search_page(store, RunFilter(before=result.before), StepFilter(text="person 0.1"))
    assert (names(result), result.looked, read.total(), result.before) == (["job 0"], 2, 6, None)
    read.clear()
    assert names(search_page(store, RunFilter(names=["job 2"]), StepFilter())) == ["job 2"]
    assert read.total() == 0  # a name is in the index


def test_who_sees_no_values_learns_nothing_of_them_by_searching(store: Store) -> None:
    there = search_page(store, RunFilter(), StepFilter(text="person 3.2"), viewer=BLIND)
    not_there = search_page(store, RunFilter(), StepFilter(text="person 9.9"), viewer=BLIND)
    assert there == not_there
    assert there.runs == ()
    by_name = search_page(store, RunFilter(), StepFilter(text="searched.look"), viewer=BLIND)
    assert len(by_name.runs) == 6
    assert "'x'" not in str(by_name)


def test_what_can_not_be_read_is_counted(store: Store) -> None:
    run = store.runs()[2].run
    path = Path(store.url) / "runs" / f"{run}.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    result = search_page(store, RunFilter(), StepFilter(tools=["searched.look"]))
    assert (len(result.runs), result.unread) == (5, 1)


def test_a_name_that_is_no_glob_is_looked_up_and_not_looked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, Any]] = []
    own = type(store).runs

    def noted(self: Any, **wanted: Any) -> Any:
        asked.append((wanted["name"], wanted["status"]))
        return own(self, **wanted)

    monkeypatch.setattr(type(store), "runs", noted)
    (found,) = search_runs(store, RunFilter(names=["job 2"], statuses=["ok"]))
    assert found.name == "job 2"
    assert len(search_runs(store, RunFilter(names=["job ?"], statuses=["ok", "halted"]))) == 6
    assert search_runs(store, RunFilter(names=["job"])) == []
    assert asked == [("job 2", "ok"), (None, None), ("job", None)]
