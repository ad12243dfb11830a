"""A framework's own memory: what it holds is seen, and what it starts over is done once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rollcage import Diverged, Session, StepView, Verdict, tool
from rollcage.stages.secrets import Secrets
from rollcage.trace.chain import checked
from rollcage_adapter import FrameworkMemory, FrameworkWork, Spot, follow

DONE: list[str] = []
BROKEN: set[str] = set()


class PowerCutError(Exception):
    """Ends a run in its middle."""


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()
    BROKEN.clear()


@tool(raises=[ValueError])
def write(text: str) -> str:
    """Write."""
    if text in BROKEN:
        raise ValueError(text)
    DONE.append(text)
    return f"wrote {text}, number {len(DONE)}"


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


class Place:
    """A place in a memory that is a list of what was done."""

    def __init__(self, node: str, done: frozenset[str]) -> None:
        self.spot: Spot = "thread", node
        self.done = done

    def round_of(self, spot: Spot) -> str:
        return spot[1].partition(".")[0]

    def held(self, spots: Iterable[Spot]) -> frozenset[Spot]:
        return frozenset(each for each in spots if each[1] in self.done)

    async def aheld(self, spots: Iterable[Spot]) -> frozenset[Spot]:
        await asyncio.sleep(0)
        return self.held(spots)


class Memory(FrameworkMemory):
    """A framework's memory: which of its nodes were done when it went on."""

    def __init__(self, *done: str) -> None:
        self.done = frozenset(done)
        self.node = ""
        self.pause: str | None = None
        self.around: list[FrameworkWork] = []

    def here(self) -> Place | None:
        return Place(self.node, self.done) if self.node else None

    def works(self) -> Sequence[FrameworkWork]:
        return self.around

    def waits(self) -> str | None:
        return self.pause

    @contextlib.contextmanager
    def at(self, node: str) -> Iterator[None]:
        """Run a node."""
        self.node = node
        yield
        self.node = ""

    def at_work(self, *works: str, by: object, number: int = 1) -> None:
        """Whatever is called next stands in these works; `number`: of the outermost."""
        names = ["|".join(works[: i + 1]) for i in range(len(works))]
        self.around = [
            FrameworkWork(name, by, number if i == 0 else 1, round=name)
            for i, name in enumerate(names)
        ]


def lines(session: Session) -> list[dict[str, Any]]:
    return list(checked(session.store.read(session.run_id), "the log"))


def record(root: Path, *nodes: str) -> Session:
    """A run of nodes that write once each, and is cut off."""
    memory = Memory()
    session = Session("job", store=root)
    with pytest.raises(PowerCutError), session:
        follow(session, memory)
        for node in nodes:
            with memory.at(node):
                write(text=node)
                look()
        raise PowerCutError
    return session


# --- what is seen --------------------------------------------------------------------------------


def test_what_is_seen_moves_on_as_if_asked_for(tmp_path: Path) -> None:
    record(tmp_path / "asked", *"abcd")
    whole = lines(record(tmp_path / "asked", *"abcd"))
    DONE.clear()
    record(tmp_path / "seen", *"abc")
    memory = Memory(*"abc")
    with Session("job", store=tmp_path / "seen") as session:
        follow(session, memory)
        with memory.at("d"):
            write(text="d")
    assert [*"abcd"] == DONE
    assert (session.stats.seen, session.stats.hits, session.stats.misses) == (6, 0, 1)
    names = {e["args"]["text"]: e["fingerprint"] for e in whole if e.get("name") == "write"}
    own = lines(session)
    assert {e["args"]["text"]: e["fingerprint"] for e in own if e.get("name") == "write"} == names
    assert own[-1]["status"] == "ok"


def test_a_memory_is_followed_from_before_entering(tmp_path: Path) -> None:
    """Adapters guard tools before, and the first that they tell of counts."""
    record(tmp_path, "a")
    memory = Memory("a")
    session = Session("job", store=tmp_path)
    follow(session, memory)
    with session:
        follow(session, Memory())
        with memory.at("b"):
            write(text="b")
    assert [*"ab"] == DONE
    assert (session.stats.seen, session.stats.misses) == (2, 1)


def test_a_memory_is_of_sessions_inside_too(tmp_path: Path) -> None:
    memory = Memory()
    with Session("outer", store=tmp_path) as outer:
        inner = Session("inner", store=tmp_path)
        follow(inner, memory)
        with inner:
            inner_memory = Memory()
            follow(inner, inner_memory)
            with memory.at("a"):
                write(text="a")
        with memory.at("b"):
            write(text="b")
    spots = [e["memory"] for e in lines(outer) if e.get("name") == "write"]
    assert spots == [["thread", "a"], ["thread", "b"]]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_framework_that_waits_pauses_the_run(tmp_path: Path, *, is_async: bool) -> None:
    memory = Memory()
    memory.pause = "ann's answer"

    def run(session: Session) -> None:
        follow(session, memory)
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
    last = lines(session)[-1]
    assert (last["status"], last["waits"]) == ("paused", "ann's answer")
    with Session("job", store=tmp_path) as later:
        memory.pause = None
        run(later)
    assert (later.run_id, DONE) == (session.run_id, ["a"])
    assert lines(later)[-1]["status"] == "ok"


