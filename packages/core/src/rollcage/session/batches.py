"""Pieces of short work that a thread does in one go.

A thread and an event loop wait for the interpreter in turn, whenever one of them has waited for
something else. So what comes up while a thread is busy is done in one go after that, and the loop
is told once. Where the work itself is slow, as on a disk that is, threads share it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
import weakref
from collections.abc import Sequence
from typing import Final, Protocol

from rollcage.session.threads import in_threads_of

__all__ = ["Batched", "in_batch"]

_MOST: Final = 4  # threads, for what is slow
_SLOW: Final = 0.002  # seconds for a piece


class Batched(Protocol):
    """One piece of work."""

    def perform(self) -> bool:
        """Do it, unless somebody does; whether anybody waits for it."""
        ...

    def settle(self) -> None:
        """Tell who waits that it is done; in the loop."""
        ...

    def give_up(self) -> None:
        """It is done, and the loop is gone that was to be told."""
        ...


class _Batches:
    """What is to be done in the threads of a place for one event loop. Used in that loop alone."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._todo: list[Batched] = []
        self._soon = False  # whether the loop will begin some
        self._busy = 0  # threads
        self._width = 1  # how many of them it takes

    def add(self, piece: Batched) -> None:
        self._todo.append(piece)
        if not self._soon and self._busy < self._width:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._begin)  # with whatever is added until then

    def _begin(self) -> None:
        self._soon = False
        loop = asyncio.get_running_loop()
        while self._todo and self._busy < self._width:
            free = self._width - self._busy
            many = (len(self._todo) + free - 1) // free
            pieces, self._todo = self._todo[:many], self._todo[many:]
            self._busy += 1
            do = functools.partial(self._do, loop, pieces)
            try:
                in_threads_of(self._where, do)
            except RuntimeError:  # the system has no thread
                do()

    def _do(self, loop: asyncio.AbstractEventLoop, pieces: Sequence[Batched]) -> None:
        began = time.monotonic()
        told = [piece for piece in pieces if piece.perform()]
        is_slow = time.monotonic() - began > _SLOW * len(pieces)
        try:
            loop.call_soon_threadsafe(self._ended, told, is_slow)
        except RuntimeError:  # it is closed
            for piece in told:
                piece.give_up()

    def _ended(self, pieces: Sequence[Batched], is_slow: bool) -> None:  # noqa: FBT001 - by the loop
        self._busy -= 1
        self._width = _MOST if is_slow else 1
        for piece in pieces:
            piece.settle()
        self._begin()


_batches: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Batches]]] = (
    weakref.WeakKeyDictionary()
)


def in_batch(where: str, piece: Batched) -> None:
    """Have a piece of work done in a thread soon, with others of this loop.

    Args:
        where: whose threads these are: see `in_threads_of`.
        piece: that is done; here, if the system has no thread.
    """
    of_loop = _batches.setdefault(asyncio.get_running_loop(), {})
    batches = of_loop.get(where)
    if batches is None:
        batches = of_loop[where] = _Batches(where)
    batches.add(piece)


os.register_at_fork(after_in_child=_batches.clear)
