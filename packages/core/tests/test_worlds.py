"""The worlds of a recorded run follow from its events; a forger has to get all of them right."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from rollcage import tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore
from rollcage.trace import Worlds

Events = Callable[[str], list[dict[str, Any]]]


@tool(effect="write")
def write(what: str) -> str:
    return f"wrote {what}"


@tool(effect="read")
def look() -> str:
    return "seen"


@tool(effect="scope")
def agent(name: str) -> str:
    look()
    return write(f"by {name}")


@tool(effect="pure")
def think() -> str:
    return look()


def wrong(events: Iterable[dict[str, Any]]) -> list[str]:
    worlds = Worlds()
    return [said for event in events if (said := worlds.follow(event)) is not None]


@pytest.fixture
def run(store: JsonlStore, events: Events) -> Callable[..., list[dict[str, Any]]]:
    """A run with everything that makes a world; its events."""

    def record(**settings: Any) -> list[dict[str, Any]]:
        with Session("job", store=store, replay="off", **settings) as session:
            look()
            write("a")
            with session.turn():
                write("b")
                look()
                write("c")
            agent("one")
            think()
            with session.turn(), ThreadPoolExecutor(2) as pool:
                calls = [pool.submit(copy_context().run, agent, name) for name in "xy"]
                assert all(call.result() for call in calls)
            with session.branch("outer"), session.branch("inner") as inner:
                inner.call(write, what="d")
                inner.call(write, what="e")
            for _ in range(2):
                with session.branch("side"):
                    look()
                    write("f")
            look()
            write("g")
            look()
        return events(session.run_id)

    return record


@pytest.mark.parametrize("settings", [{}, {"chain": "all"}, {"seed": "of its own"}], ids=str)
def test_a_run_as_it_was_recorded_passes(run: Any, settings: dict[str, Any]) -> None:
    recorded = run(**settings)
    assert len(recorded) > 40
    assert wrong(recorded) == []


async def test_branches_at_once_pass(store: JsonlStore, events: Events) -> None:
    async def work(session: Session, name: str) -> None:
        with session.branch(name):
            for number in range(3):
                await asyncio.sleep(0)
                write(f"{name} {number}")

    async with Session("job", store=store) as session:
        write("before")
        await asyncio.gather(*(work(session, name) for name in "abc"))
        write("after")
    assert wrong(events(session.run_id)) == []


def writes(events: list[dict[str, Any]]) -> list[int]:
    """Those that something follows from: not what a tool's own body wrote last."""
    found = [
        e["step"]
        for e in events
        if e.get("effect") == "write" and not e.get("branch", "").startswith("#")
    ]
    assert len(found) == 8
    return found


def test_a_write_that_was_taken_out_shows(run: Any) -> None:
    recorded = run()
    for step in writes(recorded):
        assert wrong(event for event in recorded if event.get("step") != step), step


@pytest.mark.parametrize("field", ["world", "position", "branch"])
def test_a_step_that_was_put_elsewhere_shows(run: Any, field: str) -> None:
    recorded = run()
    elsewhere = {"world": "0" * 64, "position": 70, "branch": "outer/other"}[field]
    for place, event in enumerate(recorded):
        if event["event"] == "step.started":
            moved = [*recorded[:place], {**event, field: elsewhere}, *recorded[place + 1 :]]
            assert wrong(moved), event["step"]


def test_a_result_that_was_exchanged_shows(run: Any) -> None:
    recorded = run()
    steps = writes(recorded)
    for place, event in enumerate(recorded):
        if event["event"] == "step.finished" and event["step"] in steps:
            forged = [*recorded[:place], {**event, "digest": "0" * 64}, *recorded[place + 1 :]]
            assert wrong(forged), event["step"]


def test_a_branch_that_ended_otherwise_shows(run: Any) -> None:
    recorded = run()
    for place, event in enumerate(recorded):
        if event["event"] == "branch.joined":
            forged = [*recorded[:place], {**event, "digest": "0" * 64}, *recorded[place + 1 :]]
            assert any("ended" in said for said in wrong(forged))


def test_a_run_that_replays_is_not_followed(store: JsonlStore, events: Events, run: Any) -> None:
    with pytest.raises(RuntimeError), Session("job", store=store) as first:
        write("a")
        raise RuntimeError
    with Session("job", store=store) as again:
        write("a")
        write("b")
    for opened, followed in ((first, True), (again, False)):
        worlds = Worlds()
        assert [worlds.follow(event) for event in events(opened.run_id)].count(None) > 3
        assert worlds.followed is followed


def test_a_name_of_any_depth_is_taken(run: Any) -> None:
    recorded = run()
    deep = {**recorded[1], "branch": "/".join("a" * 5000)}
    assert wrong([recorded[0], deep, {**deep, "branch": "#" + "/" * 9}]) != []
