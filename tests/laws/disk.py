"""What a folder asks of the operating system, call by call.

A line that is on record survives only if the calls come in order: see `rollcage.trace.folder`.
Whoever changes the calls sees it in `disk.txt`:

    python -m tests.laws.disk    # writes it anew
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from unittest import mock

from rollcage.errors import RollcageError
from rollcage.trace import folder as module
from rollcage.trace.folder import Folder, FolderLog

from tests.laws.lab import folder

__all__ = ["KEPT", "asked"]

KEPT: Final = Path(__file__).with_name("disk.txt")
_CALLS: Final = (
    "open", "close", "write", "pread", "pwrite", "read", "fstat", "stat", "ftruncate", "fsync",
    "replace", "unlink", "mkdir", "listdir", "lseek",
)  # fmt: skip
_CARE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FLAGS: Final = {
    os.O_RDONLY | os.O_CLOEXEC: "folder", os.O_RDONLY | _CARE: "to read",
    os.O_RDWR | os.O_CREAT | _CARE: "to map", os.O_RDWR | os.O_APPEND | _CARE: "to mark",
    os.O_RDWR | os.O_APPEND | os.O_CREAT | _CARE: "to append",
    os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | _CARE: "afresh",
}  # fmt: skip
_LOCKS: Final = {
    fcntl.LOCK_EX | fcntl.LOCK_NB: "lock", fcntl.LOCK_SH | fcntl.LOCK_NB: "share",
    fcntl.LOCK_UN: "unlock", fcntl.LOCK_EX: "wait for lock",
}  # fmt: skip
_LARGE: Final = 1 << 17


class Asked:
    """Writes down the calls of the block."""

    def __init__(self, root: Path) -> None:
        self.told: list[str] = []
        self._calls: list[str] = []
        self._root, self._files = str(root), dict[int, str]()
        self._real = {name: getattr(os, name) for name in _CALLS}
        self.meets: dict[str, list[BaseException | Callable[[], object]]] = {}
        self.is_short = False
        self._now = 0.0

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in _CALLS:
                stack.enter_context(mock.patch.object(os, name, self._called(name)))
            stack.enter_context(mock.patch.object(module, "_sync_data", self._synced))
            stack.enter_context(mock.patch.object(fcntl, "flock", self._locked(fcntl.flock)))
            stack.enter_context(mock.patch.object(module, "time", self))
            yield

    def do(self, what: str, function: Callable[[], Any]) -> Any:
        """Tell of an act, its calls, and its result."""
        self._calls.clear()
        try:
            with self.block():
                result, said = function(), ""
                if not isinstance(result, FolderLog | None):
                    said = f" = {_short(result)}"
        except (RollcageError, KeyboardInterrupt) as error:
            result, said = None, f" = {_error(error)}"
        self.told.append(f"{what}: {'; '.join(self._calls)}{said}")
        return result

    def _called(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*given: Any, **named: Any) -> Any:
            said = " ".join(self._text(name, at, each) for at, each in enumerate(given))
            self._calls.append(f"{name} {said}")
            self._meets(name)
            if name == "write" and self.is_short:
                given, self.is_short = (given[0], given[1][:2]), False
            result = real(*given, **named)
            self._meets(f"after {name}")
            if name == "open":
                self._files[result] = self._text(name, 0, given[0])
            return sorted(result) if name == "listdir" else result

        return call

    def _meets(self, name: str) -> None:
        """Do what shall happen at a call, or raise it."""
        if self.meets.get(name):
            met = self.meets[name].pop(0)
            if isinstance(met, BaseException):
                raise met
            met()

    def sleep(self, seconds: float) -> None:
        """Stand for `time.sleep`, and let two seconds pass."""
        self._calls.append(f"sleep {seconds}")
        self._now += 2

    def monotonic(self) -> float:
        """Stand for `time.monotonic`."""
        return self._now

    def _synced(self, file: int) -> None:
        self._calls.append(f"sync data {self._files[file]}")
        os.fdatasync(file) if hasattr(os, "fdatasync") else self._real["fsync"](file)

    def _locked(self, real: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def call(file: int, how: int) -> None:
            self._calls.append(f"{_LOCKS[how]} {self._files[file]}")
            try:
                self._meets(_LOCKS[how])
                real(file, how)
            except BlockingIOError:
                self._calls[-1] += ": taken"
                raise

        return call

    def _text(self, name: str, at: int, value: Any) -> str:
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, str):
            return value.rpartition("/")[2][:9]
        if isinstance(value, int) and name == "open":
            if at == 1:
                return _FLAGS[value]
            return f"{value:o}"
        if isinstance(value, int) and name == "mkdir":
            return f"{value:o}"
        if isinstance(value, int) and at == 0:
            return self._files.get(value, "?")
        return str(value) if isinstance(value, int) else f"{len(value)} bytes"


def _error(error: BaseException) -> str:
    """Return the type of an error, and the name of the system's error."""
    named = re.search(r"\(([A-Z]+|\d+)\)", str(error))
    return f"{type(error).__name__} {'' if named is None else named[1]}".rstrip()


