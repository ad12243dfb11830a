"""A store whose process dies at a chosen moment: before or after a line, or a swap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcage.trace.folder import Folder


class Killed(BaseException):
    """The process is dead: nothing of it reaches the store any more."""


class Mortal(Folder):
    """A folder that lets its process live for so many moments; 0: for ever.

    Attributes:
        moments: how many there were.
        at: what is done at each of them, with its number, before the process may die.
    """

    def __init__(self, root: Path, life: int = 0) -> None:
        super().__init__(root)
        self.life, self.moments, self.dead = life, 0, False
        self.at: Callable[[int], None] | None = None
        self._opened_by_it: list[Any] = []

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def moment(self) -> None:
        """Let a moment pass, in which the process may die."""
        if self.dead:
            raise Killed
        self.moments += 1
        if self.at is not None:
            self.at(self.moments)
        if self.moments == self.life:
            self.dead = True
            raise Killed

    def open(self, run: str, *, take: bool = False) -> Any:
        log = MortalLog(self, super().open(run, take=take))
        self._opened_by_it.append(log)
        return log

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        self.moment()
        done = super().swap(kind, key, was, new)
        self.moment()
        return done

    def bury(self) -> None:
        """Let go of what a dead process had locked."""
        for log in self._opened_by_it:
            log.log.close()


class MortalLog:
    """A log of such a store."""

    is_at_once = True

    def __init__(self, store: Mortal, log: Any) -> None:
        self.store, self.log, self.where = store, log, log.where
        self.read, self.wait, self.settled, self.close = log.read, log.wait, log.settled, log.close
        self.lines, self.hear, self.replace = log.lines, log.hear, log.replace

    @property
    def last(self) -> bytes:
        return bytes(self.log.last)

    @property
    def bell(self) -> int:
        return int(self.log.bell)

    def append(self, line: bytes) -> None:
        self.store.moment()
        self.log.append(line)
        self.log.wait()
        self.store.moment()


def until_it_dies(root: Path, life: int, program: Callable[[Mortal], Any]) -> tuple[Any, Mortal]:
    """Run a program in a process that lives so long; return what it gave, or `Killed`."""
    store = Mortal(root, life)
    try:
        return program(store), store
    except Killed as killed:
        return killed, store
    finally:
        store.bury()
