"""What a framework's own memory holds is seen: used up in its order, and asked for by nobody."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from node_memory import Memory, Standing
from rollcage import Diverged, StepView, UnknownOutcome, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore, check_attested
from rollcage.trace import check_events

DONE: list[str] = []


class PowerCutError(Exception):
    """Ends a run in its middle."""


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


@tool
def write(text: str) -> str:
    """Write."""
    DONE.append(text)
    return f"wrote {text}"


@tool(effect="scope")
def delegate(texts: list[str]) -> str:
    """Let another one write."""
    for text in texts:
        write(text=text)
    return "delegated"


@tool(effect="read")
def look() -> int:
    """Look at what was written."""
    return len(DONE)


def events(root: Path, session: Session) -> list[dict[str, Any]]:
    trace = JsonlStore(root).read(session.run_id)
    check_attested(trace)
    return check_events(trace.data, trace.where)


def record(root: Path, *nodes: str, **settings: Any) -> Session:
    """A run of nodes that write once each, and is cut off."""
    memory = Memory()
    session = Session("job", store=root, **settings)
    with pytest.raises(PowerCutError), session:
        session.follow(memory)
        for node in nodes:
            with memory.at(node):
                write(text=node)
                look()
        raise PowerCutError
    return session


def test_the_world_moves_on_as_if_they_had_been_asked_for(tmp_path: Path) -> None:
    record(tmp_path / "asked", *"abcd")
    whole = events(tmp_path / "asked", record(tmp_path / "asked", *"abcd"))
    record(tmp_path / "seen", *"abc")
    memory = Memory(*"abc")
    with Session("job", store=tmp_path / "seen") as session:
        session.follow(memory)
        with memory.at("d"):
            write(text="d")
    assert [*"abcd", *"abcd"] == DONE
    assert (session.stats.seen, session.stats.hits, session.stats.misses) == (6, 0, 1)
    own = events(tmp_path / "seen", session)
    worlds = {e["args"]["text"]: e["world"] for e in whole if e.get("name") == "write"}
    assert {e["args"]["text"]: e["world"] for e in own if e.get("name") == "write"} == worlds
    assert own[-1]["status"] == "ok"


def test_a_memory_is_followed_from_before_the_session_is_entered(tmp_path: Path) -> None:
    """Adapters guard tools before, and the first that they tell of counts."""
    record(tmp_path, "a")
    memory = Memory("a")
    session = Session("job", store=tmp_path)
    session.follow(memory)
    with session:
        session.follow(Memory())
        with memory.at("b"):
            write(text="b")
    assert [*"ab"] == DONE
    assert (session.stats.seen, session.stats.misses) == (2, 1)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_framework_that_waits_as_the_session_is_left_pauses_the_run(
    tmp_path: Path, *, is_async: bool
) -> None:
    memory = Memory()
    memory.pause = "ann's answer"

    def run(session: Session) -> None:
        session.follow(memory)
        with memory.at("a"):
            write(text="a")

    async def arun(session: Session) -> None:
        async with session:
            run(session)

    session = Session("job", store=tmp_path)
    if is_async:
        asyncio.run(arun(session))
    else:
        with session:
            run(session)
    last = events(tmp_path, session)[-1]
    assert (last["status"], last["reason"]) == ("paused", "ann's answer")
    with Session("job", store=tmp_path) as later:
        memory.pause = None
        run(later)
    assert (later.root, DONE) == (session.run_id, ["a"])
    assert events(tmp_path, later)[-1]["status"] == "ok"


def test_what_a_session_says_itself_counts_more_than_its_memory(tmp_path: Path) -> None:
    memory = Memory()
    memory.pause = "ann's answer"
    with Session("said", store=tmp_path) as session:
        session.follow(memory)
        session.pause("bob's answer")
    assert events(tmp_path, session)[-1]["reason"] == "bob's answer"
    failed = Session("failed", store=tmp_path)
    with pytest.raises(PowerCutError), failed:
        failed.follow(memory)
        raise PowerCutError
    assert events(tmp_path, failed)[-1]["status"] == "error"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_memory_that_cannot_be_asked_ends_no_session_well(
    tmp_path: Path, *, is_async: bool
) -> None:
    class Broken(Memory):
        def waits(self) -> str | None:
            raise PowerCutError

        async def awaits(self) -> str | None:
            return self.waits()

    async def arun(session: Session) -> None:
        async with session:
            session.follow(Broken())

    session = Session("job", store=tmp_path)
    with pytest.raises(PowerCutError):
        if is_async:
            asyncio.run(arun(session))
        else:
            with session:
                session.follow(Broken())
    assert events(tmp_path, session)[-1]["status"] == "error"
    with Session("job", store=tmp_path):  # its lock was given back
        pass


def test_where_the_memory_lags_behind_the_rest_is_asked_for(tmp_path: Path) -> None:
    record(tmp_path, *"abc")
    memory = Memory("a")
    with Session("job", store=tmp_path) as session:
        session.follow(memory)
        for node in "bcd":
            with memory.at(node):
                write(text=node)
    assert [*"abc", "d"] == DONE
    assert (session.stats.seen, session.stats.hits, session.stats.misses) == (2, 2, 1)


def test_what_the_memory_does_not_hold_is_an_orphan(tmp_path: Path) -> None:
    record(tmp_path, *"abc")
    memory = Memory("a")  # it went back, and goes another way
    with pytest.raises(Diverged, match="'b'"), Session("job", store=tmp_path) as session:
        session.follow(memory)
        with memory.at("x"):
            write(text="x")
    assert [*"abc"] == DONE


@pytest.mark.parametrize("replay", ["offline", "verify"])
def test_where_nothing_runs_they_are_seen_as_well(tmp_path: Path, replay: Any) -> None:
    record(tmp_path, *"abc")
    memory = Memory(*"ab")
    with Session("job", store=tmp_path, replay=replay) as session:
        session.follow(memory)
        with memory.at("c"):
            write(text="c")
    assert (DONE, session.stats.seen, session.stats.hits) == ([*"abc"], 4, 1)


def test_async_calls_and_streams_look_back_too(tmp_path: Path) -> None:
    record(tmp_path, *"ab")
    memory = Memory(*"ab")

    @tool
    async def awrite(text: str) -> str:
        DONE.append(text)
        return text

    async def go() -> None:
        async with Session("job", store=tmp_path) as session:
            session.follow(memory)
            with memory.at("c"):
                assert await awrite(text="c") == "c"
            assert session.stats.seen == 4

    asyncio.run(go())
    assert [*"abc"] == DONE


def test_children_ride_on_their_parents(tmp_path: Path) -> None:
    memory = Memory()
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        session.follow(memory)
        with memory.at("a"):
            delegate(texts=["a1", "a2"])
        raise PowerCutError
    memory = Memory("a")
    with Session("job", store=tmp_path) as session:
        session.follow(memory)
        with memory.at("b"):
            delegate(texts=["b1"])
    assert DONE == ["a1", "a2", "b1"]
    assert session.stats.seen == 1
    assert events(tmp_path, session)[-1]["status"] == "ok"


def test_a_branch_is_seen_with_its_join(tmp_path: Path) -> None:
    def run(memory: Memory, *nodes: str) -> None:
        for node in nodes:
            with memory.at(node), session.branch("side"):
                write(text=node)

    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        memory = Memory()
        session.follow(memory)
        run(memory, "a", "b")
        raise PowerCutError
    first = events(tmp_path, session)
    with Session("job", store=tmp_path) as session:
        memory = Memory("a")
        session.follow(memory)
        run(memory, "b", "c")
    assert DONE == ["a", "b", "c"]
    joins = [e for e in events(tmp_path, session) if e["event"] == "branch.joined"]
    assert [(e["name"], e.get("seen", False)) for e in joins] == [
        ("side", True), ("side#2", False), ("side#3", False),
    ]  # fmt: skip
    recorded = [e["digest"] for e in first if e["event"] == "branch.joined"]
    assert [e["digest"] for e in joins[:2]] == recorded


def test_generations_and_an_undo_see_the_whole_job(tmp_path: Path) -> None:
    record(tmp_path, "a")
    for done, node in (("a", "b"), ("ab", "c")):
        with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
            memory = Memory(*done)
            session.follow(memory)
            with memory.at(node):
                write(text=node)
            raise PowerCutError
    with Session("job", store=tmp_path, replay="offline") as session:
        for node in "abc":
            write(text=node)
    assert [*"abc"] == DONE


# --- histories of messages -----------------------------------------------------------------------


def answer(session: Session, call_id: str, text: str) -> None:
    with session.place(call_id=call_id, conversation="ann"):
        write(text=text)


def talk(root: Path, **settings: Any) -> None:
    with pytest.raises(PowerCutError), Session("job", store=root, **settings) as session:
        answer(session, "1", "a")
        answer(session, "2", "b")
        raise PowerCutError


def test_answered_calls_are_seen_by_their_ids(tmp_path: Path) -> None:
    talk(tmp_path)
    with Session("job", store=tmp_path) as session:
        session.seen({"ann": ["1", "2"]})
        answer(session, "3", "c")
    assert (DONE, session.stats.seen) == (["a", "b", "c"], 2)


def test_an_id_that_was_given_as_often_is_another_call(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        answer(session, "same", "a")
        answer(session, "same", "b")
        raise PowerCutError
    with Session("job", store=tmp_path) as session:
        answer(session, "same", "a")
        session.seen({"ann": ["same"]})
        answer(session, "same", "b")
    assert (DONE, session.stats.seen, session.stats.hits) == (["a", "b"], 0, 2)


def test_histories_of_others_say_nothing(tmp_path: Path) -> None:
    talk(tmp_path)
    with Session("job", store=tmp_path) as session:
        session.seen({"bob": ["1", "2"]})
        answer(session, "1", "a")
        answer(session, "2", "b")
    assert (DONE, session.stats.seen, session.stats.hits) == (["a", "b"], 0, 2)


def test_a_fresh_run_sees_nothing(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        session.seen({"ann": ["1"]})
        answer(session, "2", "b")
    assert (DONE, session.stats.seen) == (["b"], 0)


def test_what_was_seen_counts_for_rules(tmp_path: Path) -> None:
    talk(tmp_path)
    counted: list[int] = []

    def rule(step: StepView) -> None:
        counted.append(step.calls)

    with Session("job", store=tmp_path, rules=[rule]) as session:
        session.seen({"ann": ["1", "2"]})
        answer(session, "3", "c")
    assert counted == [2]


@tool(effect="pure")
def double(number: int) -> int:
    """Double."""
    return 2 * number


@pytest.mark.parametrize("inside", ["nothing", "pure"])
def test_a_branch_is_the_same_one_whatever_was_done_in_those_before(
    tmp_path: Path, inside: str
) -> None:
    """Branches of one name, in nodes that a framework never comes back to, are counted too."""

    def agent(session: Session, *texts: str) -> None:
        with session.branch("agent"):
            if inside == "pure":
                double(number=1)
            for text in texts:
                write(text=text)

    memory = Memory()
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        session.follow(memory)
        double(number=1)
        with memory.at("first"):
            agent(session)
        with memory.at("second"):
            agent(session, "a")
            raise PowerCutError
    memory = Memory("first")
    with Session("job", store=tmp_path) as session:
        session.follow(memory)
        with memory.at("second"):
            agent(session, "a", "b")
    assert DONE == ["a", "b"]
    forked = [e["name"] for e in events(tmp_path, session) if e["event"] == "branch.forked"]
    assert forked == ["agent#2"]


def test_a_write_that_failed_in_a_block_is_not_seen(tmp_path: Path) -> None:
    """It was taken back with its block: there is nothing of it that a framework could hold."""

    @tool(effect="write", undo=lambda args: [])
    def fail(text: str) -> None:
        raise ValueError(text)

    memory = Memory()
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        session.follow(memory)
        with memory.at("one"), pytest.raises(ValueError, match="a"), session.transaction():
            fail(text="a")
        raise PowerCutError
    memory = Memory("one")
    with Session("job", store=tmp_path) as session:
        session.follow(memory)
        with memory.at("two"):
            write(text="b")
    assert DONE == ["b"]


async def test_a_turn_that_was_cut_behind_a_new_join_goes_on(tmp_path: Path) -> None:
    """What was seen before has turns of its own, and they don't end that one."""
    cut = asyncio.Event()
    session = Session("none", store=tmp_path)

    async def node(memory: Memory, turn: Any, number: int) -> None:
        if f"{number}" in memory.done:
            return
        with turn.slot(number):
            if number == 0:
                memory.node = "0"
                look()
            elif number == 1:
                memory.node = "1"
                with session.branch("agent"):
                    write(text="a")
            else:
                await asyncio.sleep(0)
                if cut.is_set():
                    raise PowerCutError
                memory.node = "2"
                write(text="b")

    async def go(*done: str) -> None:
        nonlocal session
        memory = Memory(*done)
        async with Session("job", store=tmp_path) as session:
            session.follow(memory)
            with session.turn() as turn:
                for number in (0, 2, 1) if not done else (0, 1, 2):
                    await node(memory, turn, number)
            if not done:
                raise PowerCutError

    with pytest.raises(PowerCutError):
        await go()
    trace = tmp_path / "runs" / f"{session.run_id}.jsonl"
    lines = trace.read_bytes().splitlines(keepends=True)
    behind = next(n for n, line in enumerate(lines) if b'"branch.joined"' in line)
    trace.write_bytes(b"".join(lines[:behind]))  # killed: the branch had not come back
    (tmp_path / "index.jsonl").unlink()
    cut.set()
    with pytest.raises(PowerCutError):
        await go("0")
    cut.clear()
    await go("0", "1")
    assert sorted(DONE) == ["a", "b"]
    assert session.stats.misses == 0


