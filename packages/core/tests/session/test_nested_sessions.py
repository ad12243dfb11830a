"""Sessions inside of one another: each guards its own calls, whatever order they are left in."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import (
    Halt,
    Session,
    SessionError,
    SessionHalted,
    StepView,
    UnguardedCallWarning,
    Verdict,
    compensate,
    tool,
)
from rollcage.calls.stage import Stage

Make = Callable[[str], Session]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda name: Session(name, store=tmp_path / "store")


@tool(effect="read")
def look() -> str:
    return "seen"


def calls(*sessions: Session) -> list[int]:
    """How many calls stand in the branch of each session: one inside of another has its own."""
    found = []
    for each in sessions:
        (log,) = Path(each.store.url).rglob(f"{each.run_id}.jsonl")
        lines = [orjson.loads(line) for line in log.read_bytes().splitlines()]
        steps = [line for line in lines if line["event"] == "step" and "kind" not in line]
        found.append(sum(line["branch"] == each.home_branch for line in steps))
    return found


def out(session: Session) -> None:
    session.__exit__(None, None, None)


def test_a_session_that_can_not_be_entered_leaves_no_stage_behind(make: Make) -> None:
    told: list[str] = []

    class Breaks(Stage):
        def __init__(self) -> None:
            self.folds = {"step": lambda event: told.append(event["name"])}

        def opened(self, session: Session) -> None:
            raise ZeroDivisionError

        def closed(self, session: Session, error: BaseException | None) -> None:
            told.append(type(error).__name__)

    with make("a") as a:
        b = Session("b", store=a.store, gate=[Breaks()])
        with pytest.raises(ZeroDivisionError), b:
            pass
        look()
    assert look() == "seen"  # no session is open
    assert told == ["ZeroDivisionError"]
    assert calls(a) == [1]


def test_the_innermost_session_guards(make: Make) -> None:
    with make("a") as a:
        look()
        with make("b") as b:
            look()
        look()
    assert calls(a, b) == [2, 1]
    assert look() == "seen"  # of no session, without a warning


def test_nothing_runs_inside_once_the_outer_one_is_left(make: Make) -> None:
    a, b = make("a").__enter__(), make("b").__enter__()
    out(a)
    with pytest.raises(SessionError, match="was left"):  # a branch of a run that has ended
        look()
    out(b)
    assert look() == "seen"
    assert calls(a, b) == [0, 0]


def test_three_sessions_left_in_any_order(make: Make) -> None:
    a, b, c = (make(name).__enter__() for name in "abc")
    out(b)
    with pytest.raises(SessionError, match="'c', which was left"):  # it is a part of b
        look()
    out(c)
    look()
    out(a)
    look()
    assert calls(a, b, c) == [1, 0, 0]


def test_a_session_left_in_a_turn_of_its_own_is_gone_behind_it(make: Make) -> None:
    session = make("a").__enter__()
    turn = session.turn()
    turn.__enter__()
    out(session)
    assert look() == "seen"
    turn.__exit__(None, None, None)
    assert look() == "seen"
    assert calls(session) == [0]


def test_a_session_may_be_left_in_another_thread(make: Make) -> None:
    a, b = make("a").__enter__(), make("b").__enter__()
    for session in (b, a):
        thread = threading.Thread(target=out, args=(session,))
        thread.start()
        thread.join()
        assert look() == "seen"
    assert calls(a, b) == [1, 0]
    with make("c") as c:
        look()
    assert calls(c) == [1]


def test_a_session_left_in_a_copied_context_is_gone_from_both(make: Make) -> None:
    session = make("a").__enter__()
    copied = contextvars.copy_context()
    copied.run(out, session)
    assert copied.run(look) == look() == "seen"
    assert calls(session) == [0]


async def test_sessions_of_async_fixtures_that_end_in_other_tasks(make: Make) -> None:
    """Each half of a fixture runs in a task of its own, the test in a third one."""

    async def fixture(name: str) -> AsyncGenerator[Session]:
        async with make(name) as session:
            yield session

    a, b = fixture("a"), fixture("b")
    first = await asyncio.create_task(a.__anext__())
    second = await asyncio.create_task(b.__anext__())
    first.call(look)
    with pytest.warns(UnguardedCallWarning):
        look()  # the test's own context knows neither
    for each in (a, b):
        await asyncio.create_task(each.aclose())
    for thread in threading.enumerate():  # a session that a GeneratorExit ends waits for nothing
        if thread.name == "rollcage-leaving":
            thread.join()
    assert look() == "seen"
    assert calls(first, second) == [1, 0]


async def test_an_exit_stack_in_one_task(make: Make) -> None:
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(make("a"))
        b = await stack.enter_async_context(make("b"))
        look()
    look()
    assert calls(a, b) == [0, 1]


async def test_a_task_that_outlives_its_session_is_refused(make: Make) -> None:
    """Not unguarded: it was started as a part of the session's work."""
    over = asyncio.Event()

    async def late(inner: Session | None) -> Any:
        if inner is None:
            await over.wait()
        else:
            async with inner:
                await over.wait()
                look()
        return look()

    async with make("a") as a:
        b = make("b")
        tasks = [asyncio.create_task(late(inner)) for inner in (None, b)]
        await asyncio.sleep(0)
    over.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in ended] == [SessionError, SessionError]
    assert calls(a, b) == [0, 0]


