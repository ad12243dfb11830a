"""A body that is entered again, and no longer does what it had done: its effects are orphans."""

from pathlib import Path

import pytest
from rollcage import Diverged, Options, Session, compensate, tool

done: list[str] = []
asks: list[str] = []


@tool(effect="write", name="bodies.drop", idempotent=True)
def drop(what: str) -> None:
    done.remove(what)


@tool(
    effect="write",
    name="bodies.put",
    undo=lambda args: [compensate(drop, what=args["what"])],
)
def put(what: str) -> str:
    done.append(what)
    return what


@tool(effect="scope", name="bodies.agent")
def agent(session: str) -> str:
    for what in asks:
        put(what)
    if "die" in asks:
        raise KeyboardInterrupt
    return session


@tool(effect="scope", name="bodies.branching")
def branching() -> None:
    inside = Session_here[0]
    if asks:
        with inside.branch("line"):
            put("in a branch")
        raise KeyboardInterrupt


Session_here: list[Session] = []
OPTIONS = Options(tools=[drop, put, agent, branching])


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()
    asks.clear()


def interrupted(store: Path) -> None:
    """A run whose agent is killed behind a write."""
    asks[:] = ["inner", "die"]
    with pytest.raises(KeyboardInterrupt), Session("job", store=store, options=OPTIONS):
        agent("a")
    assert done == ["inner", "die"]
    asks.clear()


def test_the_next_write_halts_before_it_is_made(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with (
        pytest.raises(Diverged, match=r"bodies\.put") as halted,
        Session("job", store=tmp_path, options=OPTIONS),
    ):
        agent("a")
        put("outer")
    assert done == ["inner", "die"]
    assert len(halted.value.orphans) == 2


def test_they_are_left_on_purpose_once(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with Session("job", store=tmp_path, options=OPTIONS, on_divergence="warn"):
        agent("a")
        put("outer")
        put("another")
    assert done == ["inner", "die", "outer", "another"]


def test_they_are_undone_first_where_that_is_asked_for(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with Session("job", store=tmp_path, options=OPTIONS, on_divergence="undo"):
        agent("a")
        put("outer")
    assert done == ["outer"]


def test_a_body_that_does_them_again_leaves_none(tmp_path: Path) -> None:
    interrupted(tmp_path)
    asks[:] = ["inner"]
    asks.append("die")
    with pytest.raises(KeyboardInterrupt), Session("job", store=tmp_path, options=OPTIONS):
        agent("a")
    assert done == ["inner", "die"]


def test_what_was_done_in_a_branch_inside_counts(tmp_path: Path) -> None:
    asks[:] = ["branch"]
    with pytest.raises(KeyboardInterrupt), Session("job", store=tmp_path) as session:
        Session_here[:] = [session]
        branching()
    asks.clear()
    with (
        pytest.raises(Diverged, match=r"bodies\.put"),
        Session("job", store=tmp_path) as session,
    ):
        Session_here[:] = [session]
        branching()
        put("outer")
    assert done == ["in a branch"]


def test_reads_and_what_is_in_another_place_of_a_replayed_run_go_on(tmp_path: Path) -> None:
    """A whole run that is replayed: each body is a hit, and nothing is left of it."""
    asks[:] = ["inner"]
    for replay in ("off", "resume", "offline"):
        with Session("job", store=tmp_path, replay=replay):
            agent("a")
            put("outer")
    assert done == ["inner", "outer"]
