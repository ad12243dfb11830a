"""Traces as files to read, and the OS lock by which one of them is somebody's."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import weakref
from hashlib import sha256
from pathlib import Path
from typing import Final

from rollcage.errors import RunInUse, RunNotFound, StoreError, TraceCorrupt
from rollcage.store import disk, system
from rollcage.store.control import read_order
from rollcage.store.protocol import Lock, RunTrace, StopOrder, is_run_id
from rollcage.trace.reader import read_events, split_tail

__all__ = ["NamedTrace", "TraceFile", "open_locked", "run_in", "set_tail_aside"]

_log: Final = logging.getLogger("rollcage")
_FOLLOWED: Final = 256  # runs of which is known where their end was
_SHA256: Final = re.compile("[0-9a-f]{64}")
_locks: weakref.WeakSet[_FileLock] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: the runs that were locked stay the parent's."""
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_leave_to_parent)


class _FileLock:
    """An OS lock on an open file, until `release` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _locks.add(self)

    def release(self) -> None:
        if self._descriptor >= 0:
            system.files.close(self._descriptor)
            self._descriptor = -1


def _lines_after(data: bytes, lines: int) -> bytes:
    """What follows the first `lines` lines."""
    at = 0
    for _ in range(lines):
        at = data.index(b"\n", at) + 1
    return data[at:] if at else data


def open_locked(path: Path, flags: int = os.O_RDWR) -> int:
    """Open a trace and take its lock; the descriptor.

    Raises:
        RunInUse: somebody else has it.
        RunNotFound: there is no such file.
        StoreError: it can't be opened, or it can't be determined whether somebody else has it.
    """
    try:
        descriptor = disk.open_file(path, flags)
    except FileNotFoundError:
        raise RunNotFound(f"there is no run {path.stem} at {path}") from None
    except OSError as error:
        raise disk.refused(f"{path} can't be opened", error) from error
    try:
        taken = disk.lock(descriptor, wait=False)
    except OSError as error:
        system.files.close(descriptor)
        raise StoreError(f"{path} can't be locked: {disk.describe(error)}") from error
    if not taken:
        system.files.close(descriptor)
        raise RunInUse(f"run {path.stem} is being written or resumed by another session")
    return descriptor


def set_tail_aside(descriptor: int, path: Path) -> bytes:
    """Move a torn last line to a file of its own; the caller has the lock. The trace's bytes.

    Raises:
        StoreError: it can't be read, or the line can't be moved; the trace is as it was.
    """
    try:
        data, torn = split_tail(disk.read(path))
        if torn:
            _log.warning("%s: its last line is torn and is set aside", path)
            disk.add(path.with_suffix(".torn"), torn + b"\n")
            system.files.ftruncate(descriptor, len(data))
    except OSError as error:
        raise StoreError(f"{path} can't be repaired: {disk.describe(error)}") from error
    return data


class TraceFile:
    """Runs to read in one folder: `<run>.jsonl` files, their blobs in `blobs/` there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends: dict[str, tuple[int, int, int]] = {}  # inode, lines, bytes: of what was read
        self._asked: tuple[str | None, Path] = (None, folder)  # the run asked for last, and where

    def _path(self, run: str) -> Path:
        asked = self._asked
        if run != asked[0]:
            if not is_run_id(run):
                raise RunNotFound(f"{run!r} is not a run id")
            self._asked = asked = run, self._folder / f"{run}.jsonl"
        return asked[1]

    def read(self, run: str, *, after: int = 0) -> RunTrace:
        path = self._path(run)
        known = self._ends.get(run) if after else None

        def place(found: os.stat_result) -> int:
            """Where the lines stand after which is read, if they were the last ones once."""
            fits = known is not None and known[:2] == (found.st_ino, after)
            return known[2] if known is not None and fits and known[2] <= found.st_size else 0

        try:
            read, found = disk.read_from(path, place)
        except FileNotFoundError:
            raise RunNotFound(f"there is no run {run} in {self._folder}") from None
        except OSError as error:
            raise StoreError(f"{path} can't be read: {disk.describe(error)}") from error
        data, torn = split_tail(read)
        start = place(found)
        before = after if start else 0
        lines = before + data.count(b"\n")
        if lines < after:
            raise TraceCorrupt(str(path), lines, f"there were {after} lines, {lines} are left")
        self._remember(run, (found.st_ino, lines, start + len(data)))
        return RunTrace(run, str(path), _lines_after(data, after - before), torn, None, after)

    def _remember(self, run: str, end: tuple[int, int, int]) -> None:
        self._ends.pop(run, None)
        self._ends[run] = end
        if len(self._ends) > _FOLLOWED:
            with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread did
                del self._ends[next(iter(self._ends))]

    def stop_order(self, run: str) -> StopOrder | None:
        return read_order(self._path(run).with_suffix(".control"))

    def lock(self, run: str) -> Lock:
        path = self._path(run)
        descriptor = open_locked(path)
        try:
            if disk.end_of(path, 1) != b"\n":
                set_tail_aside(descriptor, path)
        except OSError as error:
            system.files.close(descriptor)
            raise StoreError(f"{path} can't be read: {disk.describe(error)}") from error
        except BaseException:
            system.files.close(descriptor)
            raise
        return _FileLock(descriptor)

    def live(self, run: str) -> bool:
        """Whether somebody writes, resumes or undoes a run now; see `Store`."""
        path = self._path(run)
        try:
            return disk.is_locked(path)
        except FileNotFoundError:
            raise RunNotFound(f"there is no run {run} in {self._folder}") from None
        except OSError as error:
            raise StoreError(f"{path} can't be locked: {disk.describe(error)}") from error

    def get_blob(self, digest: str) -> bytes:
        if _SHA256.fullmatch(digest) is None:
            raise StoreError(f"{digest!r} is not the name of a blob")
        for folder in (self._folder.parent, self._folder):
            path = folder / "blobs" / digest[:2] / digest
            try:
                data = disk.read(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"{path} can't be read: {disk.describe(error)}") from error
            if sha256(data).hexdigest() != digest:
                raise TraceCorrupt(str(path), 1, "a blob that is not what its name says")
            return data
        raise StoreError(f"blob {digest} is missing")


class NamedTrace(TraceFile):
    """One run to read, from a file of any name, or another run of its folder as in `TraceFile`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self._file = path

    def _path(self, run: str) -> Path:
        other = super()._path(run)
        return self._file if run_in(self._file) == run else other


def run_in(path: Path) -> str:
    """The id of the run whose trace a file holds, whatever its name.

    Raises:
        StoreError: it can't be read.
        TraceCorrupt: it is not a trace.
    """
    try:
        data, _ = split_tail(disk.first_line(path))
    except OSError as error:
        raise StoreError(f"{path} can't be read: {disk.describe(error)}") from error
    _, started = next(read_events(data, str(path)))
    return str(started["run"])
