"""Where real runs bend: nested calls and undo, branches and turns, and what was refused."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    Diverged,
    Session,
    StepView,
    Store,
    UnknownOutcome,
    Verdict,
    compensate,
    tool,
    undo_run,
)

Events = Callable[[str], list[dict[str, Any]]]


class Shelf:
    """Things that are there."""

    def __init__(self) -> None:
        self.there: list[str] = []
        self.took = self._make_take()
        self.put = self._make_put()

    def _make_take(self) -> Any:
        @tool(effect="write", name="take", idempotent=True)
        def take(thing: str) -> None:
            self.there.remove(thing)

        return take

    def _make_put(self) -> Any:
        @tool(effect="write", name="put", undo=lambda args: [compensate("take", **args)])
        def put(thing: str) -> None:
            self.there.append(thing)

        return put


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_an_undo_to_a_step_keeps_what_its_body_called(store: Store, shelf: Shelf) -> None:
    @tool(effect="write")
    def both() -> None:
        shelf.put(thing="a")
        shelf.put(thing="b")

    def job() -> None:
        both()
        shelf.put(thing="c")

    with Session("job", store=store) as session:
        job()
    report = undo_run(store, session.run_id, to=1, tools=[shelf.put, shelf.took])
    assert [step.step for step in report.steps] == [4]
    assert report.complete
    assert shelf.there == ["a", "b"]
    with Session("job", store=store, replay="resume") as session:
        job()
        assert (session.stats.hits, session.stats.misses) == (1, 1)
    assert shelf.there == ["a", "b", "c"]


def test_a_step_whose_call_was_taken_back_is_no_hit(store: Store, shelf: Shelf) -> None:
    @tool(effect="scope")
    def agent() -> None:
        with session.branch("inner"):
            shelf.put(thing="a")

    with Session("job", store=store) as session:
        agent()
        assert session.undo(branch="inner").complete
    assert shelf.there == []
    with Session("job", store=store, replay="resume") as session:
        agent()
        assert session.stats.hits == 0
    assert shelf.there == ["a"]


def test_a_block_inside_of_a_reversible_tool_is_taken_back(store: Store, shelf: Shelf) -> None:
    @tool(effect="write", undo=list)
    def outer() -> None:
        with pytest.raises(KeyError), session.transaction():
            shelf.put(thing="a")
            raise KeyError

    with Session("job", store=store) as session:
        outer()
        assert shelf.there == [], "its own plan is for what it leaves behind"


def test_to_go_on_without_orphans_runs_no_unknown_write_again(store: Store) -> None:
    sent: list[str] = []

    @tool(effect="write")
    def send(to: str) -> None:
        sent.append(to)
        raise TimeoutError

    @tool(effect="write")
    def log(line: str) -> None:
        sent.append(line)

    with pytest.raises(UnknownOutcome), Session("job", store=store):
        send("ann")
    with (
        pytest.raises(UnknownOutcome) as halted,
        Session("job", store=store, on_divergence="warn") as session,
    ):
        log("now it takes another way")
    assert sent == ["ann"]
    assert halted.value.step == 1
    assert session.stats.misses == 0


def test_a_fork_follows_the_path_as_the_turn_that_it_stands_in(store: Store, shelf: Shelf) -> None:
    """Another call of the turn left the recorded path: what was recorded beside it still holds."""

    def job(*, more: bool) -> None:
        with session.turn() as turn:
            if more:
                with turn.slot(1):
                    shelf.put(thing="new")
            with turn.slot(0), session.branch("agent"):
                shelf.put(thing="a")

    with pytest.raises(KeyError), Session("job", store=store) as session:
        job(more=False)
        raise KeyError
    with Session("job", store=store) as session:
        job(more=True)
        assert session.stats.hits == 1
    assert shelf.there == ["a", "new"]


def test_branches_at_once_come_back_in_any_order(store: Store, tmp_path: Path) -> None:
    done: list[str] = []

    @tool(effect="write")
    async def step(name: str) -> None:
        await asyncio.sleep(0)
        done.append(name)

    async def agent(session: Session, name: str, steps: int) -> None:
        with session.branch(name):
            for number in range(steps):
                await step(f"{name}{number}")

    async def job(*, first: str, last: bool) -> None:
        async with Session("job", store=store) as session:
            lengths = {"a": 1 if first == "a" else 3, "b": 3 if first == "a" else 1}
            await asyncio.gather(*(agent(session, name, lengths[name]) for name in "ab"))
            if not last:
                raise KeyError
            await step("end")

    with pytest.raises(KeyError):
        asyncio.run(job(first="a", last=False))
    asyncio.run(job(first="a", last=True))
    assert sorted(done) == ["a0", "b0", "b1", "b2", "end"]


def test_a_branch_that_goes_by_another_name_still_halts(store: Store, shelf: Shelf) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        with session.branch("empty"):
            pass
        with session.branch("one"):
            shelf.put(thing="a")
        raise KeyError
    job = Session("job", store=store)
    with pytest.raises(Diverged), job as session, session.branch("renamed"):
        shelf.put(thing="a")
    assert shelf.there == ["a"]


def test_a_branch_that_begins_with_a_rejected_call_is_resumed(store: Store, shelf: Shelf) -> None:
    def asks(step: StepView) -> Verdict | None:
        return Verdict.ask("really?") if step.args["thing"] == "no" else None

    def rejects(_: ApprovalRequest) -> Approval:
        return Approval.reject(by="ann")

    def job(*things: str) -> Session:
        with Session("job", store=store, gate=[asks], approver=rejects) as session:
            with session.branch("agent"):
                with pytest.raises(Blocked):
                    shelf.put(thing="no")
                shelf.put(thing="a")
            for each in things:
                shelf.put(thing=each)
            if len(things) == 1:
                raise InterruptedError
        return session

    with pytest.raises(InterruptedError):
        job("b")
    assert job("b", "c").stats.hits == 2
    assert shelf.there == ["a", "b", "c"]


def _in_block(session: Session, kind: str, store: Store) -> Any:
    if kind == "session":
        return Session("inner", store=store)
    return session.transaction() if kind == "transaction" else session.branch("inner")


@tool(effect="read", name="look")
def look() -> str:
    return "seen"


@pytest.mark.parametrize("kind", ["session", "transaction", "branch"])
def test_a_write_that_is_new_in_a_block_that_changed_nothing_halts(
    store: Store, shelf: Shelf, kind: str
) -> None:
    """The recorded write behind the block has the block's position, and lies ahead nevertheless."""

    def job(*in_it: str, behind: str = "behind", **how: Any) -> None:
        with Session("job", store=store, **how) as session:
            with _in_block(session, kind, store):
                look()
                for each in in_it:
                    shelf.put(thing=each)
            shelf.put(thing=behind)
            if how.get("replay") != "offline":
                raise ConnectionError

    with pytest.raises(ConnectionError):
        job()
    with pytest.raises(Diverged):
        job("new")
    assert shelf.there == ["behind"]
    with pytest.raises(ConnectionError):
        job("new", behind="other", on_divergence="warn")
    assert shelf.there == ["behind", "new", "other"]
    with pytest.raises(ConnectionError):
        job("new", behind="other")
    job("new", behind="other", replay="offline")
    assert shelf.there == ["behind", "new", "other"]


@pytest.mark.parametrize("kind", ["session", "transaction", "branch"])
def test_what_comes_behind_a_block_that_changes_nothing_any_more_is_found(
    store: Store, shelf: Shelf, kind: str
) -> None:
    def job(*in_it: str, behind: str, **how: Any) -> None:
        with Session("job", store=store, **how) as session:
            with _in_block(session, kind, store):
                for each in in_it:
                    shelf.put(thing=each)
            shelf.put(thing=behind)
            if how.get("replay") != "offline":
                raise ConnectionError

    with pytest.raises(ConnectionError):
        job("inside", behind="behind")
    for _ in range(2):
        with pytest.raises(ConnectionError):
            job(behind="other", on_divergence="warn")
    job(behind="other", replay="offline")
    assert shelf.there == ["inside", "behind", "other"]
