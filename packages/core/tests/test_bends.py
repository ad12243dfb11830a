"""Where real runs bend: nested calls and undo, turns and probes, branches and turns, repeats."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    DidNotHappen,
    Diverged,
    StepView,
    UnknownOutcome,
    Verdict,
    compensate,
    tool,
)
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore
from rollcage.trace import check_events

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


def test_an_undo_to_a_step_keeps_what_its_body_called(store: JsonlStore, shelf: Shelf) -> None:
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


def test_a_step_whose_call_was_taken_back_is_no_hit(store: JsonlStore, shelf: Shelf) -> None:
    @tool(effect="scope")
    def agent() -> None:
        with session.branch("inner"):
            shelf.put(thing="a")

    with Session("job", store=store) as session:
        agent()
        (name,) = {e["branch"] for e in _events(store, session.run_id) if e.get("name") == "put"}
        assert session.undo_branch(name).complete
    assert shelf.there == []
    with Session("job", store=store, replay="resume") as session:
        agent()
        assert session.stats.hits == 0
    assert shelf.there == ["a"]


def test_a_block_inside_of_a_reversible_tool_is_taken_back(store: JsonlStore, shelf: Shelf) -> None:
    @tool(effect="write", undo=list)
    def outer() -> None:
        with pytest.raises(KeyError), session.transaction():
            shelf.put(thing="a")
            raise KeyError

    with Session("job", store=store) as session:
        outer()
        assert shelf.there == [], "its own plan is for what it leaves behind"


def test_a_framework_may_repeat_a_turn_of_any_size(store: JsonlStore) -> None:
    ran: list[int] = []

    @tool(effect="write")
    def send(number: int) -> int:
        ran.append(number)
        return number

    with Session("job", store=store) as session:
        for _ in range(2):
            for number in range(300):
                with session.place(turn="t", slot=number):
                    assert send(number) == number
    assert ran == list(range(300))


def test_to_go_on_without_orphans_runs_no_unknown_write_again(store: JsonlStore) -> None:
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


@pytest.mark.parametrize("is_async", [False, True])
async def test_after_a_kill_inside_a_turn_the_rest_keeps_its_slots_order(
    store: JsonlStore, is_async: bool
) -> None:
    began: list[int] = []
    go_on = asyncio.Event() if is_async else threading.Event()

    async def aprobe() -> Any:
        assert isinstance(go_on, asyncio.Event)
        await go_on.wait()
        return DidNotHappen()

    def probe() -> Any:
        assert isinstance(go_on, threading.Event)
        assert go_on.wait(60)
        return DidNotHappen()

    @tool(effect="write", probe=aprobe if is_async else probe)
    async def send(number: int) -> None:
        began.append(number)
        if len(began) == 1:
            raise TimeoutError

    async def slot(turn: Any, number: int) -> None:
        with turn.slot(number):
            await send(number)

    with pytest.raises(UnknownOutcome):
        async with Session("job", store=store) as session:
            with session.turn() as turn:
                await slot(turn, 0)
    began[:] = [-1]
    async with Session("job", store=store) as session:
        with session.turn() as turn:
            calls = [asyncio.create_task(slot(turn, number)) for number in range(4)]
            for _ in range(20):
                await asyncio.sleep(0)
            assert began == [-1], "the first slot is still being asked about"
            go_on.set()
            await asyncio.gather(*calls)
    assert began == [-1, 0, 1, 2, 3]


def test_a_probe_that_fails_lets_the_rest_of_the_turn_go(store: JsonlStore) -> None:
    def probe() -> Any:
        raise KeyboardInterrupt

    @tool(effect="write", probe=probe)
    def send(number: int) -> None:
        if number == 0:
            raise TimeoutError

    with pytest.raises(UnknownOutcome), Session("job", store=store):
        send(0)
    job = Session("job", store=store)
    with pytest.raises(KeyboardInterrupt), job as session, session.turn():
        with pytest.raises(KeyboardInterrupt):
            send(0)
        send(1)  # it does not wait for ever
        raise KeyboardInterrupt


def test_a_fork_follows_the_path_as_the_turn_that_it_stands_in(
    store: JsonlStore, shelf: Shelf
) -> None:
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


def test_a_replayed_join_has_the_recorded_fingerprint(
    store: JsonlStore, shelf: Shelf, events: Events
) -> None:
    def job(session: Session) -> None:
        with session.branch("one"):
            shelf.put(thing="a")
        with session.branch("two"):
            shelf.put(thing="b")

    joins: list[list[str]] = []
    for _ in range(3):
        with pytest.raises(KeyError), Session("job", store=store) as session:
            job(session)
            raise KeyError
        told = events(session.run_id)
        joins.append([e["fingerprint"] for e in told if e["event"] == "branch.joined"])
    assert joins[0] == joins[1] == joins[2]
    assert len(joins[0]) == 2


def test_a_failure_at_the_end_runs_again_whatever_pure_steps_repeat(store: JsonlStore) -> None:
    attempts: list[int] = []

    @tool(effect="pure")
    def double(number: int) -> int:
        return 2 * number

    @tool(effect="write")
    def send() -> str:
        attempts.append(len(attempts))
        if len(attempts) < 4:
            raise ValueError("not yet")
        return "sent"

    for _ in range(3):
        with pytest.raises(ValueError, match="not yet"), Session("job", store=store):
            double(1)
            double(1)
            send()
    with Session("job", store=store):
        double(1)
        double(1)
        assert send() == "sent"


def test_branches_at_once_come_back_in_any_order(store: JsonlStore, tmp_path: Path) -> None:
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


def _events(store: JsonlStore, run: str) -> list[dict[str, Any]]:
    return check_events(store.read(run).data, run)


@pytest.mark.parametrize("first", ["nothing", "pure", "read"])
@pytest.mark.parametrize("nested", [False, True])
async def test_a_branch_that_was_cut_before_its_first_write_goes_on(
    store: JsonlStore, shelf: Shelf, first: str, nested: bool
) -> None:
    """It is no branch that goes by another name now: that is on record."""

    @tool(effect="pure" if first == "pure" else "read")
    def look() -> int:
        return 1

    async def agent(name: str, thing: str) -> None:
        with session.branch(name):
            if first != "nothing":
                look()
            if thing:
                shelf.put(thing=thing)

    async def job(*, cut: bool) -> None:
        with session.branch("around") if nested else contextlib.nullcontext():
            await asyncio.gather(agent("one", "" if cut else "a"), agent("two", "b"))
            if cut:
                raise KeyError

    for _ in range(2):  # of a resume that is cut in the same place, too
        with pytest.raises(KeyError):
            async with Session("job", store=store) as session:
                await job(cut=True)
    async with Session("job", store=store) as session:
        await job(cut=False)
    assert sorted(shelf.there) == ["a", "b"]


def test_a_branch_that_goes_by_another_name_still_halts(store: JsonlStore, shelf: Shelf) -> None:
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


def test_a_branch_that_begins_with_a_rejected_call_is_resumed(
    store: JsonlStore, shelf: Shelf
) -> None:
    def asks(step: StepView) -> Verdict | None:
        return Verdict.ask("really?") if step.args["thing"] == "no" else None

    def rejects(_: ApprovalRequest) -> Approval:
        return Approval.reject(by="ann")

    def job(*things: str) -> Session:
        with Session("job", store=store, rules=[asks], approver=rejects) as session:
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
