"""Where each job and each run is in an index, as far as this process has read it.

A service asks for a job with each request. What it has read of the index is not read again: only
what was added since, so that a job costs the same among 10 runs and among 10,000.
"""

from __future__ import annotations

import bisect
import heapq
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from rollcage.store import disk, system
from rollcage.store.at_once import AT_ONCE, held, will_wait
from rollcage.store.index_lines import IndexedRun, fields_of, parse

__all__ = ["RunPlaces", "places_of"]

_FEW: Final = 3  # questions that are answered by a look through the file: a short process has few
_INDEXES: Final = 16  # that a process remembers at once
_TAIL: Final = 200  # bytes by which the file is known again
_REPLAYABLE: Final = ("record", "resume")
_places: Final[dict[tuple[system.Files, Path], RunPlaces]] = {}
_guard = threading.Lock()


def _leave_to_parent() -> None:
    """In a forked child: whichever thread had these locks is not here."""
    global _guard  # noqa: PLW0603 - there is one a process
    _guard = threading.Lock()
    _places.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def places_of(path: Path) -> RunPlaces:
    """What this process knows of an index."""
    with _guard:
        key = (system.files, path)
        found = _places.pop(key, None) or RunPlaces(path)
        _places[key] = found
        while len(_places) > _INDEXES:
            del _places[next(iter(_places))]
        return found


class RunPlaces:
    """The places of an index's lines, by job and by run; any number of threads may ask."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._asked = 0
        self._forget()

    def _forget(self) -> None:
        self._file: tuple[Any, ...] = ()  # which one it is, since which start of the machine
        self._size = 0
        self._tail = b""
        self._jobs: dict[tuple[str, str | None], str] = {}  # name and input: the newest run
        self._named: dict[str, dict[str, None]] = {}  # all runs of a name, the newest last
        self._runs: dict[str, tuple[int, ...]] = {}  # where its lines begin
        self._begun: list[str] = []  # all runs, in the order in which they began
        self._order: dict[str, int] = {}  # which of those each is
        self._status: dict[str, str | None] = {}
        self._standing: dict[str | None, list[int]] = {}  # by status: which of those, sorted

    def newest(self, name: str, of: str | None, started: str) -> IndexedRun | None:
        """The lines of the newest run of a job; none where it has none.

        Args:
            name: of the job.
            of: the digest of its input.
            started: which start of the machine this is.

        Raises:
            LookupError: the index is to be looked through instead.
            OSError: it can't be read.
        """
        with held(self._lock), disk.reading(self._path) as index:
            self._read_on(index, started)
            run = self._jobs.get((name, of))
            return None if run is None else self._known(index, run)

    def named(self, name: str, started: str) -> dict[str, IndexedRun]:
        """The lines of all runs of a name, the newest last; raises as `newest` does."""
        with held(self._lock), disk.reading(self._path) as index:
            self._read_on(index, started)
            return {run: self._known(index, run) for run in self._named.get(name, ())}

    def known(self, run: str, started: str) -> IndexedRun:
        """The lines of one run; raises as `newest` does."""
        with held(self._lock), disk.reading(self._path) as index:
            self._read_on(index, started)
            return self._known(index, run)

    def standing(
        self,
        statuses: Iterable[str | None],
        also: Iterable[str],
        started: str,
        take: Callable[[str, IndexedRun], bool],
    ) -> None:
        """Go through runs of these statuses, the newest first, while they are taken.

        Args:
            statuses: as the index says; None for those of which it knows no end.
            also: runs to go through, whatever it says of them.
            started: as in `newest`, as what this raises.
            take: given a run and its lines; False: no more of them.
        """
        with held(self._lock), disk.reading(self._path) as index:
            self._read_on(index, started)
            more = sorted(self._order[run] for run in also if run in self._order)
            parts = [self._standing.get(status, []) for status in statuses]
            at = -1
            for order in heapq.merge(*map(reversed, (more, *parts)), reverse=True):
                run = self._begun[order]
                if order != at and not take(run, self._known(index, run)):
                    return
                at = order

    def _known(self, index: int, run: str) -> IndexedRun:
        lines = b"".join(_line(index, at) for at in self._runs.get(run, ()))
        known, damaged = parse(lines)
        if damaged:
            raise LookupError(run)
        return known.get(run) or IndexedRun()

    def _read_on(self, index: int, started: str) -> None:
        """Read what was added since."""
        self._asked += 1
        if self._asked <= _FEW:
            raise LookupError(self._path)
        found = system.files.fstat(index)
        which = (found.st_dev, found.st_ino, started)
        tail_at = self._size - len(self._tail)
        if (
            which != self._file
            or found.st_size < self._size
            or system.files.pread(index, len(self._tail), tail_at) != self._tail
        ):
            self._forget()
            self._file = which
        if found.st_size - self._size > AT_ONCE:
            will_wait()
        added = b""
        while len(added) < found.st_size - self._size:
            part = system.files.pread(
                index, found.st_size - self._size - len(added), self._size + len(added)
            )
            if not part:
                break
            added += part
        at, end = 0, added.rfind(b"\n") + 1
        while at < end:
            after = added.index(b"\n", at) + 1
            self._take(added[at : after - 1], self._size + at)
            at = after
        self._tail = (self._tail + added[:end])[-_TAIL:]
        self._size += end

    def _take(self, line: bytes, at: int) -> None:
        try:
            fields = fields_of(line)
            run, name = fields["run"], fields.get("name")
            if name is not None:
                self._named.setdefault(name, {})[run] = None
            if name is not None and fields["mode"] in _REPLAYABLE:
                self._jobs[name, fields.get("input")] = run
            self._note_status(run, fields, begins=name is not None)
            self._runs[run] = (*self._runs.get(run, ()), at)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._forget()
            raise LookupError(at) from error

    def _note_status(self, run: str, fields: dict[str, Any], *, begins: bool) -> None:
        if begins and run not in self._order:
            self._order[run] = len(self._begun)
            self._begun.append(run)
            status = self._status.setdefault(run, None)
        elif begins:
            return
        else:
            before, status = self._status.get(run), str(fields["status"])
            self._status[run] = status
            if run not in self._order or before == status:
                return
            standing = self._standing[before]
            del standing[bisect.bisect_left(standing, self._order[run])]
        bisect.insort(self._standing.setdefault(status, []), self._order[run])


def _line(index: int, at: int) -> bytes:
    line = b""
    while b"\n" not in line:
        part = system.files.pread(index, 512, at + len(line))
        if not part:
            return line + b"\n"
        line += part
    return line[: line.index(b"\n") + 1]
