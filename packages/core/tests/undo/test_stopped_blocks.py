"""Transactions of a run that was stopped: a resume goes on in them, or they are undone whole."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from rollcage import (
    RunStopped,
    Session,
    SessionHalted,
    Store,
    TraceUnwritable,
    UnknownOutcome,
    compensate,
    lift_order,
    resolve_step,
    stop_run,
    tool,
    undo_run,
)

box: list[int] = []


@pytest.fixture(autouse=True)
def empty_box() -> Iterator[None]:
    box.clear()
    yield
    box.clear()


class Broken(Exception):
    """What a block raises to be undone."""


@tool(effect="write", idempotent=True, name="stopped.take")
def take(number: int) -> None:
    with contextlib.suppress(ValueError):
        box.remove(number)


def away(args: Mapping[str, Any]) -> Any:
    return [compensate(take, number=args["number"])]


@tool(effect="write", name="stopped.put", undo=away)
def put(number: int) -> int:
    box.append(number)
    return number


@tool(effect="write", name="stopped.fails", undo=away, raises=[ValueError])
def fails(number: int) -> int:
    raise ValueError(number)


@tool(effect="pure", name="stopped.double")
def double(number: int) -> int:
    return 2 * number


@tool(effect="read", name="stopped.look")
def look(number: int) -> int:
    return number


def stop(store: Store, session: Session) -> None:
    stop_run(store, session.run_id, by="ann", reason="too eager")


@pytest.mark.parametrize("then", ["goes on", "is undone"])
def test_a_stopped_block_stays_as_it_is(store: Store, then: str) -> None:
    def job(session: Session, *, stops: bool = False) -> None:
        with session.transaction():
            put(1)
            if stops:
                stop(store, session)
            put(2)

    with pytest.raises(RunStopped), Session("job", store=store) as stopped:
        job(stopped, stops=True)
    assert box == [1], "nothing runs in a stopped run, no compensation either"
    if then == "is undone":
        assert undo_run(store, stopped.run_id).complete
        assert box == []
        lift_order(store, stopped.run_id)
    else:
        lift_order(store, stopped.run_id)
    with Session("job", store=store) as session:
        job(session)
        assert session.stats.hits == (1 if then == "goes on" else 0)
    assert box == [1, 2]


@pytest.mark.parametrize("happened", [True, False])
def test_a_stopped_block_with_a_step_in_doubt(store: Store, happened: bool) -> None:
    running: list[Session] = []
    lost: list[int] = []

    @tool(effect="write", name="stopped.lose", undo=away)
    def lose(number: int) -> int:
        if happened or lost:
            box.append(number)
        lost.append(number)
        if len(lost) > 1:
            return number
        stop(store, running[-1])  # it comes while the write is under way
        with contextlib.suppress(SessionHalted):
            double(number)
        raise TimeoutError

    def job(session: Session) -> None:
        running.append(session)
        with session.transaction():
            put(1)
            lose(2)
            put(3)

    with pytest.raises(RunStopped), Session("job", store=store) as first:
        job(first)
    assert box == ([1, 2] if happened else [1])
    lift_order(store, first.run_id)
    with pytest.raises(UnknownOutcome) as unknown, Session("job", store=store) as second:
        job(second)
    given: dict[str, Any] = {"result": 2} if happened else {}
    resolve_step(store, unknown.value.run, unknown.value.step, happened=happened, **given)
    with Session("job", store=store) as third:
        job(third)
        assert third.stats.hits == (2 if happened else 1)
    assert box == [1, 2, 3]


def test_a_failed_block_waits_for_a_doubt(store: Store) -> None:
    @tool(effect="write", name="stopped.vanish", undo=away)
    def lose(number: int) -> int:
        box.append(number)
        raise TimeoutError

    def job(session: Session, *, again: bool = False) -> None:
        with session.transaction():
            put(1)
            if again:
                raise Broken
            lose(2)

    with pytest.raises(UnknownOutcome), Session("job", store=store) as first:
        job(first)
    again = pytest.raises(UnknownOutcome, match=r"whether step \d+ \(stopped.vanish\)")
    with again as unknown, Session("job", store=store) as second:
        job(second, again=True)
    assert isinstance(unknown.value.__cause__, Broken)
    assert box == [1, 2], "it is taken back as a whole or not at all"
    resolve_step(store, first.run_id, unknown.value.step, happened=True, result=2)
    with pytest.raises(Broken), Session("job", store=store) as third:
        job(third, again=True)
    assert box == []


def test_a_block_stopped_before_its_first_call(store: Store) -> None:
    def job(session: Session, *, stops: bool = False, dies: bool = False) -> None:
        async def first(ended: asyncio.Event) -> None:
            with session.branch("first"):
                async with session.transaction():
                    with contextlib.suppress(ValueError):
                        await session.acall(fails, number=1)
                    await ended.wait()
                    if dies:
                        session.halt(TraceUnwritable("the disk is full"))
                    await session.acall(put, number=2)

        async def second(ended: asyncio.Event) -> None:
            try:
                with session.branch("second"):
                    await session.acall(put, number=3)
            finally:
                ended.set()

        async def both() -> None:
            ended = asyncio.Event()
            await asyncio.gather(first(ended), second(ended), return_exceptions=True)

        if stops:
            stop(store, session)
            with contextlib.suppress(SessionHalted):
                double(1)
        asyncio.run(both())

    with pytest.raises(RunStopped), Session("job", store=store) as stopped:
        job(stopped, stops=True)
    lift_order(store, stopped.run_id)
    with pytest.raises(TraceUnwritable), Session("job", store=store) as died:
        job(died, dies=True)
    with Session("job", store=store) as session:
        job(session)
    assert sorted(box) == [2, 3]


def test_a_block_stopped_behind_a_failed_one(
    store: Store,
) -> None:
    def job(session: Session, *, stops: bool = False, dies: bool = False) -> None:
        with contextlib.suppress(Broken), session.transaction():
            put(1)
            if dies:
                session.halt(TraceUnwritable("the disk is full"))
            put(2)
            raise Broken
        with session.transaction():
            put(3)
            if stops:
                stop(store, session)
            put(4)

    with pytest.raises(RunStopped), Session("job", store=store) as stopped:
        job(stopped, stops=True)
    assert box == [3]
    lift_order(store, stopped.run_id)
    with pytest.raises(TraceUnwritable), Session("job", store=store) as died:
        job(died, dies=True)
    for _ in range(2):
        with Session("job", store=store, replay="continue") as session:
            job(session)
        assert box == [3, 4]


def test_a_failed_block_in_a_stopped_one_replays(store: Store) -> None:
    def job(session: Session, *, stops: bool = False) -> None:
        with session.transaction():
            look(1)
            with contextlib.suppress(Broken), session.transaction("inner"):
                double(1)
                raise Broken
            if stops:
                stop(store, session)
            put(1)

    with pytest.raises(RunStopped), Session("job", store=store) as stopped:
        job(stopped, stops=True)
    lift_order(store, stopped.run_id)
    with Session("job", store=store) as last:
        job(last)
    with Session("job", store=store, replay="offline", run=last.run_id) as session:
        job(session)
    assert box == [1]


def test_a_stop_while_an_undone_block_replays(
    store: Store,
) -> None:
    def job(session: Session, *, dies: bool = False, stops: bool = False) -> None:
        with contextlib.suppress(Broken), session.transaction():
            put(1)
            if stops:
                stop(store, session)
            look(1)
            raise Broken
        put(2)
        if dies:
            session.halt(TraceUnwritable("the disk is full"))
        put(3)

    with pytest.raises(TraceUnwritable), Session("job", store=store) as died:
        job(died, dies=True)
    with pytest.raises(RunStopped), Session("job", store=store) as stopped:
        job(stopped, stops=True)
    assert box == [2], "what came after the block stays"
    lift_order(store, stopped.run_id)
    with Session("job", store=store) as session:
        job(session)
        assert session.stats.hits == 3, "the block is given back, and does not run again"
    assert box == [2, 3]
    with Session("job", store=store, replay="offline", run=session.run_id) as again:
        job(again)
