"""A run is stopped or paused from outside: seen before the next body, and by every resume."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from rollcage import Session, abandon_run, compensate, open_store, tool, undo_run
from rollcage.calls.stage import Stage
from rollcage.errors import (
    ControlLost,
    OrderRefused,
    RunElsewhere,
    RunNotFound,
    RunStopped,
    SessionHalted,
    StoreError,
)
from rollcage.replay.call import Call, Place
from rollcage.stages import orders
from rollcage.stages.orders import (
    lift_order,
    lift_stop,
    order_of,
    pause_run,
    stop_run,
    unpause_run,
)
from rollcage.trace.chain import Chain
from rollcage.trace.folder import Folder, FolderLog

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    monkeypatch.setattr(orders, "_LOOK", 0.001)
    monkeypatch.setattr(orders, "_OFTEN", 0.0)


@tool(name="orders.take_back", effect="write")
def take_back(n: int) -> None:
    ran.remove(n)


@tool(name="orders.write", effect="write", undo=lambda args: [compensate(take_back, n=args["n"])])
def write(n: int) -> int:
    ran.append(n)
    return n


@tool(name="orders.read", effect="read")
def read(n: int) -> int:
    ran.append(n)
    return n


def lines(store: Path, run: str, *kinds: str) -> list[dict[str, Any]]:
    found = map(orjson.loads, open_store(store).read(run))
    return [line for line in found if not kinds or line["event"] in kinds]


@pytest.mark.parametrize("work", [write, read])
def test_a_stop_is_seen_before_the_next_body(tmp_path: Path, work: Any) -> None:
    with (
        pytest.raises(RunStopped, match="by ann: too much") as stopped,
        Session("job", store=tmp_path) as session,
    ):
        work(1)
        stop_run(tmp_path, session.run_id, by="ann", reason="too much")
        with pytest.raises(RunStopped):
            work(2)
        with pytest.raises(SessionHalted):
            work(3)
    assert (stopped.value.run, stopped.value.by) == (session.run_id, "ann")
    assert ran == [1]
    (line,) = lines(tmp_path, session.run_id, "ordered")
    assert (line["order"], line["by"], line["reason"]) == ("stop", "ann", "too much")
    recorded = lines(tmp_path, session.run_id)
    ways: list[dict[str, Any]] = [{}, {"run": session.run_id}, {"replay": "resume"}]
    for name in ways:
        with pytest.raises(RunStopped, match=r"by ann: too much.*--lift"):
            Session("job", store=tmp_path, **name).__enter__()
        with pytest.raises(RunStopped):
            asyncio.run(Session("job", store=tmp_path, **name).__aenter__())
    assert lines(tmp_path, session.run_id) == recorded
    with Session("job", store=tmp_path, replay="offline"):
        assert work(1) == 1
    with Session("job", store=tmp_path, replay="off"):
        work(4)
    assert lift_order(tmp_path, session.run_id)
    assert not lift_order(tmp_path, session.run_id)
    with Session("job", store=tmp_path, run=session.run_id):
        assert [work(1), work(2)] == [1, 2]
    assert ran == [1, 4, 2]


def test_a_stop_that_comes_while_the_intent_is_written_keeps_the_body_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = FolderLog.wait
    run: list[str] = []

    def waits(log: FolderLog) -> None:
        wait(log)
        if run:
            stop_run(tmp_path, run.pop())

    monkeypatch.setattr(FolderLog, "wait", waits)
    with pytest.raises(RunStopped), Session("job", store=tmp_path) as session:
        write(1)
        run.append(session.run_id)
        write(2)
    assert ran == [1]
    assert lines(tmp_path, session.run_id, "outcome")[-1]["outcome"] is None
    lift_order(tmp_path, session.run_id)
    with Session("job", store=tmp_path):
        assert [write(1), write(2)] == [1, 2]
    assert ran == [1, 2]


def test_a_pause_that_comes_while_the_intent_is_written_withdraws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = FolderLog.wait
    run: list[str] = []
    paused = threading.Event()

    def waits(log: FolderLog) -> None:
        wait(log)
        if run:
            pause_run(tmp_path, run.pop())
            paused.set()

    def lift() -> None:
        paused.wait(30)
        while not lines(tmp_path, session.run_id, "ordered"):
            pass
        assert ran == [1]
        assert lift_order(tmp_path, session.run_id, kind="pause")

    monkeypatch.setattr(FolderLog, "wait", waits)
    with Session("job", store=tmp_path) as session:
        write(1)
        run.append(session.run_id)
        thread = threading.Thread(target=lift)
        thread.start()
        assert write(2) == 2
        assert write(3) == 3
    thread.join()
    assert ran == [1, 2, 3]
    assert lines(tmp_path, session.run_id, "ended")[-1]["status"] == "ok"
    with Session("job", store=tmp_path, replay="continue") as again:
        assert [write(1), write(2), write(3)] == [1, 2, 3]
        assert again.stats.hits == 3


def test_an_effect_in_doubt_stays_so_if_the_intent_to_repeat_it_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(name="orders.keyed", idempotent=True, undo=lambda args: [compensate(take_back, **args)])
    def keyed(n: int) -> int:
        if n in ran:
            return n  # it was done under this key
        ran.append(n)
        raise KeyboardInterrupt

    wait = FolderLog.wait
    run: list[str] = []

    def waits(log: FolderLog) -> None:
        wait(log)
        if run:
            stop_run(tmp_path, run.pop())

    with pytest.raises(KeyboardInterrupt), Session("job", store=tmp_path) as session:
        keyed(1)
    monkeypatch.setattr(FolderLog, "wait", waits)
    with pytest.raises(RunStopped), Session("job", store=tmp_path) as session:
        run.append(session.run_id)
        keyed(1)
    assert [line["outcome"] for line in lines(tmp_path, session.run_id, "outcome")] == [None]
    report = undo_run(tmp_path, session.run_id)
    assert [each.status for each in report.steps] == ["unknown"]
    lift_order(tmp_path, session.run_id)
    with Session("job", store=tmp_path) as session:
        assert keyed(1) == 1
    assert undo_run(tmp_path, session.run_id).complete
    assert ran == []


class Arrivals(Stage):
    """Note something of each call when it arrives, for its line."""

    def where(self, call: Call | None, place: Place) -> None:
        """Keep the note."""
        if call is not None:
            call.keep("acme.note", f"{call.contract.name} arrived")

    def marks(self, call: Call) -> dict[str, Any]:
        """Put the note on record."""
        return {"acme.note": (call.kept or {}).get("acme.note")}


def test_a_call_whose_intent_was_withdrawn_keeps_what_was_noted_on_its_arrival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = FolderLog.wait
    run: list[str] = []

    def waits(log: FolderLog) -> None:
        wait(log)
        if run:
            name = run.pop()
            pause_run(tmp_path, name)
            threading.Timer(0.02, lift_order, (tmp_path, name)).start()

    monkeypatch.setattr(FolderLog, "wait", waits)
    with Session("job", store=tmp_path, stages=[Arrivals()]) as session:
        run.append(session.run_id)
        write(1)
    notes = [line["acme.note"] for line in lines(tmp_path, session.run_id, "step")]
    assert notes == ["orders.write arrived"] * 2


@pytest.mark.parametrize("then", ["lift", "stop"])
async def test_tasks_wait_while_a_run_is_paused(tmp_path: Path, then: str) -> None:
    async def program(session: Session) -> list[Any]:
        return await asyncio.gather(
            *(session.acall(write if n % 2 else read, n=n) for n in range(6)),
            return_exceptions=True,
        )

    async def paused() -> None:
        async with Session("job", store=tmp_path) as session:
            await session.acall(write, n=9)
            pause_run(tmp_path, session.run_id)
            tasks = asyncio.create_task(program(session))
            while not lines(tmp_path, session.run_id, "ordered"):  # noqa: ASYNC110 - until it waits
                await asyncio.sleep(0.001)
            assert ran == [9]
            if then == "lift":
                lift_order(tmp_path, session.run_id)
                assert await tasks == list(range(6))
            else:
                stop_run(tmp_path, session.run_id)
                with pytest.raises(OrderRefused, match="--lift"):
                    pause_run(tmp_path, session.run_id)
                assert all(isinstance(each, (RunStopped, SessionHalted)) for each in await tasks)

    if then == "lift":
        await paused()
        assert sorted(ran) == [0, 1, 2, 3, 4, 5, 9]
    else:
        with pytest.raises(RunStopped):
            await paused()
        assert ran == [9]


def test_threads_and_sessions_inside_obey(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(RunStopped), Session("outer", store=store) as session:
        with Session("inner", store=store) as inner:
            assert inner.run_id == session.run_id
            write(1)
            stop_run(store, inner.run_id)
            with ThreadPoolExecutor(2) as pool:
                found = [pool.submit(copy_context().run, write, n) for n in (2, 3)]
                assert all(
                    isinstance(each.exception(), (RunStopped, SessionHalted)) for each in found
                )
        with pytest.raises(SessionHalted):
            write(4)
    assert ran == [1]


async def call(tool_: Any, n: int, *, is_async: bool) -> Any:
    """Call a tool of the innermost session, in the colour of the program."""
    return await awrite(n) if is_async and tool_ is write else tool_(n)


@tool(name="orders.awrite", effect="write")
async def awrite(n: int) -> int:
    return write.__wrapped__(n)  # type: ignore[attr-defined,no-any-return]  # pyright: ignore[reportFunctionMemberAccess] - the function itself


@contextlib.asynccontextmanager
async def entered(session: Session, *, is_async: bool) -> AsyncIterator[Session]:
    """Enter a session in the colour of the program."""
    if is_async:
        async with session:
            yield session
    else:
        with session:
            yield session


@pytest.mark.parametrize("tool_", [write, read])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_run_inside_of_another_one_stops_with_it(
    tmp_path: Path, tool_: Any, is_async: bool
) -> None:
    outer = Session("outer", store=tmp_path / "outer")
    inner = Session("inner", store=tmp_path / "inner")
    with pytest.raises(RunStopped) as stopped:
        async with entered(outer, is_async=is_async), entered(inner, is_async=is_async):
            await call(tool_, 1, is_async=is_async)
            stop_run(outer.store, outer.run_id, by="ann", reason="enough")
            await call(tool_, 2, is_async=is_async)
    assert ran == [1]
    assert (stopped.value.run, stopped.value.by) == (outer.run_id, "ann")
    assert str(tmp_path / "outer") in str(stopped.value)
    lines = [orjson.loads(line) for line in inner.store.read(inner.run_id)]
    seen = [line for line in lines if line["event"] == "ordered"]
    assert [(line["order"], line["by"], line["reason"]) for line in seen] == [
        ("stop", "ann", "enough")
    ]
    assert lines[-1]["status"] == "halted"


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_run_inside_of_another_one_waits_with_it(tmp_path: Path, is_async: bool) -> None:
    outer = Session("outer", store=tmp_path / "outer")
    inner = Session("inner", store=tmp_path / "inner")

    def lifts() -> None:
        while not any(b'"event":"ordered"' in line for line in inner.store.read(inner.run_id)):
            time.sleep(0.001)
        ran.append(0)
        unpause_run(outer.store, outer.run_id)

    async with entered(outer, is_async=is_async), entered(inner, is_async=is_async):
        pause_run(outer.store, outer.run_id)
        thread = threading.Thread(target=lifts)
        thread.start()
        await call(write, 1, is_async=is_async)
        thread.join(30)
        await call(write, 2, is_async=is_async)
    assert ran == [0, 1, 2]


def test_a_run_inside_of_another_one_is_undone_although_that_is_stopped(tmp_path: Path) -> None:
    outer = Session("outer", store=tmp_path / "outer")
    with outer, Session("inner", store=tmp_path / "inner") as inner:
        write(1)
        stop_run(outer.store, outer.run_id)
        assert inner.undo().complete
    assert ran == []


def test_a_run_inside_of_another_one_halts_where_that_can_not_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = Folder.get

    def broken(self: Folder, kind: str, key: str) -> bytes | None:
        if kind == "orders" and key == outer.run_id:
            raise StoreError("it is away")
        return get(self, kind, key)

    outer = Session("outer", store=tmp_path / "outer")
    inner = Session("inner", store=tmp_path / "inner")
    with pytest.raises(ControlLost) as lost, outer, inner:
        monkeypatch.setattr(Folder, "get", broken)
        write(1)
    assert lost.value.run == outer.run_id
    assert ran == []


def test_a_stopped_run_can_be_undone(tmp_path: Path) -> None:
    with pytest.raises(RunStopped), Session("job", store=tmp_path) as session:
        write(1)
        stop_run(tmp_path, session.run_id)
        write(2)
    report = undo_run(tmp_path, session.run_id, tools=[write, take_back])
    assert [step.status for step in report.steps] == ["compensated"]
    assert ran == []
    assert order_of(tmp_path, session.run_id) is not None


def test_the_state_before_a_write_is_observed_after_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = [0]

    @tool(effect="write", observe=lambda args: {"box": box[0]}, undo=lambda before: [])
    def work() -> int:
        box[0] += 1
        return box[0]

    wait = FolderLog.wait
    run: list[str] = []

    def waits(log: FolderLog) -> None:
        wait(log)
        if run:
            name = run.pop()
            pause_run(tmp_path, name)
            box[0] = 7

    def sleep(_: float) -> None:
        if order_of(tmp_path, session.run_id) is not None:
            lift_order(tmp_path, session.run_id)  # once the session waits

    monkeypatch.setattr(FolderLog, "wait", waits)
    monkeypatch.setattr(orders, "time", SimpleNamespace(**{**vars(time), "sleep": sleep}))
    with Session("job", store=tmp_path) as session:
        run.append(session.run_id)
        assert work() == 8
    before = [line.get("before") for line in lines(tmp_path, session.run_id, "step")]
    assert before == [{"box": 0}, {"box": 7}]


def test_what_does_not_fit(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for order in (stop_run, pause_run, lift_stop, unpause_run):
        with pytest.raises(RunNotFound):
            order(store, "no-such-run")
    with pytest.raises(ValueError, match="no"), Session("job", store=store) as session:
        raise ValueError("no")
    run = session.run_id
    assert order_of(store, run) is None
    for lift in (lift_stop, unpause_run):
        with pytest.raises(OrderRefused, match="there is nothing to lift"):
            lift(store, run)
    store.swap("orders", run, None, b"{")
    damaged = order_of(store, run)
    assert damaged is not None
    assert damaged.kind == "stop"
    for pauses in (pause_run, unpause_run):
        with pytest.raises(OrderRefused, match=f"stopped.*rollcage stop {run} --lift --store"):
            pauses(store, run)
    assert not lift_order(store, run, kind="pause")
    assert lift_stop(store, run) == damaged
    pause_run(store, run, by="a\udc00")
    paused = pause_run(store, run, by="b")
    assert paused == order_of(store, run)
    with pytest.raises(OrderRefused, match=f"not stopped but paused by b.*rollcage unpause {run}"):
        lift_stop(store, run)
    assert unpause_run(store, run) == paused
    stop_run(store, run)
    assert lift_order(store, run)


@pytest.mark.parametrize("ends", ["ok", "abandoned"])
def test_a_run_that_is_over_takes_no_order(tmp_path: Path, ends: str) -> None:
    with Session("job", store=tmp_path) as session:
        write(1)
    if ends == "abandoned":
        abandon_run(tmp_path, session.run_id)
    for order in (stop_run, pause_run):
        with pytest.raises(OrderRefused, match=f"it ended as '{ends}'"):
            order(tmp_path, session.run_id)
    assert order_of(tmp_path, session.run_id) is None


@pytest.mark.parametrize("seed", range(8))
def test_orders_at_random_moments_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """Somebody stops, pauses and lifts while threads write; every resume goes on."""
    chance = random.Random(seed)  # noqa: S311 - a test
    over = threading.Event()
    run: list[str] = []

    def orders_come() -> None:
        while not over.is_set():
            if run:
                order = chance.choice([stop_run, pause_run, lift_order, lift_order])
                with contextlib.suppress(OrderRefused):  # it is stopped, or has ended
                    order(tmp_path, run[0])  # type: ignore[operator] # each takes these two

    def program(session: Session) -> None:
        with ThreadPoolExecutor(3) as pool, session.turn() as turn:
            context = [copy_context() for _ in range(6)]

            def call(n: int) -> int:
                with turn.slot(n):
                    given: int = write(n)
                return given

            found = [pool.submit(context[n].run, call, n) for n in range(6)]
        assert [each.result() for each in found] == list(range(6))
        for n in range(6, 9):
            write(n)
        read(10)

    thread = threading.Thread(target=orders_come)
    thread.start()
    try:
        for _ in range(400):
            try:
                with Session("job", store=tmp_path) as session:
                    run[:] = [session.run_id]
                    program(session)
                break
            except (RunStopped, SessionHalted):
                pass
        else:
            raise AssertionError("it never ended")
    finally:
        over.set()
        thread.join()
    assert sorted(ran) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]


def test_a_run_that_nobody_could_stop_halts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise StoreError("the bell is gone")

    for work in (write, read):
        with Session("job", store=tmp_path, replay="off") as session:
            work(1)
            monkeypatch.setattr(type(session.store), "bell", broken)
            monkeypatch.setattr(FolderLog, "bell", property(broken))
            with pytest.raises(ControlLost):
                work(2)
            monkeypatch.undo()
            assert isinstance(session.halted, ControlLost)
            session.attempt.halted = None
    assert ran == [1, 1]


class Hand(SimpleNamespace):
    """A clock that sleeping moves on; what is due happens behind each sleep."""

    def __init__(self, *due: Any) -> None:
        super().__init__(now=5.0, slept=[], due=[*due], time_ns=time.time_ns)

    def monotonic(self) -> float:
        return float(self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        if self.due:
            self.due.pop(0)()


def test_a_paused_call_looks_again_and_again_and_that_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, held = Hand(), list[float]()
    monkeypatch.setattr(orders, "time", hand)
    monkeypatch.setattr(orders, "_LOOK", 0.25)
    with Session("job", store=tmp_path) as session:
        write(1)
        pause_run(tmp_path, session.run_id, by="ann")
        look = lambda: held.append(session.held)  # noqa: E731 - it is one of many
        again = lambda: pause_run(tmp_path, session.run_id, by="bob")  # noqa: E731
        hand.due = [look, again, look, lambda: lift_order(tmp_path, session.run_id)]
        write(2)
        assert (hand.slept, held, session.held) == ([0.25] * 4, [0.25, 0.75], 1.0)
        hand.now += 7
        write(3)
        assert session.held == 1.0
        pause_run(tmp_path, session.run_id)
        hand.due = [lambda: unpause_run(tmp_path, session.run_id)]
        read(4)
        assert (len(hand.slept), session.held) == (5, 1.25)
    assert ran == [1, 2, 3, 4]
    lines = map(orjson.loads, open_store(tmp_path).read(session.run_id))
    assert [line["by"] for line in lines if line["event"] == "ordered"] == ["ann", ""]


def test_hits_look_for_an_order_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, rings = Hand(), list[float]()
    with pytest.raises(KeyError), Session("job", store=tmp_path):
        for n in range(6):
            write(n)
        raise KeyError
    monkeypatch.setattr(orders, "time", hand)
    monkeypatch.setattr(orders, "_OFTEN", 0.5)
    bell = Folder.bell

    def rung(self: Folder) -> int:
        rings.append(hand.now)
        return bell(self)

    monkeypatch.setattr(Folder, "bell", rung)
    with Session("job", store=tmp_path):
        rings.clear()
        for n in range(6):
            write(n)
            hand.now += 0.25
    assert rings == [5.0, 5.5, 6.0]


@pytest.mark.parametrize(
    ("given", "act", "said"),
    [
        (None, lift_stop, "run {run} is not stopped: there is nothing to lift"),
        (None, unpause_run, "run {run} is not paused: there is nothing to lift"),
        (stop_run, unpause_run, "run {run} is not paused but stopped by ann. {stop}"),
        (stop_run, pause_run, "run {run} is not paused: it was stopped by ann. {stop}"),
        (pause_run, lift_stop, "run {run} is not stopped but paused by ann. {pause}"),
        (stop_run, lift_stop, ""),
        (stop_run, stop_run, ""),
        (pause_run, stop_run, ""),
        (pause_run, pause_run, ""),
        (pause_run, unpause_run, ""),
    ],
)
def test_each_order_behind_each_other_one(tmp_path: Path, given: Any, act: Any, said: str) -> None:
    with pytest.raises(KeyError), Session("job", store=tmp_path) as session:
        raise KeyError
    run = session.run_id
    before = None if given is None else given(tmp_path, run, by="ann", reason="so")
    told, refused = None, ""
    try:
        told = act(tmp_path, run)
    except OrderRefused as error:
        refused = str(error)
    store = f" --store {tmp_path}"
    ways = {
        "stop": f"To let it go on: rollcage stop {run} --lift{store}",
        "pause": f"To let it go on: rollcage unpause {run}{store}",
    }
    assert refused == said.format(run=run, **ways)
    is_lift = act in (lift_stop, unpause_run)
    if said:
        assert order_of(tmp_path, run) == before
    elif is_lift:
        assert (told, order_of(tmp_path, run)) == (before, None)
    else:
        assert told == order_of(tmp_path, run)
        assert told is not None
        assert (told.kind, told.by) == ("stop" if act is stop_run else "pause", "")


@pytest.mark.parametrize("order", [stop_run, pause_run])
def test_a_run_that_is_moved_meanwhile_takes_no_order(
    tmp_path: Path, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyError), Session("job", store=tmp_path) as session:
        raise KeyError
    swap = Folder.swap

    def moved(self: Folder, kind: str, *given: Any) -> bool:
        found = swap(self, kind, *given)
        if kind == "orders":
            log = Chain(self.open(session.run_id))
            log.read()
            log.append({"event": "gone", "status": "error", "to": "/elsewhere", "time": 1})
            log.close()
        return found

    monkeypatch.setattr(Folder, "swap", moved)
    with pytest.raises(RunElsewhere, match="goes on in /elsewhere"):
        order(tmp_path, session.run_id)


def test_an_order_tells_when_it_was_given(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        before = time.time_ns() // 1000
        pause_run(tmp_path, session.run_id, by="ann")
        given = order_of(open_store(tmp_path), session.run_id)
        assert given is not None
        assert before <= given.time <= time.time_ns() // 1000
        assert lift_order(tmp_path, session.run_id) is True
        assert lift_order(tmp_path, session.run_id) is False


async def test_a_read_looks_once_where_nothing_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log may have no way to tell of orders without I/O."""
    looks: list[int] = []
    bell = Folder.bell

    def looked(self: Folder) -> int:
        looks.append(bell(self))
        return looks[-1]

    monkeypatch.setattr(FolderLog, "hear", lambda _: None)
    session = Session("job", store=tmp_path)
    with pytest.raises(RunStopped):
        async with session:
            monkeypatch.setattr(Folder, "bell", looked)
            for n in (1, 2):
                await asyncio.wait_for(session.acall(read, n=n), 20)
            seen = len(looks)
            stop_run(tmp_path, session.run_id)
            await asyncio.wait_for(session.acall(read, n=3), 20)
    assert (ran, seen) == ([1, 2], 2)


async def test_tasks_go_on_behind_a_pause_in_the_order_in_which_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call looks longest whether the pause is over."""
    look = orders._outside

    def slowly(call: Call, function: Any) -> Any:
        async def looks() -> None:
            await look(call, function)()
            for _ in range(9 if call.arguments == {"n": 1} else 0):
                await asyncio.sleep(0.001)

        return looks

    monkeypatch.setattr(orders, "_outside", slowly)
    session = Session("job", store=tmp_path)
    with contextlib.suppress(KeyError):
        async with session:
            await session.acall(write, n=1)
            await session.acall(write, n=2)
            raise KeyError
    pause_run(tmp_path, session.run_id)

    async def lifts() -> None:
        await asyncio.sleep(0.05)
        unpause_run(tmp_path, session.run_id)

    session = Session("job", store=tmp_path)
    async with session:
        calls = (session.acall(write, n=1), session.acall(write, n=2))
        await asyncio.gather(*calls, lifts())
    assert (ran, session.stats.hits) == ([1, 2], 2)
