"""What the directory store asks of the file system, and what it says where that refuses.

Whatever the umask, its files are for their owner alone (0600), and so are its folders (0700).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rollcage.errors import StoreError, StoreReadOnly
from rollcage.store import system
from rollcage.store.at_once import AT_ONCE, will_wait

__all__ = [
    "add", "check_secret", "chunks", "describe", "end_of", "exists", "first_line", "is_file",
    "is_folder", "is_locked", "lock", "locked", "make_folder", "mode_of", "new_name", "open_file",
    "put", "read", "read_from", "read_short", "reading", "refused", "remove", "replace", "sync",
    "write",
]  # fmt: skip

Name = str | Path

_log: Final = logging.getLogger("rollcage")
_CHUNK: Final = 65_536
_LARGE_CHUNK: Final = 1 << 20
_LOOKERS: Final = 1000  # tries to take a lock that others look at
_COMERS: Final = 100  # times that others make and remove a file which is to be made
_NEXT: Final = {
    errno.ENOSPC: "free some space there, then go on",
    errno.EDQUOT: "free some of this user's quota there, then go on",
    errno.EROFS: "mount it writable, or keep the store elsewhere with store=...",
    errno.EACCES: "run as the user whom the store belongs to, or give it to this one",
    errno.EPERM: "run as the user whom the store belongs to, or give it to this one",
    errno.ENOLCK: "its file system locks no files: keep the store on a local disk",
    errno.ENOSYS: "its file system locks no files: keep the store on a local disk",
    errno.EOPNOTSUPP: "its file system locks no files: keep the store on a local disk",
    errno.EIO: "look after the disk, or the network share, that it is on",
    errno.ESTALE: "look after the network share that it is on",
}


def describe(error: OSError) -> str:
    """What the system says, by its name too, and what helps."""
    number = error.errno or 0
    name = errno.errorcode.get(number)
    text = error.strerror or str(error)
    text = f"{text} ({name})" if name else text
    return f"{text}: {_NEXT[number]}" if number in _NEXT else text


def refused(text: str, error: OSError) -> StoreError:
    """The error that says `text`, and why; its own type where nothing here may be written."""
    read_only = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    return (StoreReadOnly if read_only else StoreError)(f"{text}: {describe(error)}")


def check_secret(path: Path, mode: int) -> None:
    """Refuse a file with the store's key that everybody may read or change; a group's is reported.

    Raises:
        StoreError: its mode gives it to every user of this machine.
    """
    if mode & 0o007:
        raise StoreError(
            f"{path} may be read or changed by every user of this machine (mode {mode:04o}): who "
            f"has it can guess short secrets from the traces and forge approvals. Run: chmod 600 "
            f"{path}"
        )
    if mode & 0o070:
        _log.warning(
            "%s may be read or changed by its group (mode %04o): whoever is in it can guess short "
            "secrets from the traces and forge approvals; chmod 600 ends that",
            path,
            mode,
        )


def make_folder(path: Path) -> None:
    """Make a folder of the store, and its parents, if they are not there."""
    if is_folder(path):
        return
    will_wait()
    _make_above(path.parent)
    with contextlib.suppress(FileExistsError):  # of two processes, one makes it
        system.files.mkdir(path, 0o700)
        with contextlib.suppress(OSError):  # a file system without modes
            system.files.chmod(path, 0o700)
        keep_name(path)
    if not is_folder(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _make_above(path: Path) -> None:
    """Make the parents of a store's folder; who may use those is up to the user."""
    if exists(path):
        return
    _make_above(path.parent)
    with contextlib.suppress(FileExistsError):
        system.files.mkdir(path, 0o777)
        keep_name(path)


def keep_name(path: Path) -> None:
    """Wait until the name of a file or folder is on the disk: a power cut takes what has none."""
    with contextlib.suppress(PermissionError):  # who may not list what it is in can't wait for that
        sync(path.parent)


def is_folder(path: Name) -> bool:
    """Whether there is a folder of this name."""
    return stat.S_ISDIR(mode_of(path))


def is_file(path: Name) -> bool:
    """Whether there is a file of this name."""
    return stat.S_ISREG(mode_of(path))


def exists(path: Name) -> bool:
    """Whether there is anything of this name."""
    return bool(mode_of(path))


def mode_of(path: Name) -> int:
    """What kind of a thing has this name, and who may use it; 0 where nothing has it."""
    try:
        return system.files.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def new_name(path: Path, *, hidden: bool = False) -> Path:
    """A name in the same folder that nobody else has."""
    name = f"{path.name}.{system.files.urandom(4).hex()}"
    return path.with_name(f".{name}" if hidden else name)


