"""The commands to be taken now, for every kind of worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

from rollcage_workflow.engine.worker import Worker, is_live
from rollcage_workflow.errors import CommandCorrupt
from rollcage_workflow.holds import held, prefix_of
from rollcage_workflow.orders import Command

__all__ = ["Board"]

_STARTS: Final = ("start", "wake")


class Board:
    """The open commands of a store, each read once.

    Args:
        worker: the worker that asks.
        clock: the time now (Unix, seconds).
    """

    def __init__(self, worker: Worker, clock: Callable[[], float] = time.time) -> None:
        self._worker = worker
        self._clock = clock
        self._store = worker.store
        self._known: dict[str, Command | None] = {}

    def look(self, *, without: Collection[str] = ()) -> Iterator[Command]:
        """Yield the commands to be taken, including commands that only wait for a time.

        They come first in, first out. Each is read once, on demand: if there is room for only a
        few, the cost of a look does not grow with the open commands.

        Left out are commands that are taken (`without`), that wait for an approval, or whose
        execution is paused or in use.

        Raises:
            StoreError: the commands can't be read.
        """
        keys = self._worker.commands.open_keys()
        self._known = {key: self._known[key] for key in keys if key in self._known}
        read = [self._read(key) for key in keys if key not in without]
        paused = held(self._store, "paused")
        # an execution that was cancelled while it was paused is over: its commands are done
        if paused:
            paused -= held(self._store, "cancelled")
        for command in sorted(filter(None, read), key=lambda each: (each.time, each.key)):
            if self._is_held(command, paused):
                continue
            if command.approvals and not self._worker.is_due(command, self._clock()):
                continue
            yield command

    def is_due(self, command: Command) -> bool:
        """Return whether a command is to be taken now, and not only scheduled."""
        return self._worker.is_due(command, self._clock())

    def _read(self, key: str) -> Command | None:
        if key not in self._known:
            try:
                self._known[key] = self._worker.commands.get(key)
            except CommandCorrupt as error:
                self._known[key] = None
                self._worker.warn(key, str(error))
        return self._known[key]

    def _is_held(self, command: Command, paused: Collection[str]) -> bool:
        if command.do in _STARTS and prefix_of(command.execution) in paused:
            return True
        return command.do != "cancel" and is_live(self._store, command.execution)