def test_a_tool_that_leaves_its_own_session(make: Make) -> None:
    inner = make("inner")
    with make("outer") as outer:
        inner.__enter__()
        outer.call(leave_inner_of(inner))
        look()
    look()
    assert calls(outer, inner) == [2, 0]


def leave_inner_of(inner: Session) -> Callable[[], None]:
    def leave_inner() -> None:
        out(inner)

    return leave_inner


@pytest.mark.parametrize(
    ("how", "is_own"),
    [
        ({}, False),
        ({"replay": "auto"}, False),
        ({"replay": "continue"}, False),
        ({"replay": "off"}, True),
        ({"replay": "offline", "source": "first"}, True),
        ({"replay": "verify", "source": "first"}, True),
        ({"replay": "resume", "run": "first"}, True),
        ({"run": "first"}, True),
        ({"source": "first"}, True),
        ({"store": "other"}, True),
    ],
    ids=str,
)
def test_a_session_inside_is_a_branch_unless_it_names_a_run_or_a_store(
    tmp_path: Path, how: dict[str, Any], is_own: bool
) -> None:
    with pytest.raises(KeyError), Session("first", store=tmp_path / "store") as first:
        look()
        raise KeyError
    ids = {"first": first.run_id, "other": tmp_path / "other"}
    given: dict[str, Any] = {"store": tmp_path / "store"} | {
        name: ids.get(way, way) for name, way in how.items()
    }
    with Session("outer", store=tmp_path / "store") as outer:
        with Session("inner", **given) as inner:
            assert look() == "seen"
            assert inner.around is outer
            assert (inner.run_id != outer.run_id) == is_own
            assert (inner.home_branch == "") == is_own
        assert look() == "seen"
    assert outer.stats.calls == (1 if is_own else 2)


@pytest.mark.parametrize("halts", ["inner", "outer"])
@pytest.mark.parametrize("is_own", [False, True])
def test_a_call_of_the_outer_session_that_is_made_inside_stops_with_either(
    tmp_path: Path, halts: str, is_own: bool
) -> None:
    stays = halts == "inner" and is_own
    with contextlib.suppress(Halt), Session("outer", store=tmp_path / "store") as outer:
        mine = outer.tool(look)
        inner = Session("inner", store=tmp_path / ("other" if is_own else "store"))
        with pytest.raises(Halt, match="over"), inner:
            assert mine() == "seen"
            (inner if halts == "inner" else outer).halt(Halt("over"))
            for call in (mine, look):
                with pytest.raises(SessionHalted, match="over"):
                    call()
            raise Halt("over")
        with contextlib.nullcontext() if stays else pytest.raises(SessionHalted):
            assert mine() == "seen"
    assert (outer.halted is None) == stays


def test_a_run_inside_answers_although_it_is_halted(tmp_path: Path) -> None:
    """From the record; nothing new runs in it, as the session around it was halted."""
    with Session("inner", store=tmp_path / "own"):
        assert put(1) == 1
    with (
        pytest.raises(Halt, match="over"),
        Session("outer", store=tmp_path / "store") as outer,
        Session("inner", store=tmp_path / "own", replay="continue") as inner,
    ):
        outer.halt(Halt("over"))
        given = put(1)
        with pytest.raises(SessionHalted, match="the session around this one was halted: over"):
            put(2)
    assert (given, inner.stats.hits, inner.stats.misses) == (1, 1, 0)


@tool(name="nested.drop", effect="write")
def drop(n: int) -> None: ...


@tool(name="nested.put", effect="write", undo=lambda args: [compensate(drop, n=args["n"])])
def put(n: int) -> int:
    return n


def no_drop(view: StepView) -> Verdict | None:
    return Verdict.deny("no") if view.name == "nested.drop" else None


@pytest.mark.parametrize("gated", ["outer", "inner", ""])
def test_an_undo_from_outside_is_decided_by_the_sessions_around_each_step(
    tmp_path: Path, gated: str
) -> None:
    gates = {name: [no_drop] if name == gated else [] for name in ("outer", "inner")}
    with Session("outer", store=tmp_path / "store", gate=gates["outer"]) as outer:
        outside = contextvars.copy_context()
        put(1)
        with Session("inner", store=tmp_path / "store", gate=gates["inner"]):
            put(2)
            undone = outside.run(outer.undo)
    found = {each.step: each.status for each in undone.steps}
    expected = {
        "outer": {1: "failed", 3: "failed"}, "inner": {3: "failed"},
        "": {1: "compensated", 3: "compensated"},
    }  # fmt: skip
    assert found == expected[gated]
