"""A search, a page at a time: what it finds, how far it looks, and what it says of the rest."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session, Store, list_runs, open_store, tool
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
    assert (result.looked, result.unread, result.last) == (6, 0, "")


def test_pages_come_one_after_the_other_and_nothing_is_listed_twice_or_never(store: Store) -> None:
    wanted = StepFilter(tools=["searched.send"])
    found: list[str] = []
    last = ""
    for _ in range(9):
        result = search_page(store, RunFilter(), wanted, behind=last, most_steps=4, each=2)
        assert [(len(each.steps), each.count) for each in result.runs] == [(2, 4)] * len(
            result.runs
        )
        found += names(result)
        last = result.last
        if not last:
            break
    assert sorted(found) == [f"job {number}" for number in range(6)]


def test_a_page_looks_no_further_than_it_says(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Counter[str]()
    own = type(store).read

    def counted(self: Any, run: str, after: int = 0) -> Any:
        read[run] += 1
        return own(self, run, after)

    monkeypatch.setattr(type(store), "read", counted)
    oldest = list_runs(store)[-1].name
    wanted = StepFilter(text=f"person {oldest[-1]}.1")
    result = search_page(store, RunFilter(), wanted, most_runs=4)
    assert (names(result), result.looked, read.total()) == ([], 4, 4)
    result = search_page(store, RunFilter(), wanted, behind=result.last)
    assert (names(result), result.looked, read.total(), result.last) == ([oldest], 2, 6, "")
    read.clear()
    assert names(search_page(store, RunFilter(names=["job 2"]), StepFilter())) == ["job 2"]
    assert read.total() == 0  # a name is in the first line


def test_who_sees_no_values_learns_nothing_of_them_by_searching(store: Store) -> None:
    there = search_page(store, RunFilter(), StepFilter(text="person 3.2"), viewer=BLIND)
    not_there = search_page(store, RunFilter(), StepFilter(text="person 9.9"), viewer=BLIND)
    assert there == not_there
    assert there.runs == ()
    by_name = search_page(store, RunFilter(), StepFilter(text="searched.look"), viewer=BLIND)
    assert len(by_name.runs) == 6
    assert "'x'" not in str(by_name)


def test_what_can_not_be_read_is_counted(store: Store) -> None:
    run = list_runs(store)[2].run
    path = Path(store.url) / "logs" / f"{run}.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    result = search_page(store, RunFilter(), StepFilter(tools=["searched.look"]))
    assert (len(result.runs), result.unread) == (5, 1)


def test_names_are_whole_names_or_globs(store: Store) -> None:
    (found,) = search_runs(store, RunFilter(names=["job 2"], statuses=["ok"]))
    assert found.name == "job 2"
    assert len(search_runs(store, RunFilter(names=["job ?"], statuses=["ok", "halted"]))) == 6
    assert search_runs(store, RunFilter(names=["job"])) == []
