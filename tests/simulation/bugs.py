"""Mistakes put in on purpose, one at a time: the simulation has to find each of them.

A check that can't fail is no check. Each of these is a mistake that somebody could make in the
store, and that no test of one process sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from rollcage.step.orders import Orders
from rollcage.store import JsonlStore, disk
from rollcage.store.index import Index
from rollcage.store.writer import JsonlWriter

from tests.simulation.client import ServerWriter
from tests.simulation.database import Connection, Server

__all__ = ["BUGS", "Bug"]


class Bug(NamedTuple):
    """A mistake: where it shows, what is put in the place of what, and the seeds to look in."""

    place: str
    owner: Any
    name: str
    instead: Callable[..., Any]
    seeds: range = range(1, 101)

    @contextmanager
    def put_in(self) -> Iterator[None]:
        """Have it for the length of the block."""
        with patch.object(self.owner, self.name, self.instead):
            yield


def _nothing(*_: Any, **__: Any) -> None:
    """What does not do what it should."""


def _yes(*_: Any, **__: Any) -> bool:
    return True


_create = JsonlStore.create
_attest = Index.attest
_order = JsonlWriter.stop_order
_ask = Server.ask


def _index_first(self: JsonlStore, started: dict[str, Any]) -> JsonlWriter:
    """The index tells of a run before there is one."""
    index = self._index
    index.began(started, alone=False, durable=False)
    with patch.object(Index, "began", _nothing):
        return _create(self, started)


def _never_attests(self: Index, run: str, *_: Any, **__: Any) -> None:
    """How a run ended is noted before its last line is on the disk: here, a line too many."""
    count, size, head = _[1]
    _attest(self, run, _[0], (count + 1, size, head), durable=__["durable"])


def _looks_once(self: JsonlWriter, *, closely: bool = False) -> Any:
    """An order to stop is looked for at the first call only."""
    if getattr(self, "_looked", False):
        return None
    setattr(self, "_looked", True)  # noqa: B010 - a mistake has no place of its own
    return _order(self, closely=closely)


def _fences_nobody(self: Server, _: Connection, run: str) -> int:
    """Whoever takes a run over does not fence off who wrote it before."""
    return len(self.rows[run].lines)


def _too_early(self: Server, connection: Connection, what: str, *given: Any) -> Any:
    """Lines are acknowledged, and added only when their connection adds or reads others."""
    late: dict[int, tuple[Any, ...]] = self.__dict__.setdefault("late", {})
    before = None if what == "order" else late.pop(connection.number, None)
    if before is not None and connection in self.connections:
        self.insert(connection, *before)
    if what == "insert" and connection in self.connections:
        run, number, lines = given
        late[connection.number] = run, number, list(lines)
        return True
    return _ask(self, connection, what, *given)


def _adds_anyway(self: ServerWriter) -> bool:
    """Lines whose acknowledgement was lost are added behind whatever stands there."""
    if self._link.connection is not self._lock.connection and not self._again():
        return False
    self._number = len(self._link.once("end", self.run))
    return bool(self._link.once("insert", self.run, self._number, self._waiting))


BUGS: Final[Mapping[str, Bug]] = {
    "nothing is synced": Bug("disk", JsonlWriter, "sync", _nothing),
    "names are not synced": Bug("disk", disk, "keep_name", _nothing),
    "locks are not looked at": Bug("disk", disk, "lock", _yes),
    "the index is written before the trace": Bug("disk", JsonlStore, "create", _index_first),
    "a wrong end is attested": Bug("disk", Index, "attest", _never_attests),
    "an order to stop is seen by the first call only": Bug(
        "disk", JsonlWriter, "stop_order", _looks_once
    ),
    "a call of a paused run does not wait": Bug("disk", Orders, "waits_for", _nothing),
    "who takes over does not fence": Bug("server", Server, "fence", _fences_nobody),
    "a line is acknowledged before it is committed": Bug("server", Server, "ask", _too_early),
    "locks of the server are not looked at": Bug("server", Server, "lock", _yes),
    "nobody waits for lines that are collected": Bug("server", ServerWriter, "sync", _nothing),
    "what may have been done is done again": Bug("server", ServerWriter, "_insert", _adds_anyway),
}
