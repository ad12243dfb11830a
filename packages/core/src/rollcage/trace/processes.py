"""What a forked child of a process must leave alone, as its parent goes on with it."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

__all__ = ["Owned", "keep_from_children"]


class Owned(Protocol):
    """Something that belongs to the process that made it: a log, a connection, a thread."""

    def __hash__(self) -> int: ...

    def forked(self) -> None:
        """Let go of it, in a forked child, so that the parent's goes on as it was."""
        ...


_owned: Final[weakref.WeakSet[Owned]] = weakref.WeakSet()


def keep_from_children(owned: Owned) -> None:
    """Have `forked` called of it in each child that this process forks while it lives."""
    _owned.add(owned)


def _in_child() -> None:
    for owned in list(_owned):
        owned.forked()
    _owned.clear()


os.register_at_fork(after_in_child=_in_child)