def open_file(path: Name, flags: int) -> int:
    """Open a file of the store; what `flags` make is for its owner alone."""
    flags |= os.O_CLOEXEC
    if flags & os.O_CREAT and not flags & os.O_EXCL:
        for _ in range(_COMERS):
            with contextlib.suppress(FileNotFoundError):
                return system.files.open(path, flags & ~os.O_CREAT)
            with contextlib.suppress(FileExistsError):  # another process was first
                return open_file(path, flags | os.O_EXCL)
        raise FileExistsError(errno.EEXIST, "a link that leads nowhere", str(path))
    descriptor = system.files.open(path, flags, 0o600)
    if flags & os.O_CREAT:
        with contextlib.suppress(OSError):  # a file system without modes
            system.files.fchmod(descriptor, 0o600)
    return descriptor


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Take the OS lock of an open file; False where somebody else has it and nobody waits.

    Raises:
        OSError: it can't be known: the file system has no locks, for example.
    """
    for _ in range(_LOOKERS):
        if _try(descriptor, fcntl.LOCK_EX):
            return True
        if wait or not _try(descriptor, fcntl.LOCK_SH):
            break
        os.sched_yield()  # nobody has it: somebody looks whether it is had, and is gone at once
    if not wait:
        return False
    will_wait()
    system.locks.flock(descriptor, fcntl.LOCK_EX)
    return True


def is_locked(path: Name) -> bool:
    """Whether somebody has the OS lock of a file; nobody is kept from it by being asked.

    Raises:
        OSError: it can't be known.
    """
    with reading(path) as descriptor:
        return not _try(descriptor, fcntl.LOCK_SH)


def _try(descriptor: int, kind: int) -> bool:
    try:
        system.locks.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(path: Name, flags: int) -> Iterator[int]:
    """A descriptor of a file, with its OS lock. Not of one that was removed or replaced since."""
    while True:
        descriptor = open_file(path, flags)
        try:
            lock(descriptor)
            if system.files.fstat(descriptor).st_nlink:
                yield descriptor
                return
        finally:
            system.files.close(descriptor)


def replace(path: Path, data: bytes, *, part: Path) -> None:
    """Put whole new bytes under a name, on the disk; `part` is nobody else's name."""
    put(path, data, part=part, durable=True)
    sync(path.parent)


def put(path: Path, data: bytes, *, part: Path, durable: bool = False) -> None:
    """Put whole new bytes under a name; `part` is nobody else's. After a power cut, only durably.

    Raises:
        OSError: there is no room for them, say; what had the name stays.
    """
    if durable:
        will_wait()
    descriptor = open_file(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write(descriptor, data)
        if durable:
            system.files.fsync(descriptor)
    finally:
        system.files.close(descriptor)
    system.files.replace(part, path)


def add(path: Path, data: bytes) -> None:
    """Add bytes to the end of a file, which is made if need be; they are on the disk then."""
    will_wait()
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        write(descriptor, data)
        system.files.fsync(descriptor)
    finally:
        system.files.close(descriptor)


def read(path: Name) -> bytes:
    """All that a file holds.

    Raises:
        OSError: it is not there, or can't be read.
    """
    return read_from(path, lambda _: 0)[0]


def read_from(path: Name, place: Callable[[os.stat_result], int]) -> tuple[bytes, os.stat_result]:
    """What a file holds from the `place` on that follows from what it is; and that.

    Raises:
        OSError: it is not there, or can't be read.
    """
    with reading(path) as descriptor:
        found = system.files.fstat(descriptor)
        at = place(found)
        parts: list[bytes] = []
        length = found.st_size - at + 1  # all at once, where it has a size
        if length > AT_ONCE:
            will_wait()
        while part := system.files.pread(descriptor, length if length > 1 else _CHUNK, at):
            parts.append(part)
            at += len(part)
            if len(part) == length - 1 and len(parts) == 1:  # to the end, and there is no more
                break
        return parts[0] if len(parts) == 1 else b"".join(parts), found


def read_short(path: Name, length: int) -> bytes:
    """The first so many bytes of a file, in one go.

    Raises:
        OSError: it is not there, or can't be read.
    """
    with reading(path) as descriptor:
        return system.files.pread(descriptor, length, 0)


def first_line(path: Path) -> bytes:
    """The first line of a file; all of it, where it has no end of a line.

    Raises:
        OSError: it is not there, or can't be read.
    """
    with reading(path) as descriptor:
        data = b""
        while part := system.files.read(descriptor, _CHUNK):
            data += part
            if b"\n" in part:
                break
        return data[: data.find(b"\n") + 1] or data


class reading:  # noqa: N801 - it is used as a function; a generator for each file costs more
    """A descriptor of a file, to read it, for a `with` block."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Name) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._descriptor = system.files.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        system.files.close(self._descriptor)


def chunks(path: Path) -> Iterator[bytes]:
    """What a file holds, some of it at a time.

    Raises:
        OSError: it is not there, or can't be read.
    """
    will_wait()
    with reading(path) as descriptor:
        while part := system.files.read(descriptor, _LARGE_CHUNK):
            yield part


def end_of(path: Path, length: int) -> bytes:
    """The last so many bytes of a file.

    Raises:
        OSError: it is not there, or can't be read.
    """
    with reading(path) as descriptor:
        size = system.files.fstat(descriptor).st_size
        return system.files.pread(descriptor, length, max(size - length, 0))


def remove(path: Name) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        system.files.unlink(path)


def write(descriptor: int, data: bytes) -> None:
    """Write all of it.

    Raises:
        OSError: the file system takes no more of it.
    """
    while data:
        written = system.files.write(descriptor, data)
        if not written:
            raise OSError(errno.EIO, "a short write")
        data = data[written:]


def sync(path: Path) -> None:
    """Wait until what a file holds, or the names in a folder, are on the disk."""
    will_wait()
    descriptor = system.files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        system.files.fsync(descriptor)
    finally:
        system.files.close(descriptor)