def _short(result: Any) -> str:
    if isinstance(result, bytes):
        return result.decode().strip()[:20] if len(result) < _LARGE // 2 else f"{len(result)} bytes"
    if isinstance(result, tuple | list):
        return f"[{' '.join(map(_short, result))}]"
    return str(result)


def _lengths(store: Folder, run: str) -> list[int]:
    return [len(line) for line in store.read(run)]


def _lives(asked: Asked, store: Folder) -> None:
    """Write a log, read it, write on, replace it."""
    log: FolderLog = asked.do("open a new run", lambda: store.open("r1"))
    for number in range(2):
        asked.do("append", partial(log.append, b"line %d\n" % number))
    asked.do("wait", log.wait)
    asked.do("wait again", log.wait)
    asked.do("open it beside its writer", lambda: store.open("r1"))
    asked.do("is live", lambda: store.is_live("r1"))
    asked.do("close", log.close)
    asked.do("close again", log.close)
    asked.do("append behind the end", lambda: log.append(b"late\n"))
    asked.do("is live", lambda: store.is_live("r1"))
    log = asked.do("open a run", lambda: store.open("r1"))
    asked.do("append unseen", lambda: log.append(b"unseen\n"))
    log = asked.do("open a run", lambda: store.open("r1"))
    asked.do("read", log.read)
    asked.do("last line", lambda: log.last)
    asked.do("append", lambda: log.append(b"line 2\n"))
    asked.do("last line", lambda: log.last)
    asked.do("replace", lambda: log.replace([b"only\n"]))
    asked.do("last line", lambda: log.last)
    asked.do("append", lambda: log.append(b"line 3\n"))
    asked.do("last line", lambda: log.last)
    asked.do("close", log.close)
    log = asked.do("open a run", lambda: store.open("r2"))
    asked.do("close a run that never began", log.close)


def _is_taken_over(asked: Asked, store: Folder) -> None:
    """Take a run over from a live writer, and cut off a torn line."""
    old: FolderLog = asked.do("open a new run", lambda: store.open("r3"))
    asked.do("append", lambda: old.append(b"a" * _LARGE + b"\n"))
    new: FolderLog = asked.do("take it over", lambda: store.open("r3", take=True))
    asked.do("append to what was taken over", lambda: old.append(b"lost\n"))
    asked.do("wait there", old.wait)
    asked.do("read", lambda: [len(line) for line in new.read()])
    asked.do("append", lambda: new.append(b"new\n"))
    asked.do("close", new.close)
    asked.do("close what was taken over", old.close)
    with Path(store.path_of("r1")).open("ab") as file:
        file.write(b"torn")
    log: FolderLog = asked.do("open a torn run", lambda: store.open("r1"))
    asked.do("read", log.read)
    asked.do("close", log.close)


def _is_read(asked: Asked, store: Folder) -> None:
    """Read logs and lists of them, from their ends."""
    for run in ("r1", "r3", "no"):
        asked.do(f"read {run}", partial(_lengths, store, run))
        asked.do(f"read behind a line of {run}", partial(store.read, run, 1))
        asked.do(f"read the last line of {run}", partial(store.read, run, -1))
        asked.do(f"ends of {run}", partial(store.ends, run))
        asked.do(f"is {run} live", partial(store.is_live, run))
    asked.do("runs", lambda: [each.run for each in store.runs()])
    asked.do("runs before", lambda: [each.run for each in store.runs("r3", 1)])
    asked.do("one run", lambda: [each.run for each in store.runs("", 1)])


