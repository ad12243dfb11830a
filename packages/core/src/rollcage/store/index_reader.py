"""What the directory store's index is asked: which runs there are, and which is a job's newest.

What it has lost is in the traces; see `store.index`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, TypeVar

import orjson

from rollcage.errors import RunNotFound, StoreError, TraceCorrupt
from rollcage.store import disk, reopened, stubs, system
from rollcage.store.at_once import will_wait
from rollcage.store.documents import DocumentFiles
from rollcage.store.index_lines import (
    IndexedRun,
    end_of_pruned,
    first_of,
    in_order,
    info_of,
    known_of,
    line_at,
    lines_with,
    parse,
)
from rollcage.store.jobs import Wanted, newest_run
from rollcage.store.mark import Mark
from rollcage.store.places import places_of
from rollcage.store.protocol import RunInfo, is_run_id
from rollcage.trace.reader import ended, split_tail, tail_of

__all__ = ["IndexReader"]

T = TypeVar("T")

_log: Final = logging.getLogger("rollcage")
_ALL: Final = Wanted()
_BYTES: Final = 400  # of the index, about, for the lines of a run
_LOOKS: Final = 20  # at a mark that is suspended: whoever did so may be dead
_MOMENT: Final = 0.0005  # seconds between two of them


class IndexReader:
    """The index to read, the folder of its traces, and what is left of pruned runs."""

    def __init__(self, path: Path, folder: Path, documents: DocumentFiles) -> None:
        self.path = path
        self._folder = folder
        self._documents = documents
        self._mark = Mark(path)  # fits where it was looked through, and nobody else changed it

    def runs(self, wanted: Wanted = _ALL, limit: int | None = None) -> list[RunInfo]:
        """Runs, in the order in which they began; the newest of them, where there is a limit.

        Raises:
            StoreError: the index, or a trace that it does not know, can't be read.
        """
        name, status = wanted.name, wanted.status
        if name is not None and name.isascii():
            named = self._as_marked(lambda: places_of(self.path).named(name, self._mark.started))
            if named is not None:
                return self._chosen(named, wanted, limit)
        if status is not None:
            standing = self._as_marked(lambda: self._standing(wanted, status, limit))
            if standing is not None:
                return standing
        if self._is_settled():
            found = self._as_marked(lambda: self._newest(wanted, limit))
            if found is not None:
                return found
        known, damaged = parse(self._data())
        if damaged:
            _log.warning(
                "%s: %d of its lines are damaged, and replaced by what the traces hold; "
                "`rollcage repair` writes them anew",
                self.path,
                len(damaged),
            )
        return self._chosen(self._whole(known), wanted, limit)

    def _is_settled(self) -> bool:
        """Whether it is as it was marked, now that whoever was writing it is done.

        Else each who looks while others begin and end their runs would look through all of it.
        """
        return self._mark.fits() or self._as_marked(lambda: True) is not None

    def _as_marked(self, look: Callable[[], T | None]) -> T | None:
        """What a look at a part of the index gives; None where it is to be looked through instead.

        It raises `LookupError` where that part is damaged.
        """
        found: T | None = None
        for is_last in (False, True):
            with self._writers_done() if is_last else contextlib.nullcontext():
                with contextlib.suppress(LookupError, OSError):
                    found = look()
                if self._mark.fits():  # asked last: of what was read
                    return found
        return None

    @contextlib.contextmanager
    def _writers_done(self) -> Generator[None]:
        """In here, nobody writes it: a line and its mark are written under its lock."""
        with contextlib.ExitStack() as locked:
            with contextlib.suppress(OSError):
                for _ in range(_LOOKS):
                    locked.enter_context(disk.locked(self.path, os.O_RDONLY))
                    marked = self._mark.read()
                    if marked is None or not marked.suspended:
                        break
                    will_wait()  # until the run is noted that somebody begins
                    locked.close()
                    time.sleep(_MOMENT)  # whoever begins it has no lock to be waited for here
            yield

    def _standing(self, wanted: Wanted, status: str, limit: int | None) -> list[RunInfo]:
        """The same, of those that may have this status; raises as `RunPlaces.newest` does.

        A trace may go farther than is known of it here, of a run that has no end, or that was
        opened again.
        """
        found: list[RunInfo] = []

        def take(run: str, known: IndexedRun) -> bool:
            found.extend(self._chosen({run: known}, wanted, None))
            return len(found) != limit

        if limit != 0:
            statuses = {None, None if status == "unfinished" else status}
            again = self._documents.keys(reopened.KIND)
            places_of(self.path).standing(statuses, again, self._mark.started, take)
        return found[::-1]

    def _newest(self, wanted: Wanted, limit: int | None) -> list[RunInfo] | None:
        """The same, of the index alone, read from its end; None where a line of it is damaged."""
        size = None if limit is None or wanted.source else _BYTES * (limit + 1)
        while True:
            data, whole = self._end(size)
            if wanted.source and not self._mark.fits(zlib.crc32(data)):
                return None  # a line that names it may be among the damaged ones
            known, damaged = parse(lines_with(data, wanted.source) if wanted.source else data)
            if damaged:
                return None
            begun = {run: each for run, each in known.items() if each.started}
            if wanted.source:
                begun = {run: self._known(data, run) for run in begun}
            found = self._chosen(begun, wanted, limit)
            if whole or size is None or len(found) == limit:
                return found
            size *= 4

    def _chosen(
        self, known: dict[str, IndexedRun], wanted: Wanted, limit: int | None
    ) -> list[RunInfo]:
        """The newest of these that are wanted, in the order in which they began."""
        found: list[RunInfo] = []
        for run in reversed(known):
            if len(found) == limit:
                break
            start = known[run].started or {}
            if wanted.begun(start["name"], start["source"], start["time"]):
                info = self._info(run, known[run])
                if wanted.ended(info.status):
                    found.append(info)
        return found[::-1]

    def newest(self, name: str, of: str | None) -> RunInfo | None:
        """The newest run of a job, as `newest_run` finds it; without a look at the others.

        No run stands before one that it builds on, so that the last of a job is a leaf.
        """
        if name.isascii():
            places, started = places_of(self.path), self._mark.started
            found = self._as_marked(lambda: [places.newest(name, of, started)])
            if found is not None:
                (last,) = found
                return None if last is None else self._info(last.run, last)
        data, wanted = self._data(), b'"name":' + orjson.dumps(name)
        if not (name.isascii() and self._mark.fits(zlib.crc32(data))):
            return newest_run(self.runs(), name, of)
        at = len(data)
        while (at := data.rfind(wanted, 0, at)) >= 0:
            for run, known in parse(line_at(data, at))[0].items():
                start = known.started or {}
                own = start.get("name") == name and start.get("input") == of
                if own and start["mode"] in ("record", "resume"):
                    return self._info(run, self._known(data, run))
        return None

    def find(self, run: str) -> RunInfo:
        """What is known of one run, whose trace is there.

        Raises:
            StoreError: the index can't be read, or it has lost the run and so has the trace.
        """
        found = self.known(run)
        if found.started is None:
            found.started = first_of(self._read(run, first=True), str(self._trace(run)))
        if found.started is None:
            raise RunNotFound(f"run {run} in {self._folder} never began: its trace is empty")
        return self._info(run, found)

    def known(self, run: str) -> IndexedRun:
        """The lines of one run, for `info`."""
        found = self._as_marked(lambda: places_of(self.path).known(run, self._mark.started))
        return self._known(self._data(), run) if found is None else found

    def is_pruned(self, run: str) -> bool:
        """Whether the lines of a run say that it was pruned."""
        found = self.known(run)
        return found.started is not None and "pruned" in (found.ended or {})

    @staticmethod
    def _known(data: bytes, run: str) -> IndexedRun:
        return parse(lines_with(data, run))[0].get(run) or IndexedRun()

    def info(self, run: str, found: IndexedRun, trace: bytes) -> RunInfo | None:
        """What is known of one run, whose whole lines are `trace`, read after those here."""
        if found.started is None:
            try:
                found.started = first_of(trace, str(self._trace(run)))
            except TraceCorrupt:
                return None  # whoever reads on gets that error
        return None if found.started is None else self._info(run, found, trace)

    def _info(self, run: str, known: IndexedRun, trace: bytes | None = None) -> RunInfo:
        end = known.ended or {}
        status = end.get("status")
        if "pruned" in end:
            return info_of(known, status)
        size = self._size(run) if trace is None else len(trace)
        if status is None or end.get("size") != size:
            status = ended(self._read(run) if trace is None else trace) or status
        return info_of(known, status)

    def _whole(
        self, known: dict[str, IndexedRun], unreadable: list[str] | None = None
    ) -> dict[str, IndexedRun]:
        """All runs, those that the index does not know in their places among the others.

        Where an `unreadable` trace is not listed there, it is an error.
        """
        lost: dict[str, IndexedRun] = {}
        traces = self._traces()
        for run in self._documents.keys(stubs.KIND):
            try:
                self._prune(run, known, lost, there=run in traces)
            except StoreError as error:
                if unreadable is None:
                    raise
                unreadable.append(str(error))
        for run in sorted(traces | known.keys()):
            found = known.get(run) or IndexedRun()
            if found.started is not None:
                continue
            try:
                found.started = first_of(self._read(run, first=True), str(self._trace(run)))
            except StoreError as error:
                if unreadable is None:
                    raise
                unreadable.append(str(error))
            if found.started is not None:
                lost[run] = found
        whole = {run: each for run, each in known.items() if each.started and run not in lost}
        return in_order(whole, lost) if lost else whole

    def _prune(
        self, run: str, known: dict[str, IndexedRun], lost: dict[str, IndexedRun], *, there: bool
    ) -> None:
        """Take a run that was pruned for that, where its lines do not say so, or it has none."""
        listed = known.get(run) or IndexedRun()
        if listed.started is not None and "pruned" in (listed.ended or {}):
            return
        stub = self._documents.get(stubs.KIND, run) or b""
        info = stubs.info_in(stub, f"{self._folder.parent}/{stubs.KIND}/{run}.json")
        assert info.pruned is not None
        trace = self._read(run) if there else b""
        if tail_of(trace).head.hex() == info.pruned.head:
            return  # whoever pruned it was killed before it was removed
        found = known.get(run)
        if found is None or found.started is None:
            found = lost[run] = known_of(info)
        found.ended = end_of_pruned(info, trace)

    def _traces(self) -> set[str]:
        try:
            names = system.files.listdir(self._folder)
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise StoreError(f"{self._folder} can't be read: {disk.describe(error)}") from error
        found = {name[:-6] for name in names if name.endswith(".jsonl")}
        return {run for run in found if is_run_id(run)}

    def _trace(self, run: str) -> Path:
        return self._folder / f"{run}.jsonl"

    def _size(self, run: str) -> int | None:
        try:
            return system.files.stat(f"{self._folder}/{run}.jsonl").st_size
        except OSError:
            return None  # it is gone: what is known here is all

    def _read(self, run: str, *, first: bool = False) -> bytes:
        """A trace's whole lines, or its first; nothing where it is not there."""
        path = self._trace(run)
        try:
            return split_tail(disk.first_line(path) if first else disk.read(path))[0]
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreError(f"{path} can't be read: {disk.describe(error)}") from error

    def _data(self) -> bytes:
        return self._end(None)[0]

    def _end(self, size: int | None) -> tuple[bytes, bool]:
        """The last lines, in about so many bytes, or all of them; whether they are all."""

        def before(all_of_it: int) -> int:
            return 0 if size is None else max(all_of_it - size, 0)

        try:
            data, found = disk.read_from(self.path, lambda found: before(found.st_size))
        except FileNotFoundError:
            return b"", True
        except OSError as error:
            raise StoreError(f"{self.path} can't be read: {disk.describe(error)}") from error
        whole = not before(found.st_size)
        return data if whole else data[data.find(b"\n") + 1 :], whole
