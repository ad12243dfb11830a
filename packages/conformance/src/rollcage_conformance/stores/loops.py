"""A store on an event loop: it never blocks the loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from rollcage import Store
from rollcage.errors import Fenced
from rollcage.trace.chain import Chain
from rollcage.trace.writer import Queued

from rollcage_conformance.stores.base import FIRST, StoreBase, begun, numbers, on_a_loop

__all__ = ["LoopSuite"]


class LoopSuite(StoreBase):
    """A store on an event loop: it never blocks the loop's thread."""

    @on_a_loop
    async def test_nothing_of_a_store_runs_on_the_thread_of_a_loop(self, store: Store) -> None:
        folder = str(Path(sys.modules[type(store).__module__].__file__ or "").parent)
        seen: set[str] = set()

        def note(frame: FrameType, event: str, given: Any) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(folder):
                seen.add(f"{Path(code.co_filename).name}:{code.co_name}")
            elif event == "c_call" and str(given.__module__) in ("posix", "fcntl", "_sqlite3"):
                seen.add(given.__qualname__)

        chain = await asyncio.to_thread(lambda: Chain(Queued(store.open("r1"))))
        await asyncio.to_thread(chain.read)
        gc.collect()  # garbage of other tests closes its connections wherever it is collected
        sys.setprofile(note)
        try:
            chain.append(FIRST)
            for n in range(20):
                chain.append({"n": n})
                await chain.settled()
                assert isinstance(chain.log.bell, int)
        finally:
            sys.setprofile(None)
        await asyncio.to_thread(chain.close)
        assert numbers(store) == list(range(20))
        assert {each for each in seen if not each.startswith(("chain.py", "writer.py"))} == set()

    @on_a_loop
    async def test_sessions_on_one_loop_share_a_thread(self, store: Store) -> None:
        async def session(run: str) -> None:
            chain = await asyncio.to_thread(lambda: Chain(Queued(store.open(run))))
            chain.append(FIRST)
            for n in range(10):
                chain.append({"n": n})
                await chain.settled()
                chain.append({"n": n + 100})
            await asyncio.to_thread(chain.close)

        runs = [f"r{n}" for n in range(8)]
        await asyncio.gather(*map(session, runs))
        for run in runs:
            assert numbers(store, run) == [m for n in range(10) for m in (n, n + 100)]

    @on_a_loop
    async def test_who_is_cancelled_between_a_line_and_its_record_leaves_the_line(
        self, store: Store
    ) -> None:
        chain = await asyncio.to_thread(lambda: Chain(Queued(store.open("r1"))))
        chain.append(FIRST)

        async def call(n: int) -> None:
            chain.append({"n": n})
            await chain.settled()

        for n in range(20):
            task = asyncio.ensure_future(call(n))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(chain.close)
        assert numbers(store) == list(range(20))

    @on_a_loop
    async def test_a_queued_writer_that_was_taken_over_is_refused(self, store: Store) -> None:
        old = await asyncio.to_thread(lambda: Chain(Queued(store.open("r1"))))
        old.append(FIRST)
        await old.settled()
        new = await asyncio.to_thread(lambda: begun(store, take=True))
        new.append({"n": 1})
        await asyncio.to_thread(new.wait)
        with pytest.raises(Fenced):
            old.append({"n": 2})
            await old.settled()
        with contextlib.suppress(Fenced):
            await asyncio.to_thread(old.close)
        await asyncio.to_thread(new.close)
        assert numbers(store) == [1]