def _keeps(asked: Asked, store: Folder) -> None:
    """Keep values, and orders, which ring the bell."""
    long = "k" * 300
    asked.do("keys of none", lambda: store.keys("names"))
    asked.do("get none", lambda: store.get("names", "a"))
    for key in ("a", long, "b/c"):
        asked.do(f"put {key[:9]}", partial(store.swap, "names", key, None, b"one"))
    asked.do("put again", lambda: store.swap("names", "a", None, b"two"))
    asked.do("put the same", lambda: store.swap("names", "a", b"one", b"one"))
    asked.do("put another", lambda: store.swap("names", "a", b"one", b"two"))
    asked.do("get", lambda: store.get("names", "a"))
    asked.do("get a long key", lambda: store.get("names", long))
    asked.do("keys", lambda: store.keys("names"))
    asked.do("a key", lambda: store.keys("names", "a", 1))
    asked.do("drop", lambda: store.swap("names", "a", b"two", None))
    before = asked.do("bell", lambda: store.bell() != 0)
    rung = store.bell()
    asked.do("order", lambda: store.swap("orders", "r1", None, b"stop"))
    asked.do("is rung", lambda: before and store.bell() != rung)
    log: FolderLog = asked.do("open a new run", lambda: store.open("heard"))
    asked.meets = {"open": [OSError(errno.EACCES, "denied")]}
    asked.do("hear nothing", lambda: log.hear() is None)
    heard: list[Callable[[], int] | None] = [None]
    asked.do("hear", lambda: heard.__setitem__(0, log.hear()))
    asked.do("hear again", lambda: log.hear() is heard[0])
    counts = [heard[0]()] if heard[0] is not None else []
    asked.do("order again", lambda: store.swap("orders", "r1", b"stop", b"pause"))
    asked.do("an order that comes too late", lambda: store.swap("orders", "r1", b"stop", None))
    asked.do("rings", lambda: [each() - counts[0] for each in heard if each is not None])
    asked.do("close", log.close)
    Path(store.root, "docs", "names", "d").write_bytes(b"damaged")
    asked.do("get what is damaged", lambda: store.get("names", "d"))
    Path(store.root, "docs", "names", "link").symlink_to("d")
    asked.do("get a link", lambda: store.get("names", "link"))


def _fails(asked: Asked, store: Folder) -> None:
    """Write to a disk that is full, or broken."""
    full, broken = OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")
    log: FolderLog = asked.do("open a new run", lambda: store.open("r4"))
    asked.do("append", lambda: log.append(b"one\n"))
    asked.meets = {"write": [full]}
    asked.do("append to a full disk", lambda: log.append(b"two\n"))
    asked.do("append", lambda: log.append(b"three\n"))
    asked.meets = {"fstat": [broken]}
    asked.do("wait for a broken disk", log.wait)
    asked.do("append behind that", lambda: log.append(b"four\n"))
    asked.do("close", log.close)
    log = asked.do("open a run", lambda: store.open("r4"))
    asked.do("read", log.read)
    asked.meets = {"write": [broken]}
    asked.do("append to a broken disk", lambda: log.append(b"five\n"))
    asked.do("wait", log.wait)
    asked.do("read", log.read)
    log = asked.do("open a run", lambda: store.open("r4"))
    asked.meets = {"replace": [broken]}
    asked.do("replace on a broken disk", lambda: log.replace([b"six\n"]))
    asked.do("close", log.close)
    for what in ("open", "fstat", "pread"):
        for act, function in (
            ("read the end", lambda: store.read("r4", -1)),
            ("ends", lambda: store.ends("r4")),
            ("open", lambda: store.open("r4")),
            ("get", lambda: store.get("names", "b/c")),
            ("put", lambda: store.swap("names", "b/c", b"one", b"two")),
            ("is live", lambda: store.is_live("r4")),
        ):
            asked.meets = {what: [OSError(errno.EACCES, "denied")]}
            log = asked.do(f"{act}, and {what} fails", function)
            if isinstance(log, FolderLog):
                log.close()


def _is_interrupted(asked: Asked, store: Folder) -> None:
    """Write a line in parts, and be interrupted at each moment of a write."""
    log: FolderLog = asked.do("open a new run", lambda: store.open("r5"))
    path = Path(store.path_of("r5"))
    asked.is_short = True
    asked.do("append in parts", lambda: log.append(b"in parts\n"))
    for moment in ("write", "after write"):
        asked.meets = {moment: [KeyboardInterrupt()]}
        asked.do(f"append, interrupted at {moment}", lambda: log.append(b"cut\n"))
        asked.do("last line", lambda: log.last)
        asked.do("append", lambda: log.append(b"next\n"))
        asked.do("wait", log.wait)
    asked.is_short = True
    asked.meets = {"after write": [KeyboardInterrupt()]}
    asked.do("append half a line, interrupted", lambda: log.append(b"half\n"))
    asked.do("wait", log.wait)
    log = asked.do("open a torn run", lambda: store.open("r5"))
    asked.do("read", log.read)
    asked.is_short = True
    asked.meets = {"write": [_nothing, OSError(errno.ENOSPC, "full")]}
    asked.do("append to a disk that gets full", lambda: log.append(b"fills\n"))
    asked.meets = {"after write": [path.unlink, KeyboardInterrupt()]}
    asked.do("append to a removed file", lambda: log.append(b"gone\n"))
    asked.do("append, interrupted", lambda: log.append(b"gone\n"))
    asked.do("wait", log.wait)
    log = asked.do("open a new run", lambda: store.open("r5"))
    asked.do("remove it", path.unlink)
    asked.do("close what was removed", log.close)
    asked.do("settle", lambda: asyncio.run(log.settled()))
    log = asked.do("open a new run", lambda: store.open("r5"))
    asked.do("append", lambda: log.append(b"one\n"))
    asked.do("settle", lambda: asyncio.run(log.settled()))
    asked.do("forget it", log.__del__)
    asked.do("is live", lambda: store.is_live("r5"))


