"""Keep a forked child from the resources of its parent, which goes on with them."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

__all__ = ["Owned", "keep_from_children"]


class Owned(Protocol):
    """Belong to the process that made it: a log, a connection, a thread."""

    def __hash__(self) -> int: ...

    def forked(self) -> None:
        """Release the resource in a forked child, without harm to the parent's."""
        ...


_owned: Final[weakref.WeakSet[Owned]] = weakref.WeakSet()


def keep_from_children(owned: Owned) -> None:
    """Call `forked` in each child that this process forks while the resource lives."""
    _owned.add(owned)


def _in_child() -> None:
    for owned in list(_owned):
        owned.forked()
    _owned.clear()


os.register_at_fork(after_in_child=_in_child)
