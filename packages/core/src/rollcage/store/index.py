"""The index of the directory store: what its traces tell, kept where it is found at once.

A line for each run that began, and one with the count and head of each that ended::

    {"run": "01…", "name": "job", "mode": "record", "source": null, "time": 1, "input": "cd…"}
    {"run": "01…", "status": "ok", "count": 4, "head": "ab…", "size": 1234}

A run that was pruned has in that one what it was, too: `"pruned": {"time": 1, "by": "ann", "count":
4, "head": "ab…"}`; count, head and size are then of its skeleton, where one was left.

The traces are the truth. A line that is lost or damaged here is made again from them, and where a
trace has another size than is said here, its own lines say how it ended. What can't be made again
is the count and head, which show that a trace was cut: without them its end is attested by nothing
but its own `run.finished` line.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from rollcage.errors import RunNotFound, StoreError, TraceCorrupt, TraceUnwritable
from rollcage.store import disk, stubs, system
from rollcage.store.documents import DocumentFiles
from rollcage.store.index_lines import (
    Known,
    end_of_pruned,
    first_of,
    in_order,
    info_of,
    known_of,
    line_at,
    lines_of,
    lines_with,
    parse,
    start_of,
)
from rollcage.store.jobs import Wanted, newest_run
from rollcage.store.mark import Mark
from rollcage.store.places import places_of
from rollcage.store.protocol import Repair, RunInfo, is_run_id
from rollcage.trace.reader import ended, split_tail, tail_of

__all__ = ["Index", "Known"]

_log: Final = logging.getLogger("rollcage")
_ALL: Final = Wanted()
_ATTESTED: Final = {"count", "pruned"}  # of the line of a run's end, where it is attested
_BYTES: Final = 400  # of the index, about, for the lines of a run


class Index:
    """`index.jsonl`, the folder of traces that it tells of, and what is left of pruned ones."""

    def __init__(self, path: Path, folder: Path, documents: DocumentFiles) -> None:
        self.path = path
        self._folder = folder
        self._documents = documents
        self._mark = Mark(path)  # fits where it was looked through, and nobody else changed it

    # --- reading ---------------------------------------------------------------------------------

    def runs(self, wanted: Wanted = _ALL, limit: int | None = None) -> list[RunInfo]:
        """Runs, in the order in which they began; the newest of them, where there is a limit.

        Raises:
            StoreError: the index, or a trace that it does not know, can't be read.
        """
        if self._mark.fits():
            found = self._newest(wanted, limit)
            if found is not None and self._mark.fits():  # what was read is what is marked
                return found
        known, damaged = parse(self._data())
        if damaged:
            _log.warning(
                "%s: %d of its lines are damaged, and left out for what the traces tell; "
                "`rollcage repair` writes them anew",
                self.path,
                len(damaged),
            )
        return self._chosen(self._whole(known), wanted, limit)

    def _newest(self, wanted: Wanted, limit: int | None) -> list[RunInfo] | None:
        """The same, of the index alone, read from its end; None where a line of it is damaged."""
        size = None if limit is None else _BYTES * (limit + 1)
        while True:
            data, whole = self._end(size)
            lines = data if wanted.source is None else lines_with(data, wanted.source)
            known, damaged = parse(lines)
            if damaged:
                return None
            begun = {run: each for run, each in known.items() if each.started}
            if wanted.source is not None:
                begun = {run: self._known(data, run) for run in begun}
            found = self._chosen(begun, wanted, limit)
            if whole or size is None or len(found) == limit:
                return found
            size *= 4

    def _chosen(self, known: dict[str, Known], wanted: Wanted, limit: int | None) -> list[RunInfo]:
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
        with contextlib.suppress(LookupError, OSError):
            last = places_of(self.path).newest(name, of, self._mark.started)
            if name.isascii() and self._mark.fits():  # asked last: of what was read
                return None if last is None else self._info(last.run, last)
        data, wanted = self._data(), b'"name":' + orjson.dumps(name)
        if not (name.isascii() and self._mark.fits()):  # asked last: of what was read
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

    def known(self, run: str) -> Known:
        """The lines of one run, for `info`."""
        with contextlib.suppress(LookupError, OSError):
            found = places_of(self.path).known(run, self._mark.started)
            if self._mark.fits():
                return found
        return self._known(self._data(), run)

    @staticmethod
    def _known(data: bytes, run: str) -> Known:
        return parse(lines_with(data, run))[0].get(run) or Known()

    def info(self, run: str, found: Known, trace: bytes) -> RunInfo | None:
        """What is known of one run, whose whole lines are `trace`, read behind those here."""
        if found.started is None:
            try:
                found.started = first_of(trace, str(self._trace(run)))
            except TraceCorrupt:
                return None  # whoever reads on is told so
        return None if found.started is None else self._info(run, found, trace)

    def _info(self, run: str, known: Known, trace: bytes | None = None) -> RunInfo:
        end = known.ended or {}
        status = end.get("status")
        if "pruned" in end:
            return info_of(known, status)
        size = self._size(run) if trace is None else len(trace)
        if status is None or end.get("size") != size:
            status = ended(self._read(run) if trace is None else trace) or status
        return info_of(known, status)

    def _whole(
        self, known: dict[str, Known], unreadable: list[str] | None = None
    ) -> dict[str, Known]:
        """All runs, those that the index does not know in their places among the others.

        Where an `unreadable` trace is not listed there, it is an error.
        """
        lost: dict[str, Known] = {}
        traces = self._traces()
        for run in self._documents.keys(stubs.KIND):
            try:
                self._prune(run, known, lost, there=run in traces)
            except StoreError as error:
                if unreadable is None:
                    raise
                unreadable.append(str(error))
        for run in sorted(traces | known.keys()):
            found = known.get(run) or Known()
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
        self, run: str, known: dict[str, Known], lost: dict[str, Known], *, there: bool
    ) -> None:
        """Take a run that was pruned for that, where its lines do not say so, or it has none."""
        if "pruned" in ((known.get(run) or Known()).ended or {}):
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
            raise StoreError(f"{self._folder} can't be read: {disk.said(error)}") from error
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
            raise StoreError(f"{path} can't be read: {disk.said(error)}") from error

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
            raise StoreError(f"{self.path} can't be read: {disk.said(error)}") from error
        whole = not before(found.st_size)
        return data if whole else data[data.find(b"\n") + 1 :], whole

    # --- writing ---------------------------------------------------------------------------------

    def begins(self) -> bytes:
        """A run is about to begin: until that is noted, nobody takes this for all that there is.

        Returns:
            For `began`: by what it is known that nothing else was.
        """
        mark = self._mark.now() if self._mark.fits() else b""
        self._mark.set(b"")
        return mark

    def began(self, started: Mapping[str, Any], mark: bytes, *, durable: bool) -> None:
        """Note a run, by its `run.started`; `durable` waits until that is on the disk."""
        self._append(start_of(started), mark, durable=durable)

    def attest(self, run: str, status: str, end: tuple[int, int, bytes], *, durable: bool) -> None:
        """Note how a run ended, and with how many lines and bytes, and which hash.

        `durable` waits until that is on the disk.
        """
        count, size, head = end
        line = {"run": run, "status": status, "count": count, "head": head.hex(), "size": size}
        self._append(line, durable=durable)

    def prune(self, info: RunInfo, skeleton: bytes, mark: bytes) -> None:
        """Note that a run was pruned, and on the disk; `mark` is what `begins` gave."""
        self._append(end_of_pruned(info, skeleton), mark, durable=True)

    def _append(self, line: dict[str, Any], mark: bytes = b"", *, durable: bool) -> None:
        try:
            with disk.locked(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as index:
                size = system.files.fstat(index).st_size
                whole = mark == self._mark.now() if mark else self._mark.fits()
                if size and system.files.pread(index, 1, size - 1) != b"\n":
                    # Torn by a writer that was killed. What it would have told, its trace tells.
                    system.files.ftruncate(index, len(split_tail(disk.read(self.path))[0]))
                data = orjson.dumps(line) + b"\n"
                disk.write(index, data)
                if durable:
                    system.files.fsync(index)
                after = self._mark.now() if whole else b""
                if whole and system.files.fstat(index).st_size == size + len(data):
                    self._mark.set(after)
        except OSError as error:
            raise TraceUnwritable(f"{self.path} can't be written: {disk.said(error)}") from error

    @property
    def is_whole(self) -> bool:
        """Whether it was looked through, and nobody but its writers changed it since."""
        return self._mark.fits()

    def repair(self, *, thorough: bool = False) -> Repair:
        """Write anew what is lost or damaged, where anything is. The caller has the store's lock.

        Args:
            thorough: look at the end of each run that has none here, too, and note it.

        Raises:
            StoreError: it can't be read, or the first line of a trace can't be read that is lost
                here: nobody can tell whose it is.
            TraceUnwritable: it can't be written.
        """
        mark = self._mark.now()  # first: it is none of what is added behind this
        found, anew = self.look(thorough=thorough)
        if anew is None:
            self._mark.set(mark)
            return found
        try:
            with disk.locked(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND):
                again, anew = self.look(thorough=thorough)  # live runs note their ends meanwhile
                if anew is not None:
                    with contextlib.suppress(FileNotFoundError):  # where there are no runs
                        disk.sync_folder(self._folder)  # none is listed that a power cut takes
                    disk.replace(self.path, anew, part=self.path.with_name("index.jsonl.part"))
                    self._mark.set(self._mark.now())
        except OSError as error:
            raise TraceUnwritable(f"{self.path} can't be written: {disk.said(error)}") from error
        return again

    def look(self, *, thorough: bool) -> tuple[Repair, bytes | None]:
        """What is to be repaired; its lines as they should be, unless they are.

        Args:
            thorough: look at the end of each run.

        Raises:
            StoreError: it can't be read; unless it is looked at thoroughly, a lost trace neither.
        """
        data = self._data()
        known, damaged = parse(data)
        before = {run: dict(each.ended or {}) for run, each in known.items() if each.started}
        unreadable: list[str] = []
        whole = self._whole(known, unreadable if thorough else None)
        for run, each in whole.items():
            if thorough or run not in before:
                self._look_at_end(run, each)
        lost = tuple(run for run in whole if run not in before)
        ends = {run: each.ended or {} for run, each in whole.items()}
        behind = [run for run, end in before.items() if run in ends and ends[run] != end]
        pruned = any("pruned" in ends[run] for run in behind)
        anew = b"".join(line for each in whole.values() for line in lines_of(each))
        unattested = (run for run, end in ends.items() if end and not end.keys() & _ATTESTED)
        repair = Repair(
            runs=len(whole),
            damaged=damaged,
            lost=lost,
            behind=tuple(behind),
            unattested=tuple(unattested),
            unreadable=tuple(unreadable),
        )
        changed = damaged or lost or pruned or (thorough and anew != data)
        return repair, anew if changed else None

    def _look_at_end(self, run: str, known: Known) -> None:
        """Note how a run ended, where its trace says so and its line here does not."""
        size, end = self._size(run), known.ended or {}
        if size is None or "pruned" in end or end.get("size") == size:
            return
        status = ended(self._read(run))
        if status is not None:
            known.ended = {**(known.ended or {"run": run}), "status": status, "size": size}
