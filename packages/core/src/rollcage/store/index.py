"""The index of the directory store: what its traces hold, kept where it is found at once.

A line for each run that began, and one with the count and head of each that ended::

    {"run": "01…", "name": "job", "mode": "record", "source": null, "time": 1, …, "check": "01…"}
    {"run": "01…", "status": "ok", "count": 4, "head": "ab…", "size": 1234, "check": "23…"}

The first has the digest of the run's `input`, too, where it was given one. A run that was pruned
has in the second what it was: `"pruned": {"time": 1, "by": "ann", "count": 4, "head": "ab…"}`;
count, head and size are then of its skeleton, where one was left.

The traces are the truth. A line that is lost here, or that its check shows to be damaged, is made
again from them, and where a trace has another size than is noted here, its own lines show how it
ended. What can't be made again is the count and head, which show that a trace was cut: without them
its end is attested by nothing but its own `run.finished` line.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rollcage.errors import StoreError, TraceUnwritable
from rollcage.store import disk, reopened, system
from rollcage.store.index_lines import (
    IndexedRun,
    end_of_pruned,
    line_of,
    lines_of,
    parse,
    start_of,
    unchecked,
)
from rollcage.store.index_reader import IndexReader
from rollcage.store.mark import Marked
from rollcage.store.protocol import Repair, RunInfo
from rollcage.trace.reader import ended, split_tail

__all__ = ["Index"]

_ATTESTED: Final = {"count", "pruned"}  # of the line of a run's end, where it is attested


class Index(IndexReader):
    """`index.jsonl`, to read and to write."""

    def begins(self) -> bool:
        """A run is about to begin: until that is noted, nobody takes this for all that there is.

        Returns:
            For `began`: whether this is all that there is, but for that run.

        Raises:
            TraceUnwritable: it can't be written.
        """
        try:
            with disk.locked(self.path, os.O_RDWR):
                marked = self._mark.read()
                if marked is None or marked.suspended:
                    return False
                self._mark.set(marked._replace(suspended=True))
                return True
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unwritable(error) from error

    def began(self, started: Mapping[str, Any], *, alone: bool, durable: bool) -> None:
        """Note a run, by its `run.started`.

        Args:
            started: that.
            alone: what `begins` gave.
            durable: wait until it is on the disk.
        """
        self._append(start_of(started), alone=alone, durable=durable)

    def attest(
        self,
        run: str,
        status: str,
        end: tuple[int, int, bytes],
        *,
        alone: bool = False,
        durable: bool,
    ) -> None:
        """Note how a run ended, and with how many lines and bytes, and which hash.

        `alone` and `durable` are as in `began`.
        """
        count, size, head = end
        line = {"run": run, "status": status, "count": count, "head": head.hex(), "size": size}
        self._append(line, alone=alone, durable=durable)

    def ends_again(self, run: str) -> None:
        """The end of a run that was opened again is noted anew."""
        with contextlib.suppress(StoreError):  # what stays costs a look, and nothing else
            self._documents.drop(reopened.KIND, run)

    def prune(self, info: RunInfo, skeleton: bytes, *, alone: bool) -> None:
        """Note that a run was pruned, and on the disk; `alone` is as in `began`."""
        self._append(end_of_pruned(info, skeleton), alone=alone, durable=True)

    def _append(self, fields: dict[str, Any], *, alone: bool = False, durable: bool) -> None:
        try:
            with disk.locked(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as index:
                size = system.files.fstat(index).st_size
                marked = self._mark.read()
                if size and system.files.pread(index, 1, size - 1) != b"\n":
                    # Torn by a writer that was killed. What it would have held, its trace holds.
                    system.files.ftruncate(index, len(split_tail(disk.read(self.path))[0]))
                line = line_of(fields)
                disk.write(index, line)
                if durable:
                    system.files.fsync(index)
                now = self._mark.now()
                if marked is not None and system.files.fstat(index).st_size == size + len(line):
                    check = zlib.crc32(line, marked.check)
                    self._mark.set(Marked(marked.suspended and not alone, check, now))
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> TraceUnwritable:
        return TraceUnwritable(f"{self.path} can't be written: {disk.describe(error)}")

    @property
    def is_whole(self) -> bool:
        """Whether it was looked through, and nobody but its writers changed it since."""
        return self._is_settled()

    def repair(self, *, thorough: bool = False) -> Repair:
        """Write anew what is lost or damaged, where anything is. The caller has the store's lock.

        Args:
            thorough: look at the end of each run that has none here, too, and note it.

        Raises:
            StoreError: it can't be read, or the first line of a trace can't be read that is lost
                here: it is unknown whose it is.
            TraceUnwritable: it can't be written.
        """
        now = self._mark.now()  # first: what somebody else changes from here on voids the mark
        found, anew = self.look(thorough=thorough)
        try:
            with disk.locked(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND):
                if anew is not None or self._mark.now() != now:
                    # Live runs note their ends meanwhile: from now on, they wait.
                    now = self._mark.now()
                    found, anew = self.look(thorough=thorough)
                if anew is not None:
                    self.keep(found.lost)
                    disk.replace(self.path, anew, part=self.path.with_name("index.jsonl.part"))
                    now = self._mark.now(len(anew))
                data = self._data() if anew is None else anew
                self._mark.set(Marked(False, zlib.crc32(data), now))
        except OSError as error:
            raise self._unwritable(error) from error
        return found

    def keep(self, runs: Iterable[str]) -> None:
        """Wait until these are on the disk, with their names: whoever wrote them may be dead.

        Else the index would list, and a run would build on, what a power cut takes.

        Raises:
            TraceUnwritable: the disk fails to write them.
        """
        for path in (*map(self._trace, runs), self._folder):
            try:
                disk.sync(path)
            except (FileNotFoundError, PermissionError):
                continue  # it was pruned, or there are no runs; or it may not be listed
            except OSError as error:
                raise TraceUnwritable(f"{path} can't be written: {disk.describe(error)}") from error

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
        outdated = [run for run, end in before.items() if run in ends and ends[run] != end]
        pruned = any("pruned" in ends[run] for run in outdated)
        anew = b"".join(line for each in whole.values() for line in lines_of(each))
        unattested = (run for run, end in ends.items() if end and not end.keys() & _ATTESTED)
        repair = Repair(
            runs=len(whole),
            damaged=damaged,
            lost=lost,
            outdated=tuple(outdated),
            unattested=tuple(unattested),
            unreadable=tuple(unreadable),
        )
        changed = damaged or lost or pruned or unchecked(data) or (thorough and anew != data)
        return repair, anew if changed else None

    def _look_at_end(self, run: str, known: IndexedRun) -> None:
        """Note how a run ended, where its trace says so and its line here does not."""
        size, end = self._size(run), known.ended or {}
        if size is None or "pruned" in end or end.get("size") == size:
            return
        status = ended(self._read(run))
        if status is not None:
            known.ended = {**(known.ended or {"run": run}), "status": status, "size": size}
