"""The one live writer of a trace, and how it knows that the file is still its own."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from pathlib import Path
from typing import Any, Final

from rollcage.errors import Forked, TraceUnwritable
from rollcage.store import disk, system
from rollcage.store.control import Bell, ControlPage
from rollcage.store.index import Index
from rollcage.store.protocol import StopOrder
from rollcage.trace.events import seal_line
from rollcage.trace.reader import tail_of

__all__ = ["JsonlWriter"]

_UNCHECKED: Final = ("step.finished", "step.replayed")
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_writers: weakref.WeakSet[JsonlWriter] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: the run stays the parent's, and its OS lock too."""
    for writer in list(_writers):
        writer.abandon()


os.register_at_fork(after_in_child=_leave_to_parent)


class JsonlWriter:
    """Appends to one trace, whose OS lock it holds.

    Nobody else may touch the file meanwhile. That nobody did is looked at before a line that lets
    something run, and before the last one; a line about what is done already is not kept back.

    Once the disk has failed to write, nothing more is: the system may have forgotten lines that it
    had taken, and says so only once, and what came after them would be the end of a damaged
    trace. A disk without room has taken nothing, and may have some again.
    """

    buffered = False
    waits = False

    def __init__(
        self,
        path: Path,
        index: Index,
        bell: Bell,
        descriptor: int,
        data: bytes = b"",
        *,
        reopened: bool = False,
    ) -> None:
        self.run = path.stem
        self.forked = False
        self._reopened = reopened
        self.durable = False  # whether the index waits for the disk, too
        self._path = path.absolute()  # whatever the process's folder comes to be
        self._index = index
        self._descriptor = descriptor
        try:
            self._control = ControlPage(path.with_suffix(".control"), bell)
        except BaseException:
            system.files.close(descriptor)
            raise
        tail = tail_of(data)
        # Lines, bytes and head; set in one go, for Ctrl-C may come between any two instructions.
        self._end = self._next = (tail.lines, tail.size, tail.head)
        self._synced = 0
        self._failed: str | None = None  # the disk's error
        self._sync_lock = threading.Lock()
        _writers.add(self)

    def queue(self) -> None:
        """A line goes to the system's memory: nobody has to be waited for."""

    def append(self, event: dict[str, Any]) -> None:
        if self._failed is not None:
            raise self._unwritable(self._failed)
        if self._next is not self._end:
            self._recover()
        count, size, head = self._end
        if event["event"] not in _UNCHECKED:
            self._check()
        line, head = seal_line(event, head)
        length = len(line)
        self._next = count + 1, size + length, head
        try:
            written = system.files.write(self._descriptor, line)
            if written != length:  # the rest, or the error that says why not
                disk.write(self._descriptor, line[written:])
        except OSError as error:
            self._take_back()
            raise self._fail(error, ends=error.errno not in _NO_ROOM) from error
        self._end = self._next

    def _check_disk(self) -> None:
        if self._failed is not None:
            raise self._unwritable(self._failed)

    def _fail(self, error: OSError, *, ends: bool) -> Exception:
        """The disk fails: that may be the end of this trace, whatever it says next."""
        reason = disk.describe(error)
        if ends:
            self._failed = f"the disk failed before: {reason}"
        return self._unwritable(reason)

    def _recover(self) -> None:
        """The last append was interrupted, or not undone: see whether it got through."""
        try:
            if system.files.fstat(self._descriptor).st_size == self._next[1]:
                self._end = self._next
            else:
                system.files.ftruncate(self._descriptor, self._end[1])
        except OSError as error:
            raise self._unwritable(disk.describe(error)) from error
        self._next = self._end

    def _take_back(self) -> None:
        with contextlib.suppress(OSError):  # the torn line is then set aside at the next open
            system.files.ftruncate(self._descriptor, self._end[1])
            self._next = self._end

    def _check(self, *, by_name: bool = False) -> None:
        """Refuse to go on where the trace is not as this writer left it."""
        try:
            found = system.files.fstat(self._descriptor)
            if found.st_size != self._end[1]:
                more = found.st_size > self._end[1]
                raise self._lost("somebody else wrote to it" if more else "it was cut off")
            if not found.st_nlink:
                raise self._lost("it was removed")
            if by_name and not os.path.samestat(found, system.files.stat(self._path)):
                raise self._lost("another file was put in its place")
        except OSError as error:
            raise self._lost(disk.describe(error)) from error

    def _lost(self, reason: str) -> Exception:
        """The trace is not what was written; from now on, the index shows that."""
        if self.forked:
            return self._unwritable(reason)
        with contextlib.suppress(TraceUnwritable):
            self._index.attest(self.run, "halted", self._end, durable=self.durable)
        return TraceUnwritable(
            f"the trace of run {self.run} is not what was written to it: {reason}, while the run "
            f"was live ({self._path}). Nothing more runs in it; bring the file back as it was, "
            f"with {self._end[0]} lines, to resume it"
        )

    def _unwritable(self, reason: str | None) -> Exception:
        if self.forked:
            return Forked(f"run {self.run} belongs to the parent process; open a session here")
        return TraceUnwritable(f"the trace of run {self.run} can't be written: {reason}")

    def send(self) -> bool:
        return not self.durable

    def sync(self) -> None:
        target = self._end[1]
        with self._sync_lock:
            self._check_disk()
            if self._synced < target:  # else somebody waited for these bytes too
                reached = self._end[1]
                try:
                    system.files.fdatasync(self._descriptor)
                except OSError as error:
                    raise self._fail(error, ends=True) from error
                self._synced = reached

    def synced(self) -> None:
        """Nobody else could say so: who wants to know, waits in a thread."""

    def stop_order(self, *, closely: bool = False) -> StopOrder | None:
        del closely  # it always is
        return self._control.order()

    def attest(self, status: str) -> None:
        self._check_disk()
        if self._next is not self._end:
            self._recover()
        self._check(by_name=True)
        self._index.attest(self.run, status, self._end, durable=self.durable)
        if self._reopened:
            self._index.ends_again(self.run)

    def close(self) -> None:
        _writers.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if not self.forked:
                self._control.close()  # while nobody else can write the run
            with contextlib.suppress(OSError):  # each line is written already
                system.files.close(descriptor)

    def abandon(self) -> None:
        """In a forked child: close the descriptor, so that the lock ends with the parent."""
        self.forked = True
        self.close()
