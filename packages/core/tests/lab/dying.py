"""A store whose process dies at a chosen moment: around a line, a swap, or a replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollcage.trace.store import Store

__all__ = ["Dying", "Killed", "Life"]


class Killed(BaseException):
    """The process is dead: nothing of it reaches a store any more."""


class Life:
    """So many moments of a process, in all its stores; 0: it lives for ever."""

    def __init__(self, moments: int = 0) -> None:
        self.left, self.passed = moments, 0
        self.logs: list[Any] = []

    def moment(self) -> None:
        """Let a moment pass, in which the process may die."""
        self.passed += 1
        if self.left and self.passed >= self.left:
            raise Killed

    def bury(self) -> None:
        """Let go of what a dead process had locked."""
        for log in self.logs:
            log.close()


class Dying:
    """A store of a process that may die."""

    read: Any  # these are passed on
    runs: Any
    ends: Any
    is_live: Any
    get: Any
    keys: Any
    bell: Any

    def __init__(self, store: Store, life: Life) -> None:
        self._store, self._life = store, life
        self.url = store.url

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open(self, run: str, *, take: bool = False) -> Any:
        self._life.moment()
        log = self._store.open(run, take=take)
        self._life.logs.append(log)
        return _Log(log, self._life)

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        self._life.moment()
        done = self._store.swap(kind, key, was, new)
        self._life.moment()
        return done


for _name in ("read", "runs", "ends", "is_live", "get", "keys", "bell"):

    def _passed_on(self: Dying, *given: Any, _name: str = _name, **more: Any) -> Any:
        return getattr(self._store, _name)(*given, **more)

    setattr(Dying, _name, _passed_on)


class _Log:
    """A log of a process that may die."""

    def __init__(self, log: Any, life: Life) -> None:
        self._log, self._life = log, life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, line: bytes) -> None:
        self._life.moment()
        self._log.append(line)
        self._log.wait()
        self._life.moment()

    def replace(self, lines: Sequence[bytes]) -> None:
        self._life.moment()
        self._log.replace(lines)
        self._life.moment()

    def close(self) -> None:
        if not self._life.left or self._life.passed < self._life.left:
            self._log.close()
