"""What async sessions do on the thread of their loop: nothing of a store, and nothing that blocks.

Subclass `LoopSuite`, and say in `url` where a store is.
"""

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from copying import Copy
from pydantic import SecretStr
from rollcage import (
    Session,
    Stage,
    Store,
    aplan_undo,
    aundo_run,
    compensate,
    open_store,
    resolve_step,
    tool,
)
from rollcage.errors import RunStopped, UnknownOutcome
from rollcage.stages.orders import lift_order, pause_run, stop_run
from rollcage.stages.secrets import Secrets
from rollcage.trace.listing import list_runs
from rollcage.trace.seal import StoreSeal

__all__ = ["LoopSuite"]

# What blocks in these is found; without packages/stores there is core alone.
SCANNED = [each for each in ("rollcage", "rollcage_stores") if find_spec(each)]
LAG = 0.3  # seconds: of a loop that nobody blocks, on a busy machine
state: dict[str, str] = {}


async def observed(args: dict[str, Any]) -> dict[str, str]:
    await asyncio.sleep(0)
    return {"is": state.get(args["key"], "")}


def put_back(args: dict[str, Any], before: dict[str, str]) -> list[Any]:
    return [compensate("loop_set", key=args["key"], value=before["is"])]


@tool(effect="write", observe=observed, undo=put_back)
async def loop_set(key: str, value: str) -> str:
    await asyncio.sleep(0)
    state[key] = value
    return value if value != "large" else "x" * 200_000


@tool(effect="write")
def loop_thread(text: str) -> str:
    time.sleep(0.001)
    return text


@tool(effect="write")
async def loop_lost(text: str) -> str:
    raise TimeoutError(text)


@tool(effect="read")
async def loop_read(key: str) -> str:
    await asyncio.sleep(0)
    return state.get(key, "")


@tool(effect="pure")
async def loop_pure(text: str) -> str:
    return text


@tool(effect="scope")
async def loop_scope(text: str) -> str:
    await loop_set(f"in {text}", text)
    return await loop_read(text)


@tool(effect="write", once="loop/{text}")
async def loop_once(text: str) -> str:
    return text


@tool(effect="write")
async def loop_secret(password: SecretStr) -> int:
    return len(password.get_secret_value())


class Apart:
    """A store, or one of its logs, that notes what is asked of it on the thread of a loop."""

    def __init__(self, real: Any, loop: int, seen: list[str]) -> None:
        self._real, self._loop, self._seen = real, loop, seen

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found) or name in ("url", "where", "last", "is_at_once"):
            return found

        def asked(*given: Any, **more: Any) -> Any:
            self._note(name)
            gave = found(*given, **more)
            return Apart(gave, self._loop, self._seen) if name == "open" else gave

        return asked

    def _note(self, name: str) -> None:
        if threading.get_ident() == self._loop:
            stack = [
                f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_stack()[:-2]
                if "/rollcage" in frame.filename
            ]
            self._seen.append(f"{name} by {' < '.join(reversed(stack[-6:]))}")


class ApartStore(Apart):
    def __init__(self, real: Store, loop: int, seen: list[str]) -> None:
        super().__init__(real, loop, seen)
        self.url = real.url


for _name in ("open", "read", "runs", "ends", "is_live", "get", "swap", "keys", "bell"):

    def _asked(self: Apart, *given: Any, _name: str = _name, **more: Any) -> Any:
        return Apart.__getattr__(self, _name)(*given, **more)

    setattr(ApartStore, _name, _asked)