def _nothing() -> None: ...


def _meets_others(asked: Asked, store: Folder) -> None:
    """Wait for locks, and meet others between two calls."""
    path, taken = Path(store.path_of("r6")), BlockingIOError()
    log: FolderLog
    asked.meets = {"lock": [taken]}
    log = asked.do("open while somebody looks", lambda: store.open("r6"))
    asked.do("append", lambda: log.append(b"one\n"))
    asked.do("close", log.close)
    asked.meets = {"lock": [taken] * 9}
    asked.do("open while many look", lambda: store.open("r6"))
    asked.meets = {"lock": [taken] * 7}
    asked.do("put while others do", lambda: store.swap("names", "e", None, b"one"))
    asked.meets = {"lock": [taken] * 99}
    asked.do("put while another one is stopped", lambda: store.swap("names", "e", b"one", b"two"))
    asked.meets = {"lock": [path.unlink]}
    log = asked.do("open while it is removed", lambda: store.open("r6"))
    asked.do("append", lambda: log.append(b"one\n"))
    asked.meets = {"lock": [taken], "share": [taken, log.close]}
    log = asked.do("take over while its writer ends", lambda: store.open("r6", take=True))
    asked.do("read", log.read)
    asked.meets = {"pread": [partial(os.truncate, path, 4)]}
    log = asked.do("take over what takes a line back", lambda: store.open("r6", take=True))
    asked.do("read", log.read)
    asked.meets = {"write": [_nothing, OSError(errno.EIO, "broken")]}
    asked.do("take over on a broken disk", lambda: store.open("r6", take=True))
    asked.do("close", log.close)


def _count(lines: Callable[[], list[bytes]]) -> int:
    return len(lines())


def _reads_torn(asked: Asked, store: Folder) -> None:
    """Read logs that end anywhere, and logs of many sizes."""
    asked.do("runs of nothing", lambda: Folder(store.root + "/none").runs())
    asked.meets = {"listdir": [OSError(errno.EACCES, "denied")]}
    asked.do("runs, denied", store.runs)
    asked.meets = {"listdir": [OSError("odd")]}
    asked.do("keys, and something odd", lambda: store.keys("names"))
    for run in ("r7", "é" * 90, "r/8"):
        log: FolderLog = asked.do(f"open {run[:9]}", partial(store.open, run))
        log.append(b'{"run":"%b"}\n' % run.encode())
        log.close()
    Path(store.root, "logs", "~no.jsonl").write_bytes(b'{"run":"r7"}\n')
    Path(store.root, "logs", "~odd.jsonl").write_bytes(b"odd\n")
    asked.do("runs", lambda: [each.run for each in store.runs()])
    path = Path(store.path_of("r7"))
    for end in (b"", b"\n", b"one\n", b"one\ntwo", b"one\n\x18", b"one\n\x18two\n", b"\x18"):
        path.write_bytes(end)
        asked.do(f"read {end!r}", lambda: store.read("r7"))
        asked.do(f"its last line {end!r}", lambda: store.read("r7", -1))
        asked.do(f"ends {end!r}", lambda: store.ends("r7"))
        log = asked.do("open", lambda: store.open("r7"))
        asked.do("its lines", log.read)
        log.close()
        path.touch()
    for count in range(3, 7):
        for size in (_LARGE // 8, _LARGE // 8 + 1):
            path.write_bytes((b"x" * (size - 1) + b"\n") * 4 * count)
            last = partial(store.read, "r7", -count)
            asked.do(f"{count} of {4 * count} lines of {size}", partial(_count, last))
    alike, root = Folder(store.root), os.path.relpath(store.root)
    asked.do("is the same", lambda: (alike == store, hash(alike) == hash(store), store != "it"))
    asked.do("is the same, by another path", lambda: Folder(root).url == store.url)


_PARTS: Final = (
    _lives, _is_taken_over, _is_read, _keeps, _fails, _is_interrupted, _meets_others, _reads_torn,
)  # fmt: skip


def asked(root: Path) -> str:
    """Return the text of what a folder asks of the operating system."""
    told: list[str] = []
    each: Literal["os", "disk"]
    gc.disable()  # it would close what nobody has any more, at any call
    try:
        for each in ("os", "disk"):
            its, store = Asked(root), Folder(root / "some" / each, durability=each)
            for part in _PARTS:
                part(its, store)
            told += [f"--- {each}", *its.told, ""]
    finally:
        gc.enable()
    return "\n".join(told)


if __name__ == "__main__":
    with folder() as place:
        KEPT.write_text(asked(place), encoding="utf-8")
