"""The default store: a directory of JSONL files.

::

    .rollcage/
    ├── index.jsonl         what runs there are; a finished one's count and head
    ├── lock                held while a session opens
    ├── registry.jsonl      what became of each tool (see `rollcage.Registry`); its end
    ├── registry.head       is attested here
    ├── key                 of the HMACs that stand for secrets (mode 0600)
    ├── runs/<run>.jsonl    one trace each; a live writer holds its OS lock
    ├── runs/<run>.torn     the cut-off last line of a killed writer
    ├── runs/<run>.control  by which a run is stopped, while it is live or told so
    ├── approvals/<id>.*    requests for approval, their decisions, and what became of those
    └── blobs/ab/<sha256>   large values
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import threading
import weakref
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson

from rollcage.errors import (
    Forked,
    RunInUse,
    RunNotFound,
    StoreError,
    TraceCorrupt,
    TraceUnwritable,
)
from rollcage.store.approvals import ApprovalFiles
from rollcage.store.chained import ChainedFile
from rollcage.store.control import ControlPage, give_order, lift_order, read_order
from rollcage.store.protocol import Lock, RunInfo, RunTrace, StopOrder, is_run_id
from rollcage.trace.events import seal_line
from rollcage.trace.reader import read_events, split_tail, tail_of

__all__ = ["JsonlStore", "TraceFile"]

_log = logging.getLogger("rollcage")
_SHA256: Final = re.compile("[0-9a-f]{64}")
_writers: weakref.WeakSet[JsonlWriter] = weakref.WeakSet()
_locks: weakref.WeakSet[_FileLock] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: the run stays the parent's, and its OS lock too."""
    for writer in list(_writers):
        writer.abandon()
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
            os.close(self._descriptor)
            self._descriptor = -1


def _lock_file(path: Path, run: str, flags: int = os.O_RDWR) -> int:
    """Open a trace and take its lock; the descriptor."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        raise RunNotFound(f"there is no run {run} at {path}") from None
    except OSError as error:
        raise StoreError(f"{path} can't be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise RunInUse(f"run {run} is being written or resumed by somebody else") from None
    return descriptor


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _set_tail_aside(descriptor: int, path: Path) -> bytes:
    """Move a torn last line to a file of its own; the caller has the lock. The trace's bytes."""
    data, torn = split_tail(path.read_bytes())
    if torn:
        _log.warning("%s: its last line is torn and is set aside", path)
        with path.with_suffix(".torn").open("ab") as aside:
            aside.write(torn + b"\n")
        os.ftruncate(descriptor, len(data))
    return data


class JsonlWriter:
    """Appends to one trace, whose OS lock it holds."""

    def __init__(self, store: JsonlStore, run: str, descriptor: int, data: bytes) -> None:
        self.run = run
        self.forked = False
        self.durable = False  # whether the index waits for the disk, too
        self._store = store
        self._descriptor = descriptor
        try:
            self._control = store.control_page(run)
        except BaseException:
            os.close(descriptor)
            raise
        tail = tail_of(data)
        # Lines, bytes and head; set in one go, for Ctrl-C may come between any two instructions.
        self._end = self._next = (tail.lines, tail.size, tail.head)
        self._synced = 0
        self._sync_lock = threading.Lock()
        _writers.add(self)

    def append(self, event: dict[str, Any]) -> None:
        if self._next is not self._end:
            self._recover()
        count, size, head = self._end
        line, head = seal_line(event, head)
        self._next = (count + 1, size + len(line), head)
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            self._take_back()
            raise self._unwritable(error.strerror) from error
        if written != len(line):
            self._take_back()
            raise self._unwritable("a short write")
        self._end = self._next

    def _recover(self) -> None:
        """The last append was interrupted, or not taken back: see whether it got through."""
        try:
            if os.fstat(self._descriptor).st_size == self._next[1]:
                self._end = self._next
            else:
                os.ftruncate(self._descriptor, self._end[1])
        except OSError as error:
            raise self._unwritable(error.strerror) from error
        self._next = self._end

    def _take_back(self) -> None:
        with contextlib.suppress(OSError):  # the torn line is then set aside at the next open
            os.ftruncate(self._descriptor, self._end[1])
            self._next = self._end

    def _unwritable(self, reason: str | None) -> Exception:
        if self.forked:
            return Forked(f"run {self.run} belongs to the parent process; open a session here")
        return TraceUnwritable(f"the trace of run {self.run} can't be written: {reason}")

    def sync(self) -> None:
        target = self._end[1]
        with self._sync_lock:
            if self._synced < target:  # else somebody waited for these bytes too
                reached = self._end[1]
                try:
                    os.fdatasync(self._descriptor)
                except OSError as error:
                    raise self._unwritable(error.strerror) from error
                self._synced = reached

    def stop_order(self) -> StopOrder | None:
        return self._control.order()

    def attest(self, status: str) -> None:
        if self._next is not self._end:
            self._recover()
        count, _, head = self._end
        line = {"run": self.run, "status": status, "count": count, "head": head.hex()}
        self._store.note(line, durable=self.durable)

    def close(self) -> None:
        _writers.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._control.close(keep=self.forked)  # while nobody else can write the run
            with contextlib.suppress(OSError):  # each line is written already
                os.close(descriptor)

    def abandon(self) -> None:
        """In a forked child: close the descriptor, so that the lock ends with the parent."""
        self.forked = True
        self.close()


