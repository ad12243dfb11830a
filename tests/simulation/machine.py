"""A machine whose disk forgets what was not synced, fills up, fails and rots.

It stands in the place of `os` and `fcntl` in the modules of the folder. Each file has what its
readers see, what is on the platter, and the changes in between, in order. When the power goes, the
first so many of those have been written, the last of them perhaps in part: for each file, and the
names in each folder, by itself. That is what POSIX promises, and no more: a name is safe when its
folder was synced, the bytes when the file was.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.simulation.scheduler import Process, Scheduler

__all__ = ["File", "Folder", "Machine", "System", "Time"]

Change = Callable[[bytearray], None]


class File:
    """The bytes of a file: as they are read, and as they would be after a power cut."""

    def __init__(self, number: int, mode: int) -> None:
        self.number = number
        self.mode = stat.S_IFREG | mode
        self.names = 0
        self.changed = 0  # when (ns)
        self.data = bytearray()
        self.safe = bytearray()
        self.writing: list[tuple[int, bytes] | int] = []  # at an offset, or a new length

    @property
    def size(self) -> int:
        return len(self.data)

    def change(self, change: tuple[int, bytes] | int) -> None:
        self._apply(self.data, change)
        self.writing.append(change)

    def sync(self) -> None:
        for change in self.writing:
            self._apply(self.safe, change)
        self.writing.clear()

    def lose(self) -> None:
        """The disk fails to write, and the system forgets that it had to."""
        self.writing.clear()

    def rot(self, at: int) -> None:
        """A byte changes, and no system call has changed it."""
        for data in (self.data, self.safe):
            if at < len(data):
                data[at] ^= 1 << at % 8

    def cut(self, random: Random) -> None:
        """The power goes."""
        kept = random.randint(0, len(self.writing))
        for change in self.writing[:kept]:
            self._apply(self.safe, change)
        if kept < len(self.writing) and random.random() < 0.5:
            torn = self.writing[kept]
            if isinstance(torn, tuple):
                at, data = torn
                self._apply(self.safe, (at, data[: random.randint(0, len(data))]))
        self.writing.clear()
        self.data = bytearray(self.safe)

    @staticmethod
    def _apply(data: bytearray, change: tuple[int, bytes] | int) -> None:
        if isinstance(change, int):
            del data[change:]
            data.extend(bytes(change - len(data)))
            return
        at, new = change
        data.extend(bytes(max(0, at - len(data))))
        data[at : at + len(new)] = new


class Folder:
    """The names in a folder: as they are, and as they would be after a power cut."""

    def __init__(self, number: int, mode: int) -> None:
        self.number = number
        self.mode = stat.S_IFDIR | mode
        self.names = 1
        self.changed = 0
        self.size = 0
        self.entries: dict[str, File | Folder] = {}
        self.safe: dict[str, File | Folder] = {}
        self.writing: list[dict[str, File | Folder | None]] = []  # None: no longer there

    def change(self, **entries: File | Folder | None) -> None:
        self._apply(self.entries, entries)
        self.writing.append(entries)

    def sync(self) -> None:
        self.safe = dict(self.entries)
        self.writing.clear()

    def cut(self, random: Random) -> None:
        for change in self.writing[: random.randint(0, len(self.writing))]:
            self._apply(self.safe, change)
        self.writing.clear()
        self.entries = dict(self.safe)

    @staticmethod
    def _apply(entries: dict[str, File | Folder], change: dict[str, File | Folder | None]) -> None:
        for name, each in change.items():
            if each is None:
                entries.pop(name, None)
            else:
                entries[name] = each


class Opened:
    """An open file of a process."""

    def __init__(self, file: File | Folder, flags: int, process: Process | None) -> None:
        self.file = file
        self.flags = flags
        self.process = process
        self.at = 0


class Machine:
    """Files and locks; the processes are the scheduler's. What it lacks is the real `os`'s."""

    def __init__(self, scheduler: Scheduler, first: int = 0) -> None:
        self.scheduler = scheduler
        self.random = scheduler.random
        self.full = False  # it takes no more
        self.failing = 0.0  # how likely a sync fails
        self._number = first  # of files that are open: no two machines share one
        self._opened: dict[int, Opened] = {}
        self._locked: dict[int, Opened] = {}  # by the file's number
        self.top = Folder(self._next(), 0o755)

    @property
    def latest(self) -> int:
        """Return the greatest number that it has given."""
        return self._number

    def _next(self) -> int:
        self._number += 1
        return self._number

    # --- what befalls it -------------------------------------------------------------------------

    def power_cut(self) -> None:
        """All processes die; of what was not synced, some is on the disk and some is not."""
        for process in list(self.scheduler.processes):
            self.scheduler.kill(process, "the power goes")
        self._opened.clear()
        self._locked.clear()
        seen: set[int] = set()
        self._cut(self.top, seen)

    def _cut(self, folder: Folder, seen: set[int]) -> None:
        folder.cut(self.random)
        for each in folder.entries.values():
            if isinstance(each, Folder):
                self._cut(each, seen)
            elif each.number in seen:
                each.names += 1
            else:
                seen.add(each.number)
                each.names = 1
                each.cut(self.random)

    def release(self, process: Process) -> None:
        """A process has died: what it had open is closed."""
        for fd in [fd for fd, each in self._opened.items() if each.process is process]:
            self._close(fd)

    def file(self, path: str) -> File | None:
        """A file as it is, without anybody seeing it."""
        try:
            found = self._find(path)
        except OSError:
            return None
        return found if isinstance(found, File) else None

    def names(self, path: str) -> list[str]:
        """The names in a folder, without anybody seeing it."""
        try:
            found = self._find(path)
        except OSError:
            return []
        return sorted(found.entries) if isinstance(found, Folder) else []

    def is_safe(self, path: str) -> bytes:
        """What a power cut leaves of a file for sure."""
        at: File | Folder | None = self.top
        for part in _parts(path):
            at = at.safe.get(part) if isinstance(at, Folder) else None
        return bytes(at.safe) if isinstance(at, File) else b""

    # --- the system calls ------------------------------------------------------------------------

    def _call(self, name: str, what: object) -> None:
        self.scheduler.point(f"{name} {_shown(what)}")

    def open(self, path: Path | str, flags: int, mode: int = 0o777) -> int:
        self._call("create" if flags & os.O_CREAT else "open", path)
        if not flags & os.O_CREAT:
            return self._open(self._find(path), flags)
        folder, name = self._above(path)
        file = folder.entries.get(name)
        if file is None:
            self._takes(path)
            file = File(self._next(), mode)
            file.names = 1
            file.changed = self.scheduler.now
            folder.change(**{name: file})
        elif flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        return self._open(file, flags)

    def _open(self, file: File | Folder, flags: int) -> int:
        if flags & os.O_TRUNC and isinstance(file, File) and file.size:
            file.change(0)
        fd = 1000 + self._next()
        self._opened[fd] = Opened(file, flags, self.scheduler.current)
        return fd

    def close(self, fd: int) -> None:
        if fd in self._opened:  # else its process has died, and it was closed with that
            self._close(fd)

    def lseek(self, fd: int, offset: int, whence: int) -> int:
        assert (offset, whence) == (0, os.SEEK_CUR)
        return self._get(fd).at

    def reader(self, fd: int, *_: object, **__: object) -> io.BytesIO:
        """Open a file that is open to read its lines, as `open(fd)` does."""
        self._call("read", self._get(fd).file.number)
        return io.BytesIO(bytes(self._file(fd).data))

    def _close(self, fd: int) -> None:
        opened = self._opened.pop(fd)
        if self._locked.get(opened.file.number) is opened:
            del self._locked[opened.file.number]

    def read(self, fd: int, length: int, /) -> bytes:
        opened = self._get(fd)
        data = self.pread(fd, length, opened.at)
        opened.at += len(data)
        return data

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        self.scheduler.check()
        return bytes(self._file(fd).data[offset : offset + length])

    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        opened = self._get(fd)
        file = self._file(fd)
        at = file.size if opened.flags & os.O_APPEND else opened.at
        written = self._written(fd, data, at)
        opened.at = at + written
        return written

    def pwrite(self, fd: int, data: bytes, offset: int, /) -> int:
        return self._written(fd, data, offset)

    def _written(self, fd: int, data: bytes | memoryview, at: int) -> int:
        self._call("write", f"{len(data)} bytes of {self._get(fd).file.number} at {at}")
        file = self._file(fd)
        if self._get(fd).flags & os.O_APPEND:
            at = file.size  # somebody may have been faster
        if self.full:
            data = data[: self.random.randint(0, len(data) - 1)] if data else data
            if not data:
                raise _error(errno.ENOSPC)
        file.change((at, bytes(data)))
        file.changed = self.scheduler.now
        return len(data)

    def ftruncate(self, fd: int, length: int, /) -> None:
        self._call("truncate", f"{self._get(fd).file.number} to {length}")
        file = self._file(fd)
        file.change(length)
        file.changed = self.scheduler.now

    def fsync(self, fd: int) -> None:
        self._call("sync", self._get(fd).file.number)
        file = self._get(fd).file
        if isinstance(file, File) and file.writing and self.random.random() < self.failing:
            file.lose()
            self.scheduler.note("the disk fails")
            raise _error(errno.EIO)
        file.sync()

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fstat(self, fd: int) -> os.stat_result:
        self.scheduler.check()
        return self._status(self._get(fd).file)

    def stat(self, path: Path | str) -> os.stat_result:
        self._call("stat", path)
        return self._status(self._find(path))

    def chmod(self, path: Path, mode: int) -> None:
        self.scheduler.check()
        self._find(path).mode = stat.S_IFMT(self._find(path).mode) | mode

    def fchmod(self, fd: int, mode: int) -> None:
        self.scheduler.check()
        self._get(fd).file.mode = stat.S_IFMT(self._get(fd).file.mode) | mode

    def link(self, src: Path, dst: Path) -> None:
        self._call("link", dst)
        file = self._find(src)
        folder, name = self._above(dst)
        if name in folder.entries:
            raise _error(errno.EEXIST, dst)
        self._takes(dst)
        folder.change(**{name: file})
        file.names += 1

    def replace(self, src: Path | str, dst: Path | str) -> None:
        self._call("rename", dst)
        file = self._find(src)
        folder, name = self._above(dst)
        above, old = self._above(src)
        assert above is folder
        before = folder.entries.get(name)
        if before is not None:
            before.names -= 1
        folder.change(**{old: None, name: file})

    def unlink(self, path: Path | str) -> None:
        self._call("remove", path)
        file = self._find(path)
        folder, name = self._above(path)
        folder.change(**{name: None})
        file.names -= 1

    def mkdir(self, path: Path | str, mode: int = 0o777) -> None:
        self._call("mkdir", path)
        folder, name = self._above(path)
        if name in folder.entries:
            raise _error(errno.EEXIST, path)
        self._takes(path)
        folder.change(**{name: Folder(self._next(), mode)})

    def listdir(self, path: Path | str) -> list[str]:
        self._call("list", path)
        folder = self._find(path)
        if not isinstance(folder, Folder):
            raise _error(errno.ENOTDIR, path)
        names = sorted(folder.entries)
        self.random.shuffle(names)  # in which order is the file system's matter
        return names

    def urandom(self, size: int, /) -> bytes:
        return self.random.randbytes(size)

    def flock(self, fd: int, operation: int, /) -> None:
        """Have the lock of a file alone; or look whether somebody has it: who looks keeps none."""
        self._call("lock", self._get(fd).file.number)
        opened = self._get(fd)
        number = opened.file.number

        def free() -> bool:
            return self._locked.get(number, opened) is opened

        if operation & fcntl.LOCK_UN:
            return
        if not free():
            if operation & fcntl.LOCK_NB:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self.scheduler.wait(free, f"waits for the lock of {number}")
        if operation & fcntl.LOCK_EX:
            self._locked[number] = opened

    # --- within ----------------------------------------------------------------------------------

    def _takes(self, path: Path | str) -> None:
        """Raises OSError where there is no room for another file."""
        if self.full:
            raise _error(errno.ENOSPC, path)

    def _get(self, fd: int) -> Opened:
        self.scheduler.check()
        try:
            return self._opened[fd]
        except KeyError:
            raise _error(errno.EBADF) from None

    def _file(self, fd: int) -> File:
        file = self._get(fd).file
        if not isinstance(file, File):
            raise _error(errno.EISDIR)
        return file

    def _above(self, path: Path | str) -> tuple[Folder, str]:
        *above, name = _parts(path)
        folder = self._find("/" + "/".join(above))
        if not isinstance(folder, Folder):
            raise _error(errno.ENOTDIR, path)
        return folder, name

    def _find(self, path: Path | str) -> File | Folder:
        at: File | Folder = self.top
        for part in _parts(path):
            if not isinstance(at, Folder):
                raise _error(errno.ENOTDIR, path)
            if part not in at.entries:
                raise _error(errno.ENOENT, path)
            at = at.entries[part]
        return at

    @staticmethod
    def _status(file: File | Folder) -> os.stat_result:
        seconds = file.changed // 10**9
        first = (file.mode, file.number, 1, file.names, 0, 0, file.size, seconds, seconds, seconds)
        return os.stat_result(first, {"st_mtime_ns": file.changed})


class System:
    """Stands in the place of a module: what a machine has is the machine's, all else is real."""

    def __init__(self, real: Any, own: Any) -> None:
        self._real = real
        self._own = own

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._own, name, None)
        return getattr(self._real, name) if found is None else found


class Time:
    """The time of a universe."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now / 1e9

    def time_ns(self) -> int:
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)


def _parts(path: Path | str) -> list[str]:
    return [part for part in str(path).split("/") if part]


def _shown(what: object) -> str:
    return str(what).removeprefix("/store/")


def _error(number: int, path: object = None) -> OSError:
    return OSError(number, os.strerror(number), *([] if path is None else [str(path)]))
