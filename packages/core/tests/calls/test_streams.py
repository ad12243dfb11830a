"""Streams that a consumer leaves or throws into, and sync calls on the thread of a loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from rollcage import Contract, Session, Store, tool


@tool(effect="write")
def next_of_nothing() -> int:
    return next(iter(()))


@tool(effect="read")
def inner(n: int) -> int:
    return n + 1


@tool(effect="scope")
def outer(n: int) -> int:
    return inner(n) + inner(n + 1)


def test_a_body_that_raises_what_ends_loops_raises_it(store: Store) -> None:
    with Session("job", store=store) as session:
        with pytest.raises(StopIteration):
            session.call(next_of_nothing)
        assert session.call(outer, n=1) == 5
    ran = session.attempt.run.steps.values()
    assert [step.status for step in ran] == ["error", "ok", "ok", "ok"]


def test_a_sync_call_inside_of_a_running_loop_suspends_nothing(store: Store) -> None:
    async def agent() -> int:
        with Session("job", store=store):
            return outer(1)

    assert asyncio.run(agent()) == 5


# --- streams -------------------------------------------------------------------------------------

CHUNKS = Contract(name="chunks", effect="read", parameters={"type": "object"})
closed: list[str] = []


def chunks() -> Iterator[int]:
    try:
        yield from range(3)
    finally:
        closed.append("sync")


async def achunks() -> AsyncIterator[int]:
    try:
        for n in range(3):
            yield n
    finally:
        closed.append("async")


@pytest.fixture(autouse=True)
def nothing_closed() -> None:
    closed.clear()


def test_what_a_consumer_throws_into_a_stream_is_its_end(store: Store) -> None:
    with Session("job", store=store) as session:
        stream: Any = session.stream(CHUNKS, {}, chunks)
        assert next(stream) == 0
        with pytest.raises(KeyError, match="enough"):
            stream.throw(KeyError("enough"))
        assert closed == ["sync"]
        assert list(stream) == []
    (step,) = session.attempt.run.steps.values()
    assert step.status == "error"


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_stream_that_is_left_is_cut_and_replays_up_to_there(store: Store, in_loop: bool) -> None:
    def read(session: Session) -> list[int]:
        stream: Any = session.stream(CHUNKS, {}, chunks)
        taken = [next(stream), next(stream)]
        stream.close()
        return taken

    async def agent(session: Session) -> list[int]:
        return read(session)

    run: Callable[[Session], list[int]] = (lambda s: asyncio.run(agent(s))) if in_loop else read
    with Session("job", store=store) as session:
        assert run(session) == [0, 1]
    assert closed == ["sync"]
    with Session("job", store=store, replay="offline") as again:
        assert run(again) == [0, 1]
    assert again.stats.hits == 1


def test_an_async_stream_is_driven_by_the_same_loop(store: Store) -> None:
    async def read(session: Session) -> list[int]:
        return [n async for n in session.astream(CHUNKS, {}, achunks)]

    for replay in ("off", "offline"):
        with Session("job", store=store, replay=replay) as session:
            assert asyncio.run(read(session)) == [0, 1, 2]
    assert closed == ["async"]
