"""A framework's own memory, and what of it a session follows (DESIGN §3b)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from rollcage.replay.ahead import Histories, Memory, Spot, Standing
from rollcage.replay.path import Entry
from rollcage.session.naming import Names
from rollcage.session.scope import Scope
from rollcage.step.clock import Clock
from rollcage.step.driver import Driver
from rollcage.step.gating import Gate
from rollcage.step.recorded import kept
from rollcage.step.remembering import remember
from rollcage.step.requests import Flow

__all__ = ["MemoryFollower"]


class MemoryFollower:
    """Uses up the recorded steps that a framework's memory holds as done.

    Args:
        driver: of the run.
        gate: counts what is seen.
        names: those of the agents that are recorded.
        clock: the time.
        here: the place of a call in this context.
    """

    def __init__(
        self, driver: Driver, gate: Gate, names: Names, clock: Clock, here: Callable[[], Scope]
    ) -> None:
        self.memory: Memory | None = None
        self._driver = driver
        self._gate = gate
        self._names = names
        self._clock = clock
        self._here = here

    def follow(self, memory: Memory) -> None:
        """Look at a memory before each call; the first one counts."""
        self.memory = self.memory or memory

    def standing(self) -> Standing | None:
        """The framework's position in this context; None if no memory is followed."""
        return None if self.memory is None else self.memory.here()

    def seen(self, histories: Mapping[str, Iterable[str]]) -> None:
        """See `Session.seen`."""
        if self._driver.ledger.ahead.recorded:
            self._see(histories={name: list(ids) for name, ids in histories.items()})

    def look_back(self) -> None:
        """See `Session.look_back`."""
        if self.memory is None or not self._driver.ledger.ahead.has_places:
            return
        standing = self.memory.here()
        if standing is not None:
            self._see(places=standing.held(self._places()))

    async def alook_back(self) -> None:
        """See `Session.alook_back`."""
        if self.memory is None or not self._driver.ledger.ahead.has_places:
            return
        standing = self.memory.here()
        if standing is not None:
            self._see(places=await standing.aheld(self._places()))

    def before(
        self, start: Callable[[], Flow], chunks: Callable[[Flow], AsyncGenerator[Any]]
    ) -> AsyncIterator[Any]:
        """A stream; if a memory is followed, that is looked at before it begins."""
        return chunks(start()) if self.memory is None else self._before(start, chunks)

    async def _before(
        self, start: Callable[[], Flow], chunks: Callable[[Flow], AsyncGenerator[Any]]
    ) -> AsyncIterator[Any]:
        await self.alook_back()
        async with contextlib.aclosing(chunks(start())) as each:
            async for chunk in each:
                yield chunk

    def _places(self) -> Iterator[Spot]:
        """The places of the recorded steps that nobody has asked for, in the body around this."""
        driver, scope = self._driver, self._here()
        driver.check_process()
        with driver.lock:
            return driver.ledger.places((scope.branch, scope.step))

    def _see(
        self,
        *,
        places: frozenset[Spot] = frozenset(),
        histories: Histories = MappingProxyType({}),
    ) -> None:
        if not places and not any(histories.values()):
            return
        driver, scope = self._driver, self._here()
        driver.check_process()
        entries: list[tuple[int, Entry]] = []
        with driver.lock:
            if driver.closed:
                return
            for event, entry in driver.ledger.see(
                (scope.branch, scope.step),
                self._clock.wall() // 1000,
                places=places,
                histories=histories,
            ):
                driver.append(event)
                entries.append((event["step"], entry))
                self._names.keep(entry.agent)
        for number, entry in entries:
            driver.run(kept(entry))
            remember(self._gate, number, entry)
