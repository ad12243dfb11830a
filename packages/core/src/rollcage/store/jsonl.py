"""The default store: a directory of JSONL files.

::

    .rollcage/
    ├── index.jsonl         what runs there are; a finished one's count and head
    ├── index.mark          by which it is known that nobody else has changed it
    ├── lock                held while a session opens
    ├── orders.bell         grows with each order to stop or pause a run: live runs look then
    ├── registry.jsonl      what became of each tool (see `rollcage_governance.Registry`); its end
    ├── registry.head       is attested here
    ├── key                 of the HMACs that stand for secrets
    ├── runs/<run>.jsonl    one trace each; a live writer holds its OS lock
    ├── runs/<run>.torn     the cut-off last line of a killed writer
    ├── runs/<run>.steps    what was made of a trace, so that it opens faster (see `replay.saved`)
    ├── runs/<run>.control  an order to stop or pause a run; see `control`
    ├── reopened/<run>.json a run that had ended goes on: an undo, say; see `reopened`
    ├── pruned/<run>.json   what is left of a run whose trace was removed
    ├── approvals/<id>.*    requests for approval, their decisions, and what became of those
    └── blobs/ab/<sha256>   large values

All of it is for its owner alone: files 0600, folders 0700.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final

from rollcage.errors import RunNotFound, StoreError, TraceUnwritable
from rollcage.store import disk, reopened, stubs, system
from rollcage.store.control import give_order, lift_order
from rollcage.store.index_lines import STARTED
from rollcage.store.jobs import Wanted, store_option
from rollcage.store.jsonl_documents import JsonlDocuments
from rollcage.store.leftovers import left_in, remove_left
from rollcage.store.pausing import not_pausable
from rollcage.store.protocol import (
    Lock,
    OrderKind,
    Repair,
    RunInfo,
    RunTrace,
    StopOrder,
    check_order,
    is_run_id,
)
from rollcage.store.stopping import order_above
from rollcage.store.tracefile import NamedTrace, TraceFile, open_locked, run_in, set_tail_aside
from rollcage.store.writer import JsonlWriter

__all__ = ["JsonlStore", "open_trace"]

_log: Final = logging.getLogger("rollcage")


class JsonlStore(JsonlDocuments):
    """A directory of JSONL files (the layout is in the module's docstring).

    Raises:
        StoreError: the directory can't be made or written.
    """

    waits = False

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        self._make()
        path = self._at / "lock"
        try:
            descriptor = disk.open_file(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise disk.refused(f"the store {self.root} can't be written", error) from error
        try:
            try:
                disk.lock(descriptor)
            except OSError as error:
                raise StoreError(f"{path} can't be locked: {disk.describe(error)}") from error
            yield
        finally:
            system.files.close(descriptor)

    @contextlib.contextmanager
    def opening(self) -> Generator[None]:
        with self._locked():
            self._mend()
            yield

    # --- the index -------------------------------------------------------------------------------

    def info(self, run: str) -> RunInfo:
        if not disk.exists(self._path(run)):
            pruned = self._pruned(run)
            if pruned is None:
                raise RunNotFound(f"there is no run {run} in {self._folder}")
            return pruned
        return self._index.find(run)

    def runs(
        self,
        *,
        name: str | None = None,
        status: str | None = None,
        source: str | None = None,
        since: int | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        wanted = Wanted(name=name, status=status, source=source, since=since, before=before)
        return self._index.runs(wanted, limit)

    def newest(self, name: str, of: str | None) -> RunInfo | None:
        return self._index.newest(name, of)

    def read(self, run: str, *, after: int = 0) -> RunTrace:
        self._path(run)  # refuses what is not a run's id
        where = f"{self._shown}/{run}.jsonl"
        known = self._index.known(run)  # first: what is counted there, the trace has by then
        try:
            trace = super().read(run, after=after)
        except RunNotFound:
            self._check_pruned(run)
            raise
        if after:
            return dataclasses.replace(trace, where=where)
        info = self._index.info(run, known, trace.data)
        return dataclasses.replace(trace, where=where, info=info)

    def _mend(self) -> None:
        """Write the index anew where it is damaged or lost: it is derived, and stops nobody."""
        if self._index.is_whole:
            return
        try:
            found = self._index.repair()
        except TraceUnwritable as error:
            _log.warning("%s; what is missing there is looked up in the traces", error)
            return
        if found.damaged or found.lost:
            _log.warning(
                "%s was damaged, and is made again from the traces: %d lines were none, %d of %d "
                "runs were missing",
                self._index.path,
                len(found.damaged),
                len(found.lost),
                found.runs,
            )

    def repair(self) -> Repair:
        """Make the index again from the traces, and remove what killed processes left.

        Raises:
            StoreError: it can't be read, or the store can't be written.
            TraceUnwritable: the index can't be written.
        """
        with self._locked():
            found, left = self._index.repair(thorough=True), left_in(self._folder)
            found = self._with(found, left)
            remove_left(left)
            for run in found.stubs:
                self._documents.replace(stubs.KIND, run, stubs.stub_of(self._index.find(run)))
        return found

    def check(self) -> Repair:
        return self._with(self._index.look(thorough=True)[0], left_in(self._folder))

    def _with(self, found: Repair, left: Sequence[Path]) -> Repair:
        names = (str(path.relative_to(self._at)) for path in left)
        keyed = any(info.input is not None for info in self.runs())
        wrong = (*found.unreadable, *self._key.wrong(keyed=keyed))
        return dataclasses.replace(
            found, left=tuple(names), unreadable=wrong, stubs=tuple(self._damaged_stubs())
        )

    def _damaged_stubs(self) -> list[str]:
        """Those of runs that the index knows as pruned: it has all that they held."""
        return [
            run
            for run in self._documents.keys(stubs.KIND)
            if stubs.is_damaged(self._documents.get(stubs.KIND, run) or b"")
            and self._index.is_pruned(run)
        ]

    # --- writing ---------------------------------------------------------------------------------

    def create(self, started: dict[str, Any], order: StopOrder | None = None) -> JsonlWriter:
        self._make()
        alone = self._index.begins()
        path = self._path(started["run"])
        descriptor = open_locked(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        try:
            writer = JsonlWriter(path, self._index, self._bell, descriptor)
        except BaseException:
            disk.remove(path)
            raise
        writer.durable = started.get("durability") == "disk"
        try:
            writer.append(started)
            if writer.durable:
                if started.get("source"):
                    self._index.keep([started["source"]])
                writer.sync()
                for each in (path, self._folder, self._at):  # whoever made the folders just now
                    disk.keep_name(each)
        except BaseException:
            writer.close()
            disk.remove(path)  # nothing has run in it
            raise
        try:
            self._index.began(started, alone=alone, durable=writer.durable)
            if order is not None:
                give_order(path.with_suffix(".control"), order, self._bell)
        except BaseException:
            writer.close()  # the trace stays: the index may name it, and would name what is gone
            raise
        return writer

    def reopen(self, run: str) -> JsonlWriter:
        path = self._path(run)
        self._check_pruned(run)
        descriptor = open_locked(path, os.O_RDWR | os.O_APPEND)
        try:
            data = set_tail_aside(descriptor, path)
            if self._index.known(run).ended is not None:
                self._documents.put_once(reopened.KIND, run, b"")
        except BaseException:
            system.files.close(descriptor)
            raise
        return JsonlWriter(path, self._index, self._bell, descriptor, data, reopened=True)

    def lock(self, run: str) -> Lock:
        self._path(run)  # refuses what is not a run's id
        self._check_pruned(run)
        return super().lock(run)

    # --- stopping and pausing --------------------------------------------------------------------

    def stop(self, order: StopOrder) -> None:
        check_order(order)
        path = self._path(order.run)
        self._check_pruned(order.run)
        if not disk.exists(path):
            raise RunNotFound(f"there is no run {order.run} in {self._folder}")
        page = path.with_suffix(".control")
        if not give_order(page, order, self._bell):  # first: who opens now, sees it
            raise not_pausable(order.run, self.stop_order(order.run), store_option(self))
        with self.opening():
            for run in self._built_on(order.run):
                with contextlib.suppress(RunNotFound):  # somebody removed its trace
                    if self.live(run):  # what is dead sees it where it is resumed
                        give_order(self._path(run).with_suffix(".control"), order, self._bell)

    def lift(self, run: str, kind: OrderKind | None = None) -> bool:
        path = self._path(run)
        self._check_pruned(run)
        if not disk.exists(path):
            raise RunNotFound(f"there is no run {run} in {self._folder}")
        lifted = self._lift(run, run, kind)
        with self.opening():
            for other in self._built_on(run):
                self._lift(other, run, kind)
        return lifted

    def _lift(self, run: str, of: str, kind: OrderKind | None) -> bool:
        """Lift the order of a run from this one; what holds by another one it builds on, stays."""
        page = self._path(run).with_suffix(".control")
        return lift_order(page, of, self._bell, kind, functools.partial(order_above, self, run))

    def _built_on(self, run: str) -> list[str]:
        """The runs that resume this one, transitively."""
        found = [run]
        for each in found:
            later = self.runs(source=each)
            found += [i.run for i in later if i.mode == "resume" and i.run not in found]
        return found[1:]

    # --- copying and pruning ---------------------------------------------------------------------

    def restore(self, trace: RunTrace) -> bool:
        info, path = trace.info, self._path(trace.run)
        assert info is not None
        with self.opening():
            here = self.info(trace.run) if self._has(trace.run) else None
            if here is not None and (here.pruned or info.pruned):
                return False
            with contextlib.ExitStack() as locked:
                data: bytes | None = trace.data
                if here is not None:
                    locked.callback(system.files.close, open_locked(path))
                    data = stubs.goes_on(trace, disk.read(path), self.url)
                unattested = info.count is not None and (here is None or here.count is None)
                if data is None and not unattested:
                    return False
                self._restore(trace, info, new=here is None, longer=data is not None)
        return True

    def _restore(self, trace: RunTrace, info: RunInfo, *, new: bool, longer: bool) -> None:
        """Put a trace in its place, whole, and note it; until then nobody trusts the index."""
        path, alone = self._path(trace.run), self._index.begins()
        try:
            if info.pruned is not None:
                self._documents.put_once(stubs.KIND, trace.run, stubs.stub_of(info))
            if trace.data and longer:
                disk.replace(path, trace.data, part=disk.new_name(path))
        except OSError as error:
            raise TraceUnwritable(f"{path} can't be written: {disk.describe(error)}") from error
        if new:
            started = {name: getattr(info, name) for name in STARTED}
            given = {} if info.input is None else {"input": {"digest": info.input}}
            self._index.began(started | given, alone=alone, durable=True)
        if info.pruned is not None:
            self._index.prune(info, trace.data, alone=alone)
        elif info.status is not None and info.count is not None and info.head is not None:
            size = len(b"".join(trace.data.splitlines(keepends=True)[: info.count]))
            end = (info.count, size, bytes.fromhex(info.head))
            if size != len(trace.data):
                self._documents.put_once(reopened.KIND, trace.run, b"")
            self._index.attest(trace.run, info.status, end, alone=alone, durable=True)

    def prune(self, run: str, *, by: str, time: int, skeleton: bytes = b"") -> None:
        path = self._path(run)
        with self.opening():
            info = self.info(run)
            if info.pruned is not None:
                return
            left = self._pruned(run)  # it goes on with that
            if left is None:
                left = stubs.pruned_of(info, by, time)
                stubs.check_unneeded(run, self.runs(source=run))
            descriptor = open_locked(path)
            try:
                alone = self._index.begins()
                self._documents.put_once(stubs.KIND, run, stubs.stub_of(left))
                if skeleton:
                    disk.replace(path, skeleton, part=disk.new_name(path))
                for suffix in (".torn", ".control", ".steps", *([] if skeleton else [".jsonl"])):
                    disk.remove(path.with_suffix(suffix))
                disk.sync(self._folder)
                self._index.prune(left, skeleton, alone=alone)
            except OSError as error:
                raise StoreError(f"{path} can't be removed: {disk.describe(error)}") from error
            finally:
                system.files.close(descriptor)

    def _has(self, run: str) -> bool:
        return disk.exists(self._path(run)) or self._pruned(run) is not None

    def _pruned(self, run: str) -> RunInfo | None:
        """What is left of a run that was pruned, if it was."""
        stub = self._documents.get(stubs.KIND, run)
        where = f"{self.root}/{stubs.KIND}/{run}.json"
        if stub is None:
            return None
        if stubs.is_damaged(stub) and self._index.is_pruned(run):
            return self._index.find(run)
        return stubs.info_in(stub, where)

    def _check_pruned(self, run: str) -> None:
        """Raises RunPruned."""
        info = self._pruned(run)
        if info is not None:
            raise stubs.gone(info)


def open_trace(path: Path) -> tuple[TraceFile, str]:
    """A trace file by its path: where it is read from, and the id of its run.

    One that is not named `<run id>.jsonl` says in its first line which run it is.

    Raises:
        RunNotFound: there is no such file.
        StoreError: it can't be read.
        TraceCorrupt: it is not a trace.
    """
    if not disk.is_file(path):
        raise RunNotFound(f"there is no trace at {path}")
    if not (path.suffix == ".jsonl" and is_run_id(path.stem)):
        return NamedTrace(path), run_in(path)
    root = path.parent.parent
    folder = JsonlStore(root) if path.parent.name == "runs" else TraceFile(path.parent)
    return folder, path.stem
