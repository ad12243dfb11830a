"""Mistakes put in on purpose, one at a time: the simulation has to find each of them.

A check that can't fail is no check. Each of these is a mistake that somebody could make in a store,
or in what a session does with it, and that no test of one process sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from rollcage.stages.orders import Orders
from rollcage.trace import folder
from rollcage.trace.chain import HASH
from rollcage.trace.folder import Folder, FolderLog

from tests.simulation.client import ServerLog, ServerStore
from tests.simulation.database import Connection, Server

__all__ = ["BUGS", "Bug"]


class Bug(NamedTuple):
    """A mistake: where it shows, what is put in the place of what, and the seeds to look in."""

    place: str
    owner: Any
    name: str
    instead: Callable[..., Any]
    seeds: range = range(1, 301)

    @contextmanager
    def put_in(self) -> Iterator[None]:
        """Have it for the length of the block."""
        with patch.object(self.owner, self.name, self.instead):
            yield


def _system() -> Any:
    """Return what stands in the place of `os`."""
    return vars(folder)["os"]


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, where something should be done."""


def _yes(*_: Any, **__: Any) -> bool:
    return True


_insert = Server.append
_wait = FolderLog.wait
_ask = Server.ask


def _syncs_nothing(self: FolderLog) -> None:
    """Look whether the lines are this writer's, and have none of them put on the disk."""
    durable, self._durable = self._durable, False
    try:
        _wait(self)
    finally:
        self._durable = durable


def _looks_at_no_end(self: FolderLog) -> None:
    """Sync lines, and don't look whether they are this writer's: nobody is fenced off."""
    if self._refusal is not None:
        raise self._refusal
    if self._durable and self._settled != self._size:
        folder._sync_data(self._file)
    self._settled = self._size


def _rings_every_other_time(path: str) -> int:
    """Hear the second of two orders only."""
    return int(_system().stat(path).st_size) // 2 + 1 if _is_there(path) else 0


def _is_there(path: str) -> bool:
    try:
        _system().stat(path)
    except OSError:
        return False
    return True


def _tells_the_bell_before(
    self: Server, connection: Connection, run: str, head: bytes, line: bytes
) -> int | None:
    """Read the bell long before a line is on record."""
    rung = _insert(self, connection, run, head, line)
    return None if rung is None else rung // 2


def _appends_anyway(self: Server, _: Connection, run: str, head: bytes, line: bytes) -> int | None:
    """Insert a line behind whatever is there."""
    self.logs.setdefault(run, []).append(line)
    return self.rung


def _too_early(self: Server, connection: Connection, what: str, *given: Any) -> Any:
    """Acknowledge lines, and insert them only when their connection asks for something else."""
    late: dict[int, tuple[Any, ...]] = self.__dict__.setdefault("late", {})
    before = None if what in ("bell", "get") else late.pop(connection.number, None)
    if before is not None and connection in self.connections:
        self.append(connection, *before)
    if what == "append" and connection in self.connections:
        late[connection.number] = given
        return self.rung
    return _ask(self, connection, what, *given)


def _asks_again(self: ServerLog, line: bytes, asked: list[bool]) -> int | None:
    """Insert a line whose acknowledgement was lost once more."""
    lines = self._link.once("lines", self._run)
    bell = self._link.once("append", self._run, lines[-1][HASH] if lines else self._head, line)
    return None if bell is None else int(bell)


def _swaps_over(
    self: ServerStore, kind: str, key: str, was: bytes | None, new: bytes | None
) -> bool:
    """Put a value over another one, whatever that is."""
    self._link.ask("swap", kind, key, self.get(kind, key), new)
    return True


def _puts_at_once(self: Folder, path: str, key: str, new: bytes | None) -> None:
    """Write a value where it is, not beside it."""
    if new is None:
        _system().unlink(path)
        return
    file = folder._open_file(path, folder._REPLACE)
    try:
        folder._write_all(file, folder._head_of(key, new) + b"\n" + new)
    finally:
        _system().close(file)


BUGS: Final[Mapping[str, Bug]] = {
    "nothing is synced": Bug("disk", FolderLog, "wait", _syncs_nothing),
    "names are not synced": Bug("disk", Folder, "_sync_folder", _nothing),
    "whoever was taken over is not refused": Bug("disk", FolderLog, "wait", _looks_at_no_end),
    "locks are not looked at": Bug("disk", folder, "take_lock", _yes),
    "a value is written in place": Bug("disk", Folder, "_put", _puts_at_once),
    "an order is heard with the next one": Bug(
        "disk", folder, "_ring_count", _rings_every_other_time
    ),
    "orders are not listened to": Bug("disk", Orders, "_listen", _nothing),
    "a line is put behind any other": Bug("server", Server, "append", _appends_anyway),
    "a line is acknowledged before it is committed": Bug("server", Server, "ask", _too_early),
    "what may have been done is done again": Bug("server", ServerLog, "_insert", _asks_again),
    "a value is put over another": Bug("server", ServerStore, "swap", _swaps_over),
    "the bell is read before the line": Bug("server", Server, "append", _tells_the_bell_before),
}