def test_what_a_session_says_counts_more(tmp_path: Path) -> None:
    memory = Memory()
    memory.pause = "ann's answer"
    with Session("said", store=tmp_path) as session:
        follow(session, memory)
        session.pause("bob's answer")
    assert lines(session)[-1]["waits"] == "bob's answer"
    failed = Session("failed", store=tmp_path)
    with pytest.raises(PowerCutError), failed:
        follow(failed, memory)
        raise PowerCutError
    assert lines(failed)[-1]["status"] == "error"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_memory_that_can_not_be_asked_is_an_error(tmp_path: Path, *, is_async: bool) -> None:
    class Broken(Memory):
        def waits(self) -> str | None:
            raise PowerCutError

    async def arun(session: Session) -> None:
        async with session:
            follow(session, Broken())

    session = Session("job", store=tmp_path)
    with pytest.raises(PowerCutError):
        if is_async:
            asyncio.run(arun(session))
        else:
            with session:
                follow(session, Broken())
    assert lines(session)[-1]["status"] == "error"
    with Session("job", store=tmp_path):  # its lock was given back
        pass


def test_where_the_memory_lags_behind_the_rest_is_asked_for(tmp_path: Path) -> None:
    record(tmp_path, *"abc")
    memory = Memory("a")
    with Session("job", store=tmp_path) as session:
        follow(session, memory)
        for node in "bcd":
            with memory.at(node):
                write(text=node)
    assert [*"abcd"] == DONE
    assert (session.stats.seen, session.stats.hits, session.stats.misses) == (2, 2, 1)


def test_what_the_memory_does_not_hold_is_an_orphan(tmp_path: Path) -> None:
    record(tmp_path, *"abc")
    memory = Memory("a")  # it went back, and goes another way
    with pytest.raises(Diverged, match="lie ahead: 3"), Session("job", store=tmp_path) as session:
        follow(session, memory)
        with memory.at("x"):
            write(text="x")
    assert [*"abc"] == DONE


def test_offline_they_are_seen_as_well(tmp_path: Path) -> None:
    record(tmp_path, *"abc")
    memory = Memory(*"ab")
    with Session("job", store=tmp_path, replay="offline") as session:
        follow(session, memory)
        with memory.at("c"):
            write(text="c")
    assert (DONE, session.stats.seen, session.stats.hits) == ([*"abc"], 4, 1)


def test_async_calls_look_back_too(tmp_path: Path) -> None:
    record(tmp_path, *"ab")
    memory = Memory(*"ab")

    @tool
    async def awrite(text: str) -> str:
        DONE.append(text)
        return text

    async def go() -> None:
        async with Session("job", store=tmp_path) as session:
            follow(session, memory)
            with memory.at("c"):
                assert await awrite(text="c") == "c"
            assert session.stats.seen == 4

    asyncio.run(go())
    assert [*"abc"] == DONE


def test_children_ride_on_their_parents(tmp_path: Path) -> None:
    memory = Memory()
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        follow(session, memory)
        with memory.at("a"):
            delegate(texts=["a1", "a2"])
        raise PowerCutError
    memory = Memory("a")
    with Session("job", store=tmp_path) as session:
        follow(session, memory)
        with memory.at("b"):
            delegate(texts=["b1"])
    assert DONE == ["a1", "a2", "b1"]
    assert session.stats.seen == 1
    assert lines(session)[-1]["status"] == "ok"


def test_a_block_is_seen_with_its_steps(tmp_path: Path) -> None:
    def run(memory: Memory, *nodes: str) -> None:
        for node in nodes:
            with memory.at(node), session.branch("side"):
                write(text=node)

    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        memory = Memory()
        follow(session, memory)
        run(memory, "a", "b")
        raise PowerCutError
    with Session("job", store=tmp_path) as session:
        memory = Memory("a")
        follow(session, memory)
        run(memory, "b", "c")
    assert DONE == ["a", "b", "c"]
    assert (session.stats.seen, session.stats.hits) == (1, 1)
    with Session("job", store=tmp_path, replay="offline") as session:  # and nobody remembers
        run(Memory(), "a", "b", "c")
    assert session.stats.hits == 3


