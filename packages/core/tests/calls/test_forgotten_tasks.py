"""A task that nobody refers to any more can't wait: others go on with what it leaves behind."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest
from rollcage import Session, Store, compensate, list_runs, tool
from rollcage.replay.call import here

Job = Callable[[Store], Coroutine[Any, Any, None]]

sent: list[int] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


@tool(effect="write", name="forgotten.unsend")
async def unsend(number: int) -> None:
    await asyncio.sleep(0)
    sent.remove(number)


@tool(effect="write", name="forgotten.send", undo=lambda args: [compensate(unsend, **args)])
async def send(number: int) -> int:
    sent.append(number)
    return number


async def forever() -> None:
    """What nothing but the task itself refers to."""
    await asyncio.get_running_loop().create_future()


class Client:
    """What has to wait for something when it is closed, as clients of servers do."""

    async def __aenter__(self) -> None:
        await asyncio.sleep(0)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)


async def in_transaction(store: Store) -> None:
    async with Session("job", store=store) as session:
        await send(1)
        async with session.transaction("t"):
            await send(2)
            await forever()


async def in_two(store: Store) -> None:
    async with Session("job", store=store) as session:
        await send(1)
        async with session.transaction("t"):
            await send(2)
            async with session.transaction("u"):
                await send(3)
                await forever()


async def in_session(store: Store) -> None:
    async with Session("job", store=store):
        await send(1)
        async with Session("inner", store=store):
            await forever()


async def in_client(store: Store) -> None:
    async with Session("job", store=store) as session, session.transaction("t"):
        await send(1)
        async with Client():
            await send(2)
            await forever()


async def the_rest(store: Store, job: Job) -> None:
    """What a job does, without what it waits for."""
    async with Session("job", store=store) as session:
        if job is in_client:
            async with session.transaction("t"):
                await send(1)
                await send(2)
            return
        await send(1)
        if job is in_session:
            return
        async with session.transaction("t"):
            await send(2)
            if job is in_two:
                async with session.transaction("u"):
                    await send(3)


async def forget(job: Coroutine[Any, Any, None]) -> None:
    """Begin a job, and forget it where it waits for ever."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # a task was destroyed
    task = loop.create_task(job)
    while not waits_for_ever(task):
        assert not task.done()
        await asyncio.sleep(0.001)


def waits_for_ever(task: asyncio.Task[None]) -> bool:
    waits: Any = task.get_coro()
    while getattr(waits, "cr_await", None) is not None:
        if waits.cr_code is forever.__code__:
            return True
        waits = waits.cr_await
    return False


async def until(said: Callable[[], bool]) -> None:
    for _ in range(6000):
        gc.collect()  # what is destroyed lets go of what is destroyed next
        if said():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came")


DESTROYED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@DESTROYED
@pytest.mark.parametrize("job", [in_transaction, in_two, in_session, in_client])
async def test_what_a_forgotten_task_was_in_ends_and_is_gone_on_with(
    store: Store, job: Job
) -> None:
    await forget(job(store))
    await until(lambda: not any(store.is_live(info.run) for info in list_runs(store)))
    (run,) = list_runs(store)
    assert run.status in ("error", None)  # None: as if its process had died there
    before = list(sent)
    await the_rest(store, job)
    done: dict[Job, list[int]] = {in_session: [1], in_two: [1, 2, 3]}
    assert sent == before == done.get(job, [1, 2])
    assert list_runs(store)[0].status == "ok"


@DESTROYED
async def test_a_session_goes_on_that_a_forgotten_task_was_only_started_in(
    store: Store,
) -> None:
    async def sends(session: Session) -> None:
        async with session.transaction("t"):
            await send(2)
            await forever()

    async with Session("job", store=store) as session:
        await forget(sends(session))
        await until(lambda: not any(map(waits_for_ever, asyncio.all_tasks())))
        await asyncio.sleep(0.05)
        assert store.is_live(session.run_id)
        assert await send(4) == 4
    assert list_runs(store)[0].status == "ok"
    assert sent == [2, 4]


async def test_a_block_in_a_generator_that_is_closed_is_undone(store: Store) -> None:
    """That can wait: whoever closes it does."""

    async def sends(session: Session) -> AsyncGenerator[int]:
        async with session.transaction("t"):
            yield await send(2)
            yield await send(3)

    async with Session("job", store=store) as session:
        async with contextlib.aclosing(sends(session)) as numbers:
            assert await anext(numbers) == 2
        assert sent == []
    assert list_runs(store)[0].status == "ok"


async def test_a_session_that_nobody_forgot_is_not_left(store: Store) -> None:
    """Its tasks can make calls, whatever has become of the object."""

    async def enters() -> str:
        return (await Session("job", store=store).__aenter__()).run_id

    run = await enters()  # in this context
    for _ in range(3):
        gc.collect()
    await asyncio.sleep(0.05)
    assert store.is_live(run)
    assert await send(1) == 1
    assert b'"name":"forgotten.send"' in b"".join(store.read(run))
    place = here.get()
    assert place is not None
    await place.session.__aexit__(None, None, None)
    assert not store.is_live(run)
