"""An attempt whose calls were made by another tool, and its log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rollcage.session.imports import (
    Chain,
    Event,
    Opened,
    Session,
    Stage,
    drive,
    fold_lines,
    open_sessions,
)
from rollcage.trace.folder import Folder

if TYPE_CHECKING:
    from rollcage import Options, Store

__all__ = ["ImportedAttempt", "put_lines", "scratch_store"]


class ImportedAttempt(Session):
    """A session that opens no run and asks no person: it makes the given calls.

    It has only the stages that `begin` gets: so nothing is paused, approved, probed or observed,
    and neither a claim nor an undo is made.
    """

    finishes_undo = False

    def __init__(self, name: str, store: Store, options: Options) -> None:
        # It runs nothing, so it is no fork, even if its process was started as one.
        super().__init__(name, store=store, replay="offline", on_divergence="warn", options=options)

    def begin(self, log: Chain, line: Event, stages: tuple[Stage, ...]) -> None:
        """Begin an attempt at the run of a log.

        Args:
            log: the log, with the first line of the run.
            line: the line of the attempt.
            stages: all of its stages.
        """
        run = fold_lines(log.events(), log.log.where, {})
        log.append(line)
        log.wait()
        run.apply(line)
        self._surround(stages, ())
        self._entered(Opened(run, log))
        drive(self._tidy(is_async=False))

    def end(self, line: Event | None) -> None:
        """End the attempt with a line; without one, it was cut off."""
        open_sessions.discard(self)
        self._leave_context()
        if line is not None:
            self.attempt.write(line)
        self.attempt.closed = True


@contextmanager
def scratch_store() -> Iterator[Folder]:
    """Give a temporary store, which is removed after the block."""
    with tempfile.TemporaryDirectory(prefix="rollcage-") as folder:
        yield Folder(folder)


def put_lines(store: Store, run: str, lines: list[bytes]) -> bool:
    """Put the whole log of a run into a store, at once; return whether it is new.

    Raises:
        RunInUse: the run is in use.
        StoreError: the store can't be written.
    """
    log = store.open(run)
    try:
        if log.read():
            return False
        log.replace(lines)
        return True
    finally:
        log.close()
