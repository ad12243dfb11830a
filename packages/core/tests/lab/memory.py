"""A lab whose framework has a memory of its own, and goes on by itself where that says it was."""

import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from pathlib import Path

from programs import Branches, Lab, Program, Turn, World, at_once

_at: ContextVar[str] = ContextVar("at", default="")


@dataclasses.dataclass(frozen=True)
class Saved:
    """A task that the framework holds as done: saved behind a line of a run's trace."""

    run: str
    line: int
    task: str


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where the framework stands; see `rollcage.adapter.Standing`."""

    checkpoint: str
    done: frozenset[str]
    conversation: str = "thread"
    at_once: str = ""

    def is_beside(self, checkpoint: str) -> bool:
        own, its = self.checkpoint.split("."), checkpoint.split(".")
        return len(own) == len(its) == 2 and own[0] == its[0] and own != its

    def held(self, places: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        return frozenset(place for place in places if place[1] in self.done)

    async def aheld(self, places: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        return self.held(places)


class Remembering(Lab):
    """Its framework does the nodes of a program one after the other.

    The slots of a turn, and branches that run at once, are tasks of one node. A task that was done
    is saved; a session begins behind any of what was saved, and asks for none of it.
    """

    def __init__(self, root: Path, world: World | None = None, shuffle: int | None = None) -> None:
        super().__init__(root, world, shuffle)
        self.saved: list[Saved] = []
        self.done: frozenset[str] = frozenset()  # of this session, as it began
        self.chance = random.Random(0)  # noqa: S311 - reproducible

    def here(self) -> Standing | None:
        """See `rollcage.adapter.Memory`."""
        return Standing(_at.get(), self.done) if _at.get() else None

    def attempts(self) -> tuple[()]:
        """Nothing is started over within a session."""
        return ()

    def waits(self) -> None:
        """Nothing waits for an answer."""

    async def awaits(self) -> None:
        """The same."""

    async def program(self, program: Program) -> None:
        session = self.session
        assert session is not None
        session.follow(self)
        lost = self.chance.choice([0, 0, self.chance.randint(0, len(self.saved))])
        self.saved = self.saved[: len(self.saved) - lost]
        self.done = frozenset(each.task for each in self.saved)
        for number, node in enumerate(program):
            match node:
                case Turn(nodes):
                    with session.turn() as turn:
                        await at_once(
                            self.task(f"{number}.{slot}", self.placed, turn, slot, each)
                            for slot, each in self.order(nodes)
                        )
                case Branches(lines):
                    await at_once(
                        self.task(f"{number}.{line}", self.line, line, nodes)
                        for line, nodes in self.order(lines)
                    )
                case _:
                    await self.task(f"{number}", self.node, node)
        _at.set("end")
        session.look_back()

    async def task(self, name: str, work: Callable[..., Awaitable[None]], *given: object) -> None:
        """Do what one task does, unless it was done."""
        if name in self.done:
            return
        _at.set(name)
        await work(*given)
        lines = self.path(self.newest).read_bytes().count(b"\n")
        self.saved.append(Saved(self.newest, lines, name))

    def back(self, run: str, line: int, root: Path, world: World) -> "Remembering":
        lab = super().back(run, line, root, world)
        assert isinstance(lab, Remembering)
        before = lab.started[:-1]
        lab.chance = self.chance
        lab.saved = [
            each
            for each in self.saved
            if each.run in before or (each.run == run and each.line <= line)
        ]
        return lab