# --- what was on its way -------------------------------------------------------------------------


@dataclasses.dataclass
class Superstep(Standing):
    """A place that knows which of those that it was asked about are done at once with it."""

    asked: set[str] = dataclasses.field(default_factory=set[str])

    def is_beside(self, checkpoint: str) -> bool:
        """Whether it was asked about, and not done."""
        return checkpoint in self.asked - self.done

    def held(self, places: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """What is in the list."""
        places = list(places)
        self.asked.update(checkpoint for _, checkpoint in places)
        return super().held(places)


class Supersteps(Memory):
    """A memory of such places."""

    def __init__(self, *done: str) -> None:
        super().__init__(*done)
        self.asked: set[str] = set()

    def here(self) -> Superstep | None:
        """Where the framework stands."""
        return Superstep(self.node, self.done, asked=self.asked) if self.node else None


@tool
def lose(text: str) -> None:
    """Write, and be cut off."""
    DONE.append(text)
    raise KeyboardInterrupt


def test_a_task_beside_one_that_was_on_its_way_may_come_first(tmp_path: Path) -> None:
    memory = Supersteps()
    with pytest.raises(KeyboardInterrupt), Session("job", store=tmp_path) as session:
        session.follow(memory)
        with memory.at("first"):
            write(text="n1")
        with memory.at("left"), session.branch("left"):
            lose(text="l1")
    memory = Supersteps("first")  # the superstep of left was lost: it is run again, right first
    with pytest.raises(UnknownOutcome), Session("job", store=tmp_path) as session:
        session.follow(memory)
        with memory.at("right"), session.branch("right"):
            write(text="r1")
        with memory.at("left again"), session.branch("left"):
            lose(text="l1")
    assert DONE == ["n1", "l1", "r1"]
    assert "left" in memory.asked