def test_a_hit_at_another_place_is_moved_at_once(tmp_path: Path) -> None:
    """The memory is lost, and begins anew: it knows the new places only."""
    record(tmp_path, *"ab")
    memory = Memory()
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        follow(session, memory)
        with memory.at("a2"):
            write(text="a")
            moved = lines(session)[-1]
            assert (moved["event"], moved["memory"]) == ("moved", ["thread", "a2"])
        raise PowerCutError
    memory = Memory("a2")
    with Session("job", store=tmp_path) as session:
        follow(session, memory)
        with memory.at("b"):
            write(text="b")
    assert DONE == ["a", "b"]
    assert (session.stats.seen, session.stats.hits) == (1, 1)


def test_a_hit_at_a_place_that_quotes_a_secret_is_moved_once(tmp_path: Path) -> None:
    """On record the place is concealed, and so differs from the one in the memory."""

    @tool(effect="read", secret=["token"])
    def enter(token: str) -> str:
        return "in"

    for attempt in range(2):
        with Session("job", store=tmp_path, stages=[Secrets()], replay="continue") as session:
            memory = Memory()
            follow(session, memory)
            enter(token="hunter2-the-second")
            with memory.at("for hunter2-the-second"):
                write(text="a")
        assert DONE == ["a"]
        moved = [line for line in lines(session) if line["event"] == "moved"]
        assert len(moved) == attempt
        assert "hunter2" not in str(lines(session))


def test_generations_see_the_whole_job(tmp_path: Path) -> None:
    record(tmp_path, "a")
    for done, node in (("a", "b"), ("ab", "c")):
        with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
            memory = Memory(*done)
            follow(session, memory)
            with memory.at(node):
                write(text=node)
            raise PowerCutError
    with Session("job", store=tmp_path, replay="offline") as session:
        for node in "abc":
            write(text=node)
    assert [*"abc"] == DONE


def test_an_answer_that_is_seen_is_not_asked_for_again(tmp_path: Path) -> None:
    """A model that is asked the same once more is asked anew, and each answer has its rank."""
    asked: list[str] = []

    def ask(session: Session) -> Any:
        from rollcage_adapter import model_contract, model_request

        def body(**_: Any) -> str:
            asked.append("?")
            return f"answer {len(asked)}"

        return session.run_call(
            model_contract("m", "test"), model_request(["go"], options={}), body, kind="model"
        )

    memory = Memory()
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        follow(session, memory)
        with memory.at("a"):
            assert ask(session) == "answer 1"
        raise PowerCutError
    for _ in range(2):
        memory = Memory("a")
        with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
            follow(session, memory)
            with memory.at("b"):
                assert ask(session) == "answer 2"
            raise PowerCutError
    assert len(asked) == 2


# --- what is started over ------------------------------------------------------------------------

INVOKED, RESUMED = object(), object()


def opened(root: Path, **settings: Any) -> tuple[Session, Memory]:
    session, memory = Session("tries", store=root, replay="off", **settings), Memory()
    follow(session, memory)
    return session, memory


@pytest.mark.parametrize(("by", "number"), [(INVOKED, 2), (RESUMED, 1)], ids=["retry", "resume"])
def test_calls_are_given_back_in_the_next_try(tmp_path: Path, by: object, number: int) -> None:
    session, memory = opened(tmp_path)
    with session:
        memory.at_work("n:1", by=INVOKED)
        first = [write("a"), look(), write("a")]
        memory.at_work("n:1", by=by, number=number)
        assert [write("a"), look(), write("a"), write("b")] == [*first, "wrote b, number 3"]
        memory.at_work("n:2", by=by)  # another node, or another round of it
        assert write("a") == "wrote a, number 4"
    assert (session.stats.calls, session.stats.hits, session.stats.misses) == (8, 3, 5)


def test_a_retry_starts_over_what_is_inside(tmp_path: Path) -> None:
    session, memory = opened(tmp_path)
    with session:
        memory.at_work("n:1", "in:1", by=INVOKED)
        write("a")
        memory.at_work("n:1", "in:2", by=INVOKED, number=2)
        assert write("a") == "wrote a, number 1"
        memory.at_work("n:1", "in:3", by=RESUMED)  # of the inner graph, what is behind that
        assert write("a") == "wrote a, number 2"


def test_a_failure_at_the_end_is_made_again(tmp_path: Path) -> None:
    session, memory = opened(tmp_path)
    BROKEN.update(["x", "y"])
    with session:
        memory.at_work("n:1", by=INVOKED)
        with pytest.raises(ValueError, match="x"):
            write("x")
        write("a")
        with pytest.raises(ValueError, match="y"):
            write("y")
        BROKEN.clear()
        memory.at_work("n:1", by=INVOKED, number=2)
        with pytest.raises(ValueError, match="x"):
            write("x")
        assert (write("a"), write("y")) == ("wrote a, number 1", "wrote y, number 2")


