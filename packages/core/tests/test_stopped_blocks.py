"""Transactions of a run that was told to stop: undone whole, or not at all, and then run again."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from rollcage import (
    RunStopped,
    SessionHalted,
    TraceUnwritable,
    UndoIncomplete,
    UnknownOutcome,
    compensate,
    tool,
)
from rollcage.session.session import Session
from rollcage.store import JsonlStore, StopOrder

Resolve = Callable[[str, int, dict[str, Any]], None]

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


@tool(effect="write", name="stopped.fails", undo=away)
def fails(number: int) -> int:
    raise ValueError(number)


@tool(effect="pure", name="stopped.double")
def double(number: int) -> int:
    return 2 * number


@tool(effect="read", name="stopped.look")
def look(number: int) -> int:
    return number


def stop(store: JsonlStore, session: Session) -> None:
    store.stop(StopOrder(session.run_id, "ann", "too eager", 5))


def test_a_stopped_block_with_a_step_in_doubt_stays_as_it_is_and_goes_on(
    store: JsonlStore, resolve: Resolve
) -> None:
    running: list[Session] = []
    told: list[str] = []

    @tool(effect="write", name="stopped.lose", undo=away)
    def lose(number: int) -> int:
        box.append(number)
        stop(store, running[-1])  # it comes while the write is under way
        with contextlib.suppress(SessionHalted):
            double(number)
        raise TimeoutError

    def job(session: Session) -> None:
        running.append(session)
        try:
            with session.transaction():
                put(1)
                lose(2)
                put(3)
        except Exception as error:
            told.append(str([error, *getattr(error, "__notes__", ())]))
            raise

    with pytest.raises(RunStopped), Session("job", store=store) as first:
        job(first)
    assert box == [1, 2], "what is in doubt can't be undone, so nothing of the block was"
    assert "could not be undone completely: step 2 (stopped.lose)" in told[0]
    store.lift(first.run_id)
    with pytest.raises(UnknownOutcome) as unknown, Session("job", store=store) as second:
        job(second)
    resolve(unknown.value.run, unknown.value.step, {"status": "ok", "value": 2})
    with Session("job", store=store) as third:
        job(third)
        assert third.stats.hits == 2
    assert box == [1, 2, 3]


def test_a_block_that_raises_with_a_step_in_doubt_is_undone_once_that_is_known(
    store: JsonlStore, resolve: Resolve
) -> None:
    @tool(effect="write", name="stopped.lose", undo=away)
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
    told = "step 2 .stopped.lose.*unknown.*\n.*step 1 .stopped.put.*not tried"
    with pytest.raises(UndoIncomplete, match=told), Session("job", store=store) as second:
        job(second, again=True)
    assert box == [1, 2]
    resolve(first.run_id, 2, {"status": "ok", "value": 2})
    with pytest.raises(Broken), Session("job", store=store) as third:
        job(third, again=True)
    assert box == []


def test_a_block_that_was_stopped_before_its_first_call_runs_in_whole(store: JsonlStore) -> None:
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
    store.lift(stopped.run_id)
    with pytest.raises(TraceUnwritable), Session("job", store=store) as died:
        job(died, dies=True)
    with Session("job", store=store) as session:
        job(session)
    assert sorted(box) == [2, 3]


def test_a_block_that_was_stopped_is_not_given_back_as_it_was_once_something_came_after_it(
    store: JsonlStore,
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
    assert box == []
    store.lift(stopped.run_id)
    with pytest.raises(TraceUnwritable), Session("job", store=store) as died:
        job(died, dies=True)
    for _ in range(2):
        with Session("job", store=store, replay="continue") as session:
            job(session)
        assert box == [3, 4]


def test_a_block_inside_of_one_that_was_stopped_is_undone_offline_too(store: JsonlStore) -> None:
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
    store.lift(stopped.run_id)
    with Session("job", store=store) as last:
        job(last)
    with Session("job", store=store, replay="offline", source=last.run_id) as session:
        job(session)
    assert box == [1]


def test_a_run_that_is_stopped_while_an_undone_block_is_told_goes_on_behind_it(
    store: JsonlStore,
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
    store.lift(stopped.run_id)
    with Session("job", store=store) as session:
        job(session)
        assert session.stats.hits == 3, "the block is given back, and does not run again"
    assert box == [2, 3]
    with Session("job", store=store, replay="offline", source=session.run_id) as again:
        job(again)
