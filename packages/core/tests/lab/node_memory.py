"""A framework's memory of its own, for tests: which of its nodes were done, by their names."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from rollcage.adapter import WorkAttempt

__all__ = ["Memory", "Standing"]


@dataclasses.dataclass
class Standing:
    """A place in a memory that is a list of what was done."""

    checkpoint: str
    done: frozenset[str]
    conversation: str = "thread"
    at_once: str = ""

    def is_beside(self, checkpoint: str) -> bool:
        """Nothing is done at once here."""
        return False

    def held(self, places: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """What is in the list."""
        return frozenset(each for each in places if each[1] in self.done)

    async def aheld(self, places: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """The same."""
        await asyncio.sleep(0)
        return self.held(places)


class Memory:
    """A framework's memory: which of its nodes were done when it went on."""

    def __init__(self, *done: str) -> None:
        self.done = frozenset(done)
        self.node = ""
        self.pause: str | None = None

    def here(self) -> Standing | None:
        """Where the framework stands."""
        return Standing(self.node, self.done) if self.node else None

    def attempts(self) -> Sequence[WorkAttempt]:
        """Nothing is started over here."""
        return ()

    def waits(self) -> str | None:
        """What the framework waits for."""
        return self.pause

    async def awaits(self) -> str | None:
        """The same."""
        await asyncio.sleep(0)
        return self.pause

    @contextlib.contextmanager
    def at(self, node: str) -> Iterator[None]:
        """Run a node."""
        self.node = node
        yield
        self.node = ""