class TraceFile:
    """Runs to read beside one another: `<run>.jsonl` files, their blobs in `blobs/` nearby."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, run: str) -> Path:
        if not is_run_id(run):
            raise RunNotFound(f"{run!r} is not the form of a run id")
        return self._folder / f"{run}.jsonl"

    def read(self, run: str) -> RunTrace:
        path = self._path(run)
        info = self._info(run)  # first: it may be ended between the two, and never has fewer lines
        try:
            data, torn = split_tail(path.read_bytes())
        except FileNotFoundError:
            raise RunNotFound(f"there is no run {run} in {self._folder}") from None
        except OSError as error:
            raise StoreError(f"{path} can't be read: {error.strerror}") from error
        return RunTrace(run, str(path), data, torn, info)

    def _info(self, run: str) -> RunInfo | None:
        del run
        return None

    def stop_order(self, run: str) -> StopOrder | None:
        return read_order(self._path(run).with_suffix(".control"))

    def lock(self, run: str) -> Lock:
        path = self._path(run)
        descriptor = _lock_file(path, run)
        _set_tail_aside(descriptor, path)
        return _FileLock(descriptor)

    def get_blob(self, digest: str) -> bytes:
        if _SHA256.fullmatch(digest) is None:
            raise StoreError(f"{digest!r} is not the name of a blob")
        for folder in (self._folder.parent, self._folder):
            path = folder / "blobs" / digest[:2] / digest
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"{path} can't be read: {error.strerror}") from error
            if sha256(data).hexdigest() != digest:
                raise TraceCorrupt(str(path), 1, "a blob that is not what its name says")
            return data
        raise StoreError(f"blob {digest} is missing")


class JsonlStore(TraceFile):
    """A directory of JSONL files (the layout is in the module's docstring).

    Raises:
        StoreError: the directory can't be made or written.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        super().__init__(self.root / "runs")
        self._index = self.root / "index.jsonl"
        self._approvals = ApprovalFiles(self.root / "approvals")

    def _make(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the store {self.root} can't be made: {error.strerror}") from error

    @contextlib.contextmanager
    def opening(self) -> Generator[None]:
        self._make()
        try:
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"the store {self.root} can't be written: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # --- the index -------------------------------------------------------------------------------

    def note(self, line: dict[str, Any], *, durable: bool = False) -> None:
        """Append a line to the index; `durable` waits until it is on the disk."""
        try:
            with self._index.open("ab+") as index:
                fcntl.flock(index, fcntl.LOCK_EX)
                size = index.seek(0, os.SEEK_END)
                if size and os.pread(index.fileno(), 1, size - 1) != b"\n":
                    # Torn by a writer that was killed before its run began, or after it ended.
                    index.truncate(len(split_tail(self._index.read_bytes())[0]))
                index.write(orjson.dumps(line) + b"\n")
                if durable:
                    index.flush()
                    os.fsync(index.fileno())
        except OSError as error:
            raise TraceUnwritable(f"{self._index} can't be written: {error.strerror}") from error

    def runs(self) -> list[RunInfo]:
        found: dict[str, RunInfo] = {}
        for number, line in enumerate(self._index_lines(), start=1):
            try:
                entry = orjson.loads(line)
                run = entry["run"]
                if "name" in entry:
                    source = entry["source"]
                    found[run] = RunInfo(
                        run, entry["name"], entry["mode"], source, entry["time"],
                        input=entry.get("input"),
                    )  # fmt: skip
                else:
                    old = found[run]
                    found[run] = RunInfo(
                        run, old.name, old.mode, old.source, old.time,
                        entry["status"], entry["count"], entry["head"], old.input,
                    )  # fmt: skip
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise TraceCorrupt(str(self._index), number, f"not a line of it: {error}") from None
        for path in sorted(self._folder.glob("*.jsonl")):
            if path.stem not in found and is_run_id(path.stem):  # a line lost in a power cut, say
                unindexed = self._unindexed(path)
                if unindexed is not None:
                    found[path.stem] = unindexed
        return list(found.values())

    @staticmethod
    def _unindexed(path: Path) -> RunInfo | None:
        """What a trace says of a run that the index does not know; its end is not attested.

        None where its writer was killed before the first line was whole: nothing ran in it.
        """
        try:
            with path.open("rb") as trace:
                first = trace.readline()
        except OSError as error:
            raise StoreError(f"{path} can't be read: {error.strerror}") from error
        if not first.endswith(b"\n"):
            return None
        _, started = next(read_events(first, str(path)))
        try:
            return RunInfo(
                path.stem, started["name"], started["mode"], started["source"], started["time"],
                input=(started.get("input") or {}).get("digest"),
            )  # fmt: skip
        except KeyError as error:
            raise TraceCorrupt(str(path), 1, f"a run without {error}") from None

    def _index_lines(self) -> list[bytes]:
        try:
            data = self._index.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self._index} can't be read: {error.strerror}") from error
        return split_tail(data)[0].splitlines()

    def _info(self, run: str) -> RunInfo | None:
        return next((info for info in self.runs() if info.run == run), None)

    # --- writing ---------------------------------------------------------------------------------

    def create(self, started: dict[str, Any]) -> JsonlWriter:
        self._make()
        run = started["run"]
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
        descriptor = _lock_file(self._path(run), run, flags)
        try:
            writer = JsonlWriter(self, run, descriptor, b"")
        except BaseException:
            self._path(run).unlink(missing_ok=True)
            raise
        writer.durable = started.get("durability") == "disk"
        known = {key: started.get(key) for key in ("run", "name", "mode", "source", "time")}
        if "input" in started:
            known["input"] = started["input"]["digest"]
        try:
            writer.append(started)
            if writer.durable:
                writer.sync()
                _sync_folder(self._folder)
            self.note(known, durable=writer.durable)
        except BaseException:
            writer.close()
            self._path(run).unlink(missing_ok=True)  # nothing has run in it
            raise
        return writer

    def reopen(self, run: str) -> JsonlWriter:
        path = self._path(run)
        descriptor = _lock_file(path, run, os.O_RDWR | os.O_APPEND)
        return JsonlWriter(self, run, descriptor, _set_tail_aside(descriptor, path))

    # --- stopping --------------------------------------------------------------------------------

    def control_page(self, run: str) -> ControlPage:
        """The control page of a run, for its one writer."""
        return ControlPage(self._path(run).with_suffix(".control"))

    def stop(self, order: StopOrder) -> None:
        path = self._path(order.run)
        if not path.exists():
            raise RunNotFound(f"there is no run {order.run} in {self._folder}")
        give_order(path.with_suffix(".control"), order)  # first: whoever opens now, sees it
        with self.opening():
            for run in self._built_on(order.run):
                page = self._path(run).with_suffix(".control")
                if page.exists():  # it may be live; what is dead sees it where it is resumed
                    give_order(page, order)

    def lift(self, run: str) -> bool:
        path = self._path(run)
        if not path.exists():
            raise RunNotFound(f"there is no run {run} in {self._folder}")
        lifted = lift_order(path.with_suffix(".control"), run)
        with self.opening():
            for other in self._built_on(run):
                lift_order(self._path(other).with_suffix(".control"), run)
        return lifted

    def _built_on(self, run: str) -> list[str]:
        """The runs that resume this one, transitively."""
        found = [run]
        for info in self.runs():  # oldest first
            if info.source in found and info.mode == "resume":
                found.append(info.run)
        return found[1:]

    # --- what goes with traces -------------------------------------------------------------------

    def put_approval(self, approval: str, part: str, data: bytes) -> bool:
        return self._approvals.put(approval, part, data)

    def approval(self, approval: str) -> dict[str, bytes]:
        return self._approvals.get(approval)

    def approvals(self) -> list[str]:
        return self._approvals.ids()

    def put_blob(self, digest: str, data: bytes) -> None:
        path = self.root / "blobs" / digest[:2] / digest
        with contextlib.suppress(OSError):  # a file that was cut short is written anew
            if path.stat().st_size == len(data):
                return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{digest}.{secrets.token_hex(4)}")
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            _sync_folder(path.parent)
        except OSError as error:
            raise TraceUnwritable(f"blob {path} can't be written: {error.strerror}") from error

    def chained(self, name: str, begins: str) -> ChainedFile:
        """An append-only file beside the runs; `begins` is the event of its first line."""
        return ChainedFile(self.root / f"{name}.jsonl", begins)

    def secret_key(self) -> bytes:
        self._make()
        path = self.root / "key"
        try:
            if not path.exists():
                self._make_key(path)
            key = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} can't be used: {error.strerror}") from error
        if len(key) != 32:
            raise StoreError(f"{path} is not a key of 32 bytes; restore it from a backup")
        return key

    @staticmethod
    def _make_key(path: Path) -> None:
        part = path.with_name(f"key.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(part, path)
        part.unlink()


def open_trace(path: Path) -> tuple[TraceFile, str]:
    """A trace file by its path: where it is read from, and the id of its run.

    Raises:
        RunNotFound: there is no such file.
        StoreError: it is not named `<run id>.jsonl`.
    """
    if not path.is_file():
        raise RunNotFound(f"there is no trace at {path}")
    if not (path.suffix == ".jsonl" and is_run_id(path.stem)):
        raise StoreError(f"{path} is not named <run id>.jsonl; give it back the name of its run")
    root = path.parent.parent
    folder = JsonlStore(root) if path.parent.name == "runs" else TraceFile(path.parent)
    return folder, path.stem
