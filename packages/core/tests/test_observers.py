"""Observers are told of each thing that became of a step, after it was written."""

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from rollcage import (
    Approval,
    Blocked,
    Contract,
    Halt,
    SessionHalted,
    StepView,
    UndoReport,
    Verdict,
    tool,
)
from rollcage.adapter import plain_body
from rollcage.errors import ArgumentsInvalid
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.step.observing import Instrument, RunEvent, StepEvent, recorded_events
from rollcage.store import JsonlStore

Said = list[tuple[str, str, str]]


@tool(effect="write")
def note(text: str) -> str:
    return text


@tool(effect="read")
def look(what: str) -> str:
    return what


@tool(effect="read")
def fail(what: str) -> str:
    raise ValueError(what)


def said(told: list[StepEvent]) -> Said:
    return [(each.what, each.name, each.status) for each in told]


def test_each_step_is_told_of_as_it_stands_in_the_trace(store: JsonlStore) -> None:
    told: list[StepEvent] = []
    with Session("job", store=store, observers=[told.append]) as session:
        with session.place(agent="ann", call_id="c1"):
            note("a")
        with pytest.raises(ValueError, match="b"):
            fail("b")
        run = session.run_id
    assert said(told) == [
        ("started", "note", ""),
        ("settled", "note", "ok"),
        ("started", "fail", ""),
        ("settled", "fail", "error"),
    ]
    started, settled, *_ = told
    assert (started.run, started.step, started.kind, started.effect) == (run, 1, "tool", "write")
    assert (settled.agent, settled.call_id, settled.step) == ("ann", "c1", 1)
    assert started.duration is None
    assert settled.duration is not None
    assert started.data()["args"] == {"text": "a"}
    assert settled.data()["outcome"]["value"] == "a"