def test_calls_of_a_body_that_runs_again_are_not_made_again(tmp_path: Path) -> None:
    fails = [True]

    @tool(effect="scope")
    def both() -> str:
        said = write("one") + write("two")
        if fails.pop():
            fails.append(False)
            raise ValueError("after both")
        return said

    session, memory = opened(tmp_path)
    with session:
        memory.at_work("n:1", by=INVOKED)
        with pytest.raises(ValueError, match="after both"):
            both()
        memory.at_work("n:1", by=INVOKED, number=2)
        assert both() == "wrote one, number 1wrote two, number 2"
    assert DONE == ["one", "two"]


def test_blocks_are_opened_again_by_their_names(tmp_path: Path) -> None:
    session, memory = opened(tmp_path)
    with session:
        for number in (1, 2):
            memory.at_work("n:1", by=INVOKED, number=number)
            for name in ("left", "right"):
                with session.branch(name):
                    write("same")
    assert DONE == ["same"] * 2


@pytest.mark.parametrize("on_divergence", ["halt", "warn"])
def test_another_write_leaves_effects_behind(tmp_path: Path, on_divergence: Any) -> None:
    session, memory = opened(tmp_path, on_divergence=on_divergence)

    def play() -> None:
        with session:
            memory.at_work("n:1", by=INVOKED)
            write("a")
            memory.at_work("n:1", by=INVOKED, number=2)
            look()  # whatever changes nothing may be new
            write("b")

    if on_divergence == "warn":
        play()
        assert DONE == ["a", "b"]
        return
    with pytest.raises(Diverged, match=r"lie ahead: 1 \(write\)"):
        play()
    assert DONE == ["a"]


def test_a_deny_wins_over_what_was_done(tmp_path: Path) -> None:
    denies: list[bool] = []

    def rule(_: StepView) -> Verdict | None:
        return Verdict.deny("no longer") if denies else None

    session, memory = opened(tmp_path, gate=[rule])
    with session:
        memory.at_work("n:1", by=INVOKED)
        write("a")
        denies.append(True)
        memory.at_work("n:1", by=INVOKED, number=2)
        with pytest.raises(Exception, match="no longer"):
            write("a")


# --- what is done at once ------------------------------------------------------------------------


class Rounds(Memory):
    """A framework that does nodes one after the other, and some of them as tasks at once."""

    def task(self, node: int, names: tuple[str, ...], name: str) -> Iterator[None]:
        self.node = f"{node}.{name}"
        self.around = [
            FrameworkWork(
                f"{node}:{name}", self, 1, f"{node}", len(names) > 1, name, names.index(name), names
            )
        ]
        yield


def play(session: Session, memory: Rounds, done: set[str], cut: int, order: random.Random) -> None:
    """Do the rounds that are not done; each task writes twice, and in a block once."""
    follow(session, memory)
    calls = 0
    for node, names in enumerate([("a",), ("b", "c", "d"), ("e",), ("b", "c"), ("f",)]):
        todo = [name for name in names if f"{node}.{name}" not in done]
        order.shuffle(todo)
        work = [(name, step) for name in todo for step in range(3)]
        work.sort(key=lambda _: order.random())  # tasks take turns, each in its own order
        steps = {name: iter(range(3)) for name in todo}
        for name, _ in work:
            next(memory.task(node, names, name))
            step = next(steps[name])
            if calls == cut:
                raise PowerCutError
            calls += 1
            if step == 1:
                with session.branch("inside"):
                    write(f"{node}{name}{step}")
            else:
                write(f"{node}{name}{step}")
            if step == 2:
                done.add(f"{node}.{name}")


@pytest.mark.parametrize("seed", range(60))
def test_tasks_at_once_are_done_once_however_they_are_cut(tmp_path: Path, seed: int) -> None:
    """Killed after any call, gone on with from what the memory holds, in another order."""
    order = random.Random(seed)  # noqa: S311 - reproducible
    done: set[str] = set()
    for _ in range(4):
        memory = Rounds(*done)
        try:
            with Session("job", store=tmp_path) as session:
                play(session, memory, done, order.randrange(12), order)
            break
        except PowerCutError:
            if order.random() < 0.3:  # the memory was behind
                done.difference_update(order.sample(sorted(done), min(1, len(done))))
    memory = Rounds(*done)
    with Session("job", store=tmp_path, replay="continue") as session:
        play(session, memory, done, -1, order)
    everything = [
        f"{node}{name}{step}"
        for node, names in enumerate(["a", "bcd", "e", "bc", "f"])
        for name in names
        for step in range(3)
    ]
    assert sorted(DONE) == sorted(everything)
    with Session("job", store=tmp_path, replay="offline") as session:
        play(session, Rounds(), set(), -1, random.Random(seed))  # noqa: S311 - the same
    assert (session.stats.hits, sorted(DONE)) == (24, sorted(everything))
