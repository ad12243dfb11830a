"""Requests that may take long: performed in this thread, in a task, or in another thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import Any, assert_never

import orjson

from rollcage.errors import Halt, SessionError
from rollcage.step.call import OpenStep
from rollcage.step.requests import (
    Consult,
    Raised,
    Returned,
    Settle,
    Sync,
    WaitForCall,
    Waiting,
)
from rollcage.step.waiting import aconsult, awaited, caught, consult, waited_for
from rollcage.store.protocol import Writer

__all__ = ["Perform", "Performing"]

Perform = Callable[[Waiting], Awaitable[Returned | Raised]]
"""Performs what may take long, except for bodies."""


class Performing:
    """Performs what may take long, for one run; its bodies are run by `Bodies`.

    Args:
        writer: of its trace.
        sync: waits, in this thread, until that is on the disk.
        settle: records how a step has ended.
        stop: halts the session with an error.
        looked: called with a `Consult` before its function is called.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        sync: Callable[[], Returned | Raised],
        settle: Callable[[Settle], None],
        stop: Callable[[Exception], None],
        looked: Callable[[Consult], None],
    ) -> None:
        self._writer = writer
        self._sync = sync
        self._settle = settle
        self._stop = stop
        self._looked = looked
        self._waiting: dict[int, OpenStep] = {}  # steps that begin when the store has their intents

    async def here(self, effect: Waiting) -> Returned | Raised:
        """Perform in this thread what may take long; this never suspends."""
        match effect:
            case Sync(sent=True) if self._writer.send():
                return Returned(None)
            case Sync(before=step):
                with self._at_barrier(step):
                    return self._or_withdrawn(step, self._sync())
            case Consult():
                self._looked(effect)
                return consult(effect)
            case WaitForCall(until=until):
                return waited_for(until)
            case _:
                assert_never(effect)

    async def there(self, effect: Waiting) -> Returned | Raised:
        """Perform in this task what may take long; what would block the loop, in a thread."""
        match effect:
            case Sync(sent=True) if self._writer.send():
                return Returned(None)
            case Sync(before=step):
                with self._at_barrier(step):
                    return self._or_withdrawn(step, await self._async_synced())
            case Consult():
                self._looked(effect)
                return await aconsult(effect)
            case WaitForCall(until=until):
                return await caught(awaited(until))
            case _:
                assert_never(effect)

    @contextlib.contextmanager
    def _at_barrier(self, step: OpenStep | None) -> Generator[None]:
        """A step whose body begins as soon as the store says so."""
        if step is not None:
            step.cleared = False
            self._waiting[step.number] = step
        try:
            yield
        finally:
            if step is not None:
                self._waiting.pop(step.number, None)

    def withdraw(self) -> None:
        """Record that the steps whose bodies still wait for the store never began."""
        outcome: dict[str, Any] = {"status": "not_started"}
        while self._waiting:
            step = self._waiting.popitem()[1]
            self._settle(Settle(step, outcome, orjson.dumps(outcome)))
            step.withdrawn = True

    def _or_withdrawn(self, step: OpenStep | None, answer: Returned | Raised) -> Returned | Raised:
        """What came of waiting for the store, unless the session was left meanwhile."""
        if step is None or self._waiting.pop(step.number, None) is not None:
            return answer
        return Raised(SessionError("the session was left before this call began"), began=False)

    async def _async_synced(self) -> Returned | Raised:
        try:
            done = self._writer.synced()
        except Halt as error:
            return Raised(error)
        if done is None:
            return await caught(asyncio.to_thread(self._sync))
        answer = await caught(awaited(done))
        if isinstance(answer, Raised) and isinstance(answer.error, Halt):
            self._stop(answer.error)
        return answer
