"""A session has a run: recorded now, opened again for an undo, or only looked at."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from rollcage import Blocked, Happened, SessionError, UnknownOutcome, compensate, tool
from rollcage.gate import StepView
from rollcage.session import undoing
from rollcage.session.finished import aplan_undo, aundo_run, plan_undo, undo_run
from rollcage.session.run import OpenRun
from rollcage.session.session import Session
from rollcage.step.undo_checks import UndoRequest
from rollcage.step.undoing import plan_steps, undo_orphans, undo_steps
from rollcage.store import JsonlStore
from rollcage.trace import read_run

LARGE = "x" * 100_000
there: set[str] = set()


@tool(effect="write")
def drop(name: str) -> None:
    there.discard(name)


@tool(effect="scope")
def drop_all(names: list[str]) -> int:
    for name in names:
        drop(name)
    return len(names)


@tool(effect="write", undo=lambda args, before: [compensate(drop_all, names=[args["name"]])])
def put(name: str) -> None:
    there.add(name)


@tool(effect="write", probe=lambda key: Happened(LARGE))
def send(name: str) -> str:
    raise TimeoutError(name)


@tool(
    effect="write",
    probe=lambda key: Happened(LARGE),
    undo=lambda args, before, result: [compensate(drop, name=result)],
)
def made(name: str) -> str:
    raise TimeoutError(name)


@tool(effect="read", secret=["password"])
def login(password: str) -> bool:
    return bool(password)


@pytest.fixture(autouse=True)
def nothing_there() -> None:
    there.clear()


def files(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_a_session_inherits_nothing_and_is_inherited_by_nothing() -> None:
    assert Session.__bases__ == (object,)
    own = [each for each in Session.__subclasses__() if each.__module__.startswith("rollcage.")]
    assert own == []


def test_an_undo_is_asked_for_by_one_request_that_stays_as_it_is(store: JsonlStore) -> None:
    request = UndoRequest(run="r", to=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.to = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    for entry in (undo_steps, plan_steps, undo_orphans, undoing.undo, undoing.aundo):
        assert UndoRequest in get_type_hints(entry).values()
    with Session("job", store=store) as session:
        put("a")
        with pytest.raises(SessionError, match="steps count from 1"):
            session.undo(to=0)
    assert there == {"a"}


def test_what_decides_on_an_undo_is_told_the_name_of_the_run(store: JsonlStore) -> None:
    names: list[str] = []

    def noted(step: StepView) -> None:
        assert step.run is not None
        names.append(step.run.name)

    with Session("letters", store=store) as session:
        put("a")
    assert undo_run(store, session.run_id, rules=[noted]).complete
    assert set(names) == {"letters"}


def test_what_is_secret_here_is_no_name_of_an_agent_in_a_session_that_has_to_detect(
    store: JsonlStore,
) -> None:
    with (
        Session("outer", store=store, secrets="detected"),
        Session("inner", store=store, replay="off") as inner,
    ):
        login("xyzzy-4711-plugh")
        with inner.place(agent="xyzzy-4711-plugh"), pytest.raises(Blocked, match="its agent"):
            put("a")
    assert there == set()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_plan_writes_nothing_however_large_what_it_finds(store: JsonlStore, mode: str) -> None:
    with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
        put("a")
        made("b")
    before = files(store.root)
    tools: Any = [put, drop, drop_all, made]
    if mode == "sync":
        plan = plan_undo(store, session.run_id, tools=tools)
    else:
        plan = asyncio.run(aplan_undo(store, session.run_id, tools=tools))
    assert [each.name for each in plan.steps] == ["made", "put"]
    assert plan.steps[0].calls[0].name == "drop"
    assert files(store.root) == before
    assert there == {"a"}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_a_compensating_tool_calls_is_in_the_run_too(store: JsonlStore, mode: str) -> None:
    with Session("job", store=store) as session:
        put("a")
    if mode == "sync":
        report = undo_run(store, session.run_id)
    else:
        report = asyncio.run(aundo_run(store, session.run_id))
    assert report.complete
    assert there == set()
    steps = read_run(store.read(session.run_id)).steps
    assert [(s.name, s.parent) for s in steps] == [("put", None), ("drop_all", None), ("drop", 2)]


def test_a_run_is_given_up_where_it_can_not_be_opened_again(store: JsonlStore) -> None:
    with pytest.raises(RuntimeError), Session("job", store=store) as first:
        put("a")
        raise RuntimeError
    with pytest.raises(RuntimeError), Session("job", store=store) as second:
        put("a")
        raise RuntimeError
    with pytest.raises(SessionError, match="builds on"):
        OpenRun.reopen(store, first.run_id)
    run, _, lineage = OpenRun.reopen(store, second.run_id)
    assert lineage.runs == [first.run_id, second.run_id]
    run.close()
    looked, _ = OpenRun.inspect(store, second.run_id)
    assert (looked.writer, looked.root) == (None, first.run_id)
    with Session("job", store=store) as third:  # nobody holds a lock of it
        put("a")
    assert third.stats.hits == 1


def test_a_session_that_could_not_open_holds_nothing(store: JsonlStore) -> None:
    with pytest.raises(RuntimeError), Session("job", store=store) as first:
        put("a")
        raise RuntimeError
    other: Any = Session("job", store=store, seed="another")
    with pytest.raises(SessionError, match="seed"), other:
        pass
    with pytest.raises(SessionError, match="not entered"):
        _ = other.stats
    with Session("job", store=store, source=first.run_id) as again:
        put("a")
    assert again.stats.hits == 1