@contextlib.asynccontextmanager
async def steady() -> AsyncIterator[None]:
    """Check that the loop of the block is never kept for long."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - before)

    ticking = asyncio.ensure_future(tick())
    try:
        yield
    finally:
        ticking.cancel()
    assert longest < LAG


class LoopSuite:
    """Tests of async sessions. A subclass has a fixture `url`."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def seen(self) -> Iterator[list[str]]:
        """What was asked of a store on the thread of the loop: nothing, at the end of a test."""
        seen: list[str] = []
        state.clear()
        yield seen
        assert not seen, "\n".join(sorted(set(seen)))

    @pytest.fixture
    def store(self, url: str, seen: list[str]) -> Any:
        StoreSeal(open_store(url))("x")  # a store makes its key once
        return ApartStore(open_store(url), threading.get_ident(), seen)

    async def calls(self, session: Session, upto: int = 99) -> None:
        """A program with everything in it; after so many parts it fails."""
        parts: Sequence[Any] = [
            lambda: loop_set("a", "1"),
            lambda: loop_set("large", "large"),
            lambda: session.acall(loop_thread, text="t"),
            lambda: loop_read("a"),
            lambda: loop_pure("p"),
            lambda: loop_scope("s"),
            lambda: loop_once("o"),
            lambda: loop_secret(SecretStr("hunter2")),
            lambda: self.turn(session),
            lambda: self.branches(session),
            lambda: self.inner(session),
            lambda: self.rolled_back(session),
        ]
        for part in parts[:upto]:
            await part()
        if upto < len(parts):
            raise ZeroDivisionError

    async def turn(self, session: Session) -> None:
        with session.turn():
            await asyncio.gather(*(loop_set(f"g{n}", str(n)) for n in range(3)), loop_read("a"))

    async def branches(self, session: Session) -> None:
        async def one(name: str) -> None:
            with session.branch(name):
                await loop_set(name, "x")
                await loop_read(name)

        with session.turn():
            await asyncio.gather(one("b1"), one("b2"))

    async def inner(self, session: Session) -> None:
        async with Session("inner", store=session.store):
            await loop_set("inner", "x")

    async def rolled_back(self, session: Session) -> None:
        with contextlib.suppress(KeyError):
            async with session.transaction():
                await loop_set(f"rolled {session.run_id}", "x")
                raise KeyError

    async def attempt(self, store: Any, upto: int = 99, **given: Any) -> str:
        session = Session("loop", store=store, **given)
        with contextlib.suppress(ZeroDivisionError):
            async with session:
                await self.calls(session, upto)
        return session.run_id

    async def test_a_session_asks_nothing_of_its_store_on_the_loop(self, store: Any) -> None:
        run = await self.attempt(store, stages=[Secrets()])
        assert await self.attempt(store, replay="continue") == run
        await self.attempt(store, replay="offline")
        await self.attempt(store, replay="verify")
        await self.attempt(store, upto=5, stages=[Copy(run)])

    async def test_a_run_that_was_cut_is_resumed_without_blocking(self, store: Any) -> None:
        for upto in (2, 5, 8, 10):
            await self.attempt(store, upto)
        run = await self.attempt(store, 99)
        assert (await aplan_undo(store, run)).steps
        assert (await aundo_run(store, run)).steps

    async def test_an_unknown_outcome_is_met_without_blocking(self, store: Any, url: str) -> None:
        for _ in range(2):
            with pytest.raises(UnknownOutcome):
                async with Session("lost", store=store):
                    await loop_lost("x")
        run = (await asyncio.to_thread(list_runs, url))[0].run
        await asyncio.to_thread(resolve_step, url, run, 1, happened=False)

    async def test_a_session_that_cannot_begin_leaves_its_run(self, store: Any) -> None:
        class Fails(Stage):
            def opened(self, session: Session) -> None:
                assert threading.current_thread() is not threading.main_thread()
                store.get("names", "x")
                raise ZeroDivisionError

        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                async with Session("fails", store=store, stages=[Fails()]):
                    pass
        async with Session("fails", store=store):
            assert await loop_read("a") == ""

    async def test_orders_are_obeyed_without_blocking(self, store: Any, url: str) -> None:
        async with Session("paused", store=store) as session:
            await loop_set("a", "1")
            await asyncio.to_thread(pause_run, url, session.run_id)
            reading = asyncio.ensure_future(loop_read("a"))
            writing = asyncio.ensure_future(loop_set("b", "1"))
            await asyncio.sleep(0.1)
            assert not reading.done()
            assert not writing.done()
            await asyncio.to_thread(lift_order, url, session.run_id)
            assert await reading == "1"
            assert await writing == "1"
        with pytest.raises(RunStopped):
            async with Session("stopped", store=store) as session:
                await asyncio.to_thread(stop_run, url, session.run_id)
                await loop_read("a")
        with pytest.raises(RunStopped):
            async with Session("stopped", store=store) as session:
                await loop_pure("a")

    async def test_each_body_sees_an_order_that_was_given_before(
        self, store: Any, url: str
    ) -> None:
        """Also where another stage has waited since the first look at it."""
        run: list[str] = []

        class Slow(Stage):
            def prepare(self, call: Any, match: Any) -> Any:
                if match.kind == "new" and not run:
                    return self.orders(call)
                return None

            def orders(self, call: Any) -> Any:
                run.append(call.attempt.run.id)
                yield lambda: asyncio.to_thread(stop_run, url, run[0])

        for read in (loop_read, loop_pure):
            run.clear()
            with pytest.raises(RunStopped):
                async with Session(f"slow {read.__name__}", store=store, stages=[Slow()]):
                    await read("a")

    async def test_nothing_blocks_the_loop(self, url: str) -> None:
        """By what the standard library is asked for; and by the clock, for what a library waits."""
        state.clear()
        await self.attempt(url, replay="off")  # what is imported, and made, the first time
        with blockbuster_ctx(scanned_modules=SCANNED) as watched:
            # Where coverage is measured, its threads wait for each other in any function of ours.
            lock = watched.functions["threading.Lock.acquire"]
            lock.can_block_in("coverage/collector.py", "lock_data")
            async with steady():
                run = await self.attempt(url, replay="off")
                assert await self.attempt(url, replay="continue") == run
                await self.attempt(url, 7, replay="off")
                await self.attempt(url)
                await asyncio.gather(*(self.attempt(url, input={"of": n}) for n in range(4)))
                await aundo_run(url, run)