def test_the_id_that_a_refused_call_says_itself_is_on_record(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        with pytest.raises(ArgumentsInvalid):
            session.run(Contract.of(look), {"which": "a"}, plain_body(look), call_id="c1")
        run = session.run_id
    events = [orjson.loads(line) for line in store.read(run).data.splitlines()]
    (refused,) = [each for each in events if each["event"] == "call.refused"]
    assert (refused["name"], refused["call_id"]) == ("look", "c1")


async def test_a_call_may_say_its_id_itself(store: JsonlStore) -> None:
    """It has no other place for that: what it calls in its body has not its id."""
    told: list[StepEvent] = []

    async def outer(what: str) -> str:
        return look(what)

    async with Session("job", store=store, observers=[told.append]) as session:
        contract = Contract.of(outer, effect="scope")
        with session.place(agent="ann", call_id="placed"):
            await session.arun(contract, {"what": "a"}, outer, call_id="said")
            session.run(Contract.of(look), {"what": "b"}, plain_body(look))
    ended = [(each.name, each.agent, each.call_id) for each in told if each.what == "started"]
    assert ended == [("outer", "ann", "said"), ("look", "ann", ""), ("look", "ann", "placed")]


def test_what_is_replayed_blocked_and_asked_is_told_of(store: JsonlStore) -> None:
    def rule(step: StepView) -> Verdict | None:
        if step.name == "fail":
            return Verdict.deny("not that", code="no")
        return Verdict.ask("sure?") if step.effect == "write" else None

    told: list[StepEvent] = []
    session = Session("job", store=store, rules=[rule])
    with pytest.raises(Halt), session:
        look("a")
        note("b")
    with Session(
        "job",
        store=store,
        rules=[rule],
        observers=[told.append],
        approver=lambda request: Approval(True, by="ann"),
    ):
        look("a")
        note("b")
        with pytest.raises(Blocked):
            fail("c")
    assert said(told) == [
        ("replayed", "look", "ok"),
        ("asked", "note", ""),
        ("started", "note", ""),
        ("settled", "note", "ok"),
        ("blocked", "fail", ""),
    ]
    assert told[0].origin == (session.run_id, 1)
    assert told[1].verdict is not None
    assert told[1].verdict["reason"] == "sure?"
    assert told[4].verdict is not None
    assert told[4].verdict["code"] == "no"


def test_an_observer_that_raises_misses_that_event_and_is_logged(
    store: JsonlStore, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[StepEvent] = []

    def first(event: StepEvent) -> None:
        if event.what == "started":
            raise RuntimeError("broken")
        told.append(event)

    later: list[StepEvent] = []
    with (
        caplog.at_level(logging.ERROR, "rollcage"),
        Session("job", store=store, observers=[first, later.append]) as session,
    ):
        assert note("a") == "a"
        assert session.halted is None
    assert [each.what for each in told] == ["settled"]
    assert [each.what for each in later] == ["started", "settled"]
    assert [each.message for each in caplog.records] == [
        f"an observer failed on started of note (step 1 of run {session.run_id})"
    ]


def test_observers_are_told_outside_of_the_lock(store: JsonlStore) -> None:
    """One may look at the session, from a thread of its own too, and even stop it."""
    seen: list[int] = []

    def stop(event: StepEvent) -> None:
        thread = threading.Thread(target=lambda: session.halt(Halt("enough")))
        seen.append(session.stats.calls)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()

    session = Session("job", store=store, observers=[stop])
    with pytest.raises(Halt, match="enough"), session:
        with pytest.raises(SessionHalted):  # told of its start, it is stopped before its body
            note("a")
        assert session.stats.calls == 1
    assert seen[0] == 1


def test_no_secret_reaches_an_observer(store: JsonlStore) -> None:
    @tool(effect="read", secret=["password"])
    def log_in(password: SecretStr) -> str:
        return f"in with {password.get_secret_value()}"

    told: list[StepEvent] = []
    with Session("job", store=store, observers=[told.append]):
        log_in(SecretStr("hunter2-hunter2"))
    assert len(told) == 2
    assert "hunter2" not in str([(each, each.data()) for each in told])


async def test_async_calls_and_streams_are_told_of(store: JsonlStore) -> None:
    @tool(effect="read")
    async def wait(name: str) -> str:
        await asyncio.sleep(0)
        return name

    @tool(effect="read")
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    @tool(effect="read")
    def letters(text: str) -> Iterator[str]:
        yield from text

    async def job(session: Session) -> None:
        with session.turn() as turn:

            async def one(slot: int) -> None:
                with turn.slot(slot):
                    await wait(str(slot))

            await asyncio.gather(one(0), one(1))
        assert [each async for each in count(2)] == [0, 1]
        assert list(letters("ab")) == ["a", "b"]

    told: list[StepEvent] = []
    async with Session("job", store=store, replay="off", observers=[told.append]) as session:
        await job(session)
    assert sorted(said(told)[:4]) == [("settled", "wait", "ok")] * 2 + [("started", "wait", "")] * 2
    assert said(told)[4:] == [
        (what, name, "ok" if what == "settled" else "")
        for name in ("count", "letters")
        for what in ("started", "settled")
    ]
    told.clear()
    replay = Session("job", store=store, replay="offline", observers=[told.append])
    async with replay as session:
        await job(session)
    assert {each.what for each in told} == {"replayed"}
    assert len(told) == 4


def test_threads_and_branches_are_told_of_each_step_in_its_order(store: JsonlStore) -> None:
    told: list[StepEvent] = []
    held = threading.Lock()

    def observe(event: StepEvent) -> None:
        with held:
            told.append(event)

    with Session("job", store=store, observers=[observe]) as session:

        def work(name: str) -> None:
            with session.branch(name):
                for number in range(20):
                    note(f"{name} {number}")

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(work, name))
            for name in ("left", "right")
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    for name in ("left", "right"):
        steps = [(each.step, each.what) for each in told if each.branch == name]
        numbers = sorted({step for step, _ in steps})
        assert steps == [(step, what) for step in numbers for what in ("started", "settled")]
        assert len(numbers) == 20


def test_the_observers_around_hear_of_the_sessions_inside(store: JsonlStore) -> None:
    outer: list[StepEvent] = []
    inner: list[StepEvent] = []

    @tool(effect="scope")
    def delegate(text: str) -> str:
        with Session("inside", store=store, observers=[inner.append]) as within:
            note(text)
            return within.run_id

    with Session("outside", store=store, observers=[outer.append]) as session:
        run = delegate("a")
    assert [(each.run, each.name, each.what) for each in outer] == [
        (session.run_id, "delegate", "started"),
        (run, "note", "started"),
        (run, "note", "settled"),
        (session.run_id, "delegate", "settled"),
    ]
    assert inner == outer[1:3]


def test_a_step_inside_of_another_names_its_parent(store: JsonlStore) -> None:
    @tool(effect="scope")
    def both(text: str) -> str:
        return note(text) + look(text)

    told: list[StepEvent] = []
    with Session("job", store=store, observers=[told.append]):
        both("a")
    assert [(each.name, each.parent) for each in told if each.what == "started"] == [
        ("both", None),
        ("note", 1),
        ("look", 1),
    ]


@pytest.mark.parametrize("live", [True, False])
def test_what_is_undone_is_told_of(
    store: JsonlStore, tmp_path: Path, files: Any, *, live: bool
) -> None:
    told: list[StepEvent] = []
    report = UndoReport(run="", to=None, steps=())
    with Session("job", store=store, observers=[told.append] if live else ()) as session:
        files.put_file(path=str(tmp_path / "file"), text="a")
        told.clear()
        if live:
            report = session.undo()
    if not live:
        report = undo_run(store, session.run_id, observers=[told.append])
    assert [each.status for each in report.steps] == ["verified"]
    assert said(told) == [
        ("started", report.steps[0].calls[0].name, ""),
        ("settled", report.steps[0].calls[0].name, "ok"),
        ("undone", "put_file", "verified"),
    ]
    assert told[-1].origin == (session.run_id, 1)


async def test_an_unknown_step_that_is_told_of_late_is_settled_twice(store: JsonlStore) -> None:
    began, go_on = threading.Event(), threading.Event()

    @tool(effect="write")
    def slow(text: str) -> str:
        began.set()
        go_on.wait(10)
        return text

    told: list[StepEvent] = []
    late = asyncio.Event()
    loop = asyncio.get_running_loop()

    def observe(event: StepEvent) -> None:
        told.append(event)
        if event.what == "settled" and event.status == "ok":
            loop.call_soon_threadsafe(late.set)

    session = Session("job", store=store, observers=[observe])
    with pytest.raises(Halt):
        async with session:
            task = asyncio.create_task(session.acall(slow, text="a"))
            await asyncio.to_thread(began.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            await asyncio.wait_for(late.wait(), 10)
    assert said(told) == [
        ("started", "slow", ""),
        ("settled", "slow", "unknown"),
        ("settled", "slow", "ok"),
    ]


# --- instruments ---------------------------------------------------------------------------------

standing: contextvars.ContextVar[tuple[str, int] | None] = contextvars.ContextVar(
    "standing", default=None
)


class Standing(Instrument):
    """Remembers what it is told of runs, and lets bodies know which step they are."""

    def __init__(self) -> None:
        self.runs: list[RunEvent] = []
        self.steps: list[StepEvent] = []

    def __call__(self, event: StepEvent) -> None:
        self.steps.append(event)

    def opened(self, run: RunEvent) -> None:
        self.runs.append(run)

    def closed(self, run: RunEvent) -> None:
        self.runs.append(run)

    @contextlib.contextmanager
    def around(self, run: str, step: int) -> Iterator[None]:
        before = standing.get()
        standing.set((run, step))
        yield
        standing.set(before)


def stands_here() -> int:
    here = standing.get()
    return 0 if here is None else here[1]


@tool(name="observers.where", effect="read")
def stands() -> int:
    return stands_here()


async def test_an_instrument_stands_around_bodies_in_their_thread_or_task(
    store: JsonlStore,
) -> None:
    @tool(name="observers.awaited", effect="read")
    async def awaited() -> int:
        await asyncio.sleep(0)
        return stands()

    @tool(name="observers.chunks", effect="read")
    def chunks() -> Iterator[int]:
        yield stands_here()
        yield stands_here()

    @tool(name="observers.achunks", effect="read")
    async def achunks() -> AsyncIterator[int]:
        yield stands_here()
        await asyncio.sleep(0)
        yield stands_here()

    async with Session("job", store=store, observers=[Standing()]) as session:
        assert stands() == 1
        assert await session.acall(stands) == 2  # in a thread of the loop's
        assert await awaited() == 4  # the inner step is number 4
        assert [await each for each in (awaited(), awaited())] == [6, 8]
        taken = []
        for each in chunks():
            assert standing.get() is None  # the consumer is not in the body
            taken.append(each)
        async for each in achunks():
            assert standing.get() is None
            taken.append(each)
        assert taken == [9, 9, 10, 10]
    assert standing.get() is None


def test_an_instrument_is_told_how_runs_begin_and_end(store: JsonlStore, files: Any) -> None:
    told = Standing()
    with pytest.raises(ValueError, match="out"), Session("job", store=store, observers=[told]):
        note("a")
        raise ValueError("out")
    with Session("job", store=store, observers=[told]):
        note("a")
    report = undo_run(store, told.runs[-1].run, observers=[told], tools=[files.put_file])
    assert report.steps
    first, resumed = told.runs[0].run, told.runs[2].run
    assert [(r.what, r.run, r.mode, r.source, r.status, r.error) for r in told.runs] == [
        ("opened", first, "record", None, "", ""),
        ("closed", first, "record", None, "error", "ValueError"),
        ("opened", resumed, "resume", first, "", ""),
        ("closed", resumed, "resume", first, "ok", ""),
        ("opened", resumed, "undo", None, "", ""),
        ("closed", resumed, "undo", None, "", ""),
    ]
    assert {(r.name, r.root) for r in told.runs} == {("job", first)}


@pytest.mark.parametrize("where", ["opened", "closed", "around", "leaving"])
def test_what_an_instrument_raises_is_logged(
    store: JsonlStore, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    class Broken(Standing):
        def opened(self, run: RunEvent) -> None:
            assert where != "opened"

        def closed(self, run: RunEvent) -> None:
            assert where != "closed"

        @contextlib.contextmanager
        def around(self, run: str, step: int) -> Iterator[None]:
            assert where != "around"
            yield
            assert where != "leaving"

    after = Standing()
    with (
        caplog.at_level(logging.ERROR, "rollcage"),
        Session("job", store=store, observers=[Broken(), after]),
    ):
        assert stands() == 1
    assert [each.what for each in after.runs] == ["opened", "closed"]
    (record,) = caplog.records
    assert "an observer failed on" in record.message


def test_an_instrument_of_both_sessions_is_told_once(store: JsonlStore) -> None:
    told = Standing()
    with (
        Session("outside", store=store, observers=[told]),
        Session("inside", store=store, observers=[told]) as inner,
    ):
        note("a")
    assert [each.what for each in told.steps] == ["started", "settled"]
    assert {each.run for each in told.steps} == {inner.run_id}
    assert [each.name for each in told.runs] == ["outside", "inside", "inside", "outside"]


def test_the_child_of_a_fork_tells_nothing(store: JsonlStore) -> None:
    told = Standing()
    with Session("job", store=store, observers=[told]) as session:
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                session.__exit__(None, None, None)
            os._exit(len(told.runs))
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert [each.what for each in told.runs] == ["opened", "closed"]


def test_a_trace_says_what_an_instrument_was_told(
    store: JsonlStore, tmp_path: Path, files: Any
) -> None:
    def rule(step: StepView) -> Verdict | None:
        if step.name == "fail":
            return Verdict.deny("not that", code="no")
        return Verdict.ask("sure?") if step.name == "note" else None

    told = Standing()
    with pytest.raises(ValueError, match="out"), Session("job", store=store, rules=[rule]):
        look("a")
        raise ValueError("out")
    with Session(
        "job",
        store=store,
        rules=[rule],
        observers=[told],
        approver=lambda request: Approval(True, by="ann"),
    ) as session:
        look("a")
        note("b")
        with pytest.raises(Blocked):
            fail("c")
        files.put_file(path=str(tmp_path / "file"), text="a")
        assert session.undo(to=2).complete
    recorded = list(recorded_events(store.read(session.run_id)))
    assert [each for each in recorded if isinstance(each, StepEvent)] == told.steps
    assert {each.approval for each in told.steps if each.name == "note"} - {""}
    assert [each.undoes for each in told.steps if each.undoes] == [(session.run_id, 4)]
    first, last = recorded[0], recorded[-1]
    assert isinstance(first, RunEvent)
    assert isinstance(last, RunEvent)
    assert (first.mode, last.status) == ("resume", "ok")
    assert [each.run for each in told.runs] == [first.run, last.run]


def test_an_instrument_may_not_want_a_session(store: JsonlStore) -> None:
    class Idle(Standing):
        def wanted(self) -> bool:
            return False

    told = Idle()
    with Session("job", store=store, observers=[told]) as session:
        assert stands() == 0
        assert session._entered().driver.observing is None  # nothing is paid
    assert not told.runs
    assert not told.steps


def test_an_event_names_its_error_and_plain_fields(store: JsonlStore) -> None:
    told: list[StepEvent] = []
    with Session("job", store=store, observers=[told.append]), pytest.raises(ValueError, match="a"):
        fail("a")
    started, settled = told
    assert (started.error, settled.error) == ("", "ValueError")
    assert started.get("world") == started.data()["world"]
    assert (started.get("args"), started.get("nothing")) == (None, None)
