"""Keep runs in a folder: one JSONL file each, and one small file for each value.

::

    .rollcage/
        logs/<run>.jsonl            the log of a run
        docs/<kind>/<key>           a value, behind a line with its whole key and SHA-256
        bell, bell.heard            one grows with each order, one holds a number that changes

All files (0600) and folders (0700) are for their owner alone. File names are made of keys and ids
from outside: special characters are escaped, and long names are replaced by their hash. A file that
is a link is refused.

**The fence.** A writer appends its lines and then, in `wait`, checks that the file has exactly the
length of these lines, and still has its name. A take-over first writes a mark behind the last line,
so the next check of the old writer fails; then copies all lines before the mark to a new file,
locked by the new writer; then renames the copy to the run's name. A line of the old writer is
either before the mark and copied, or behind it and refused. Only the order of appends to one file
matters, so a writer that was frozen at any point is covered. (A writer that removes half a line on
a full disk may remove the mark as well, so the mark is checked once more after the rename.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Final, Literal, NamedTuple, NoReturn

import orjson

from rollcage.errors import (
    Fenced,
    Forked,
    RollcageError,
    RunInUse,
    RunNotFound,
    StoreError,
    StoreInvalid,
    StoreReadOnly,
    TraceUnwritable,
)
from rollcage.trace.bell import heard_at, ring_at
from rollcage.trace.keys import check_key, check_run, file_name, key_of, own_folders
from rollcage.trace.processes import keep_from_children
from rollcage.trace.threads import in_thread

__all__ = ["Ends", "Folder", "FolderLog", "has_writer", "take_lock"]

_log: Final = logging.getLogger("rollcage")

_MARK: Final = b"\x18"
"""The first byte of a mark, at which the run was taken over. No JSON has this byte."""

_NEWLINE: Final = 10
_CARE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe keeps nobody waiting
_APPEND: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT
_REPLACE: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_CHUNK: Final = 1 << 20
_END: Final = 1 << 16  # bytes at the end of a file in which its last line is looked for at first
_PATIENCE: Final = 30.0  # seconds to wait for another process that is swapping a value
_PAUSE: Final = 0.0005  # seconds; a check of a lock holds it for less
_CHECKED: Final = 5.0  # seconds to wait for such checks
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NEXT: Final = {
    errno.ENOSPC: "free some space there, then go on",
    errno.EDQUOT: "free some of this user's quota there, then go on",
    errno.EROFS: "mount it writable, or keep the store elsewhere with store=...",
    errno.EACCES: "run as the user whom the store belongs to, or give it to this one",
    errno.EPERM: "run as the user whom the store belongs to, or give it to this one",
    errno.ELOOP: "it is a link, and the store follows none: put the file itself there",
    errno.ENOLCK: "its file system locks no files: keep the store on a local disk",
    errno.ENOSYS: "its file system locks no files: keep the store on a local disk",
    errno.EOPNOTSUPP: "its file system locks no files: keep the store on a local disk",
    errno.EIO: "look after the disk, or the network share, that it is on",
    errno.ESTALE: "look after the network share that it is on",
}
_sync_data: Final = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class Ends(NamedTuple):
    """The id of a run, and its first and last whole line."""

    run: str
    first: bytes
    last: bytes


class FolderLog:
    """Append to the log of one run, in a file of its own. See `Log` for the promises."""

    __slots__ = (
        "__weakref__", "_bell", "_durable", "_file", "_next", "_path", "_refusal",
        "_settled", "_size", "_unread", "last", "where",
    )  # fmt: skip

    def __init__(self, path: str, file: int, bell: str, *, durable: bool, is_new: bool) -> None:
        self.where = self._path = path
        self.last = b""
        self._bell = bell
        self._durable = durable
        self._refusal: RollcageError | None = None
        self._next = self._size = self._settled = 0  # bytes: with the line being written; written;
        # and known to be this writer's alone
        self._file = file if is_new else -1  # so that nothing is appended to lines unseen
        self._unread = file
        keep_from_children(self)

    @property
    def is_at_once(self) -> bool:
        return not self._durable

    @property
    def bell(self) -> int:
        count = _ring_count(self._bell)
        if not count:  # the log was not new
            raise StoreError(
                f"{self._bell} is gone: the store was moved or removed, and no order would reach "
                f"the run of {self.where}"
            )
        return count

    def hear(self) -> Callable[[], int] | None:
        return heard_at(f"{self._bell}.heard")

    def read(self) -> list[bytes]:
        return list(self.lines())

    def lines(self) -> Iterator[bytes]:
        file = self._unread
        if file < 0:
            raise self._refusal or TraceUnwritable(f"{self.where} is closed")
        end, line = 0, b""
        try:
            with open(file, "rb", _CHUNK, closefd=False) as reader:
                reader.seek(0)
                for each in reader:
                    if each[-1] != _NEWLINE or each[0] == _MARK[0]:
                        break  # torn, or a take-over was killed
                    line = each
                    end += len(line)
                    yield line
            if os.fstat(file).st_size > end:
                _log.warning("%s: its last line is torn, and is cut off", self.where)
                os.ftruncate(file, end)
        except OSError as error:
            raise _refused(f"{self.where} can't be read", error) from error
        self._next = self._size = self._settled = end
        self._file = file
        if line:
            self.last = line

    def append(self, line: bytes) -> None:
        self._next = size = self._size + len(line)
        try:
            written = os.write(self._file, line)
            if written != len(line):  # the next write says why
                _write_all(self._file, line[written:])
        except OSError as error:
            self._take_back(line, error)
        except BaseException:  # Ctrl-C: a line on record counts
            self._look(line, size)
            raise
        self._size = size  # no signal is handled between the write and these two
        self.last = line

    def wait(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._settled == self._size:
            return
        try:
            while True:
                size = self._size
                found = os.fstat(self._file)
                length = found.st_size
                if length == size or size == self._size == self._next:
                    break  # else a line was appended meanwhile, by another thread
            if self._durable:
                _sync_data(self._file)
        except OSError as error:  # the next try might say that all is well
            raise self._refuse(
                TraceUnwritable(f"{self.where} can't be written: {_describe(error)}")
            ) from error
        if length != size or not found.st_nlink:
            raise self._refuse(Fenced(_taken(self.where, found)))
        self._settled = size

    async def settled(self) -> None:
        if self._durable:
            await in_thread(self.wait)
        else:
            self.wait()

    def replace(self, lines: Sequence[bytes]) -> None:
        self.wait()
        folder = self._path.rpartition("/")[0]
        try:
            with _locked(f"{folder}/.take"):  # nobody takes it over meanwhile
                self.wait()
                part = f"{folder}/.part"
                new = _open_file(part, _REPLACE)
                try:
                    fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _write_all(new, b"".join(lines))
                    if self._durable:
                        os.fsync(new)
                    os.replace(part, self._path)  # noqa: PTH105 - a Path is slow to make
                    if self._durable:
                        _sync_one(folder)
                except BaseException:
                    os.close(new)
                    raise
        except OSError as error:
            failed = TraceUnwritable(f"{self.where} can't be replaced: {_describe(error)}")
            raise failed from error
        os.close(self._unread)
        self._file = self._unread = new
        self._next = self._size = self._settled = sum(map(len, lines))
        self.last = lines[-1] if lines else b""

    def close(self) -> None:
        if self._unread < 0:
            return
        try:
            if self._file >= 0:
                self.wait()
        finally:
            if not self._size and self._file >= 0:  # a run that never began leaves no file
                with contextlib.suppress(OSError):
                    if not os.fstat(self._file).st_size and _is_at(self._path, self._file):
                        os.unlink(self._path)  # noqa: PTH108 - a Path is slow to make
            self._refuse(TraceUnwritable(f"{self.where} is closed"))

    def forked(self) -> None:
        """Leave the file, and its lock, to the parent process."""
        self._refuse(
            Forked(
                f"{self.where} is written by process {os.getppid()}, and this is a forked child of "
                f"it: open a session of its own here"
            )
        )

    def __del__(self) -> None:
        if getattr(self, "_unread", -1) >= 0:  # a session that is collected with it may still write
            self._refuse(TraceUnwritable(f"{self.where} is closed"))

    def _refuse(self, refusal: RollcageError) -> RollcageError:
        """Take no further line, for this reason, and leave the file to another writer."""
        if self._refusal is None:
            self._refusal = refusal
        file, self._file, self._unread = self._unread, -1, -1  # before another thread closes it
        if file >= 0:
            os.close(file)
        return self._refusal

    def _take_back(self, line: bytes, error: OSError) -> NoReturn:
        """Cut off the written part of a line that can't be written."""
        if self._refusal is not None:
            raise self._refusal
        if self._file < 0:
            raise self._refuse(Fenced(f"{self.where} has lines that this writer has not read"))
        failed = TraceUnwritable(f"{self.where} can't be written: {_describe(error)}")
        if error.errno not in _FULL:
            raise self._refuse(failed) from error
        with contextlib.suppress(OSError):
            found = os.fstat(self._file)
            if found.st_nlink and 0 <= found.st_size - self._size < len(line):
                os.ftruncate(self._file, self._size)
                self._next = self._size
                raise failed from error
        raise self._refuse(failed) from error

    def _look(self, line: bytes, size: int) -> None:
        """Find out whether a line is on record after its write was interrupted."""
        with contextlib.suppress(OSError):
            found = os.fstat(self._file)
            if found.st_nlink and found.st_size == size:
                self._size = size
                self.last = line
            elif not found.st_nlink or found.st_size != size - len(line):
                self._refuse(Fenced(_taken(self.where, found)))
            self._next = self._size


class Folder:
    """Keep a store in a folder. See `Store` for the promises.

    Args:
        root: the folder; the first write makes it.
        durability: with `os`, recorded lines survive the death of the process; with `disk`, also a
            power cut, for about a millisecond per intent.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, durability: Literal["os", "disk"] = "os"
    ) -> None:
        if durability not in ("os", "disk"):
            raise StoreInvalid(f"the durability of a folder is 'os' or 'disk', not {durability!r}")
        whole = os.fspath(root)
        if not os.path.isabs(whole):  # noqa: PTH117 - a Path is slow, for each session
            whole = os.path.join(os.getcwd(), whole)  # noqa: PTH109, PTH118
        self.root: Final = os.path.normpath(whole)
        self.durability: Final = durability
        self._log_folder: Final = f"{self.root}/logs"
        self._docs: Final = f"{self.root}/docs"
        self._bell: Final = f"{self.root}/bell"
        self._durable: Final = durability == "disk"
        self._is_named = False  # whether its own name is known to be on the disk

    def __repr__(self) -> str:
        return f"Folder({self.root!r})"

    @property
    def url(self) -> str:
        return self.root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def open(self, run: str, *, take: bool = False) -> FolderLog:
        path = self.path_of(run)
        own_folders.add(self.root)
        try:
            file = self._opened(path) or self._taken_over(path, take=take)
            is_new = not os.fstat(file).st_size
            if is_new and self._durable:
                self._sync_folder(self._log_folder)
        except OSError as error:
            raise _refused(f"{path} can't be opened", error) from error
        try:
            if not _ring_count(self._bell):
                os.close(_open_file(self._bell, _APPEND))
        except OSError as error:
            os.close(file)
            raise _refused(f"{self._bell} can't be made", error) from error
        return FolderLog(path, file, self._bell, durable=self._durable, is_new=is_new)

    def read(self, run: str, after: int = 0) -> list[bytes]:
        path = self.path_of(run)
        try:
            with _reading(path) as file:
                if after < 0:
                    lines = _last_lines(file, -after)
                else:
                    with open(file, "rb", _CHUNK, closefd=False) as reader:
                        lines = reader.readlines()
        except (FileNotFoundError, NotADirectoryError):
            lines = []
        except OSError as error:
            raise _refused(f"{path} can't be read", error) from error
        _torn(lines)
        if not lines:
            raise RunNotFound(f"there is no run {run} in {self.root}")
        return lines[after:]

    def runs(self, before: str = "", limit: int = 1000) -> list[Ends]:
        try:
            names = [name for name in os.listdir(self._log_folder) if name.endswith(".jsonl")]  # noqa: PTH208
            long = {self._id_of(name): name for name in names if name[0] == "~"}
            ids = [
                key_of(name[:-6]) if "%" in name else name[:-6] for name in names if name[0] != "~"
            ]
            ids += [run for run in long if run]
            found: list[Ends] = []
            for run in sorted(ids, reverse=True):
                if len(found) == limit:
                    break
                if before and run >= before:
                    continue
                ends = self._ends(run, long.get(run) or f"{file_name(run)}.jsonl")
                if ends is not None:
                    found.append(ends)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _refused(f"{self._log_folder} can't be listed", error) from error
        return found

    def ends(self, run: str) -> Ends:
        path = self.path_of(run)
        try:
            found = self._ends(run, path.rpartition("/")[2])
        except OSError as error:
            raise _refused(f"{path} can't be read", error) from error
        if found is None:
            raise RunNotFound(f"there is no run {run} in {self.root}")
        return found

    def is_live(self, run: str) -> bool:
        path = self.path_of(run)
        try:
            with _reading(path) as file:
                return has_writer(file)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _refused(f"{path} can't be looked at", error) from error

    def get(self, kind: str, key: str) -> bytes | None:
        check_key(kind, key)
        return self._value(f"{self._docs}/{kind}/{file_name(key)}", key)

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        check_key(kind, key)
        folder = f"{self._docs}/{kind}"
        path = f"{folder}/{file_name(key)}"
        try:
            with _locked(f"{folder}/.lock"):
                swapped = self._value(path, key) == was
                if swapped and new != was:
                    self._put(path, key, new)
                if kind == "orders":  # covers a process that died between its order and its bell
                    self._ring()
        except OSError as error:
            raise _refused(f"{path} can't be changed", error) from error
        return swapped

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> list[str]:
        check_key(kind, after or "-")
        folder = f"{self._docs}/{kind}"
        try:
            found = (_key_of(folder, name) for name in os.listdir(folder))  # noqa: PTH208
            return sorted(key for key in found if key is not None and key > after)[:limit]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _refused(f"{folder} can't be listed", error) from error

    def bell(self) -> int:
        return _ring_count(self._bell)

    def path_of(self, run: str) -> str:
        """Return the path of the file with a run's log."""
        check_run(run)
        return f"{self._log_folder}/{file_name(run)}.jsonl"

    def _ends(self, run: str, name: str) -> Ends | None:
        """Return the first and last line of a file; None without a file or a whole line."""
        try:
            with _reading(f"{self._log_folder}/{name}") as file:
                data = os.pread(file, _END, 0)
                if len(data) < _END:
                    last = io.BytesIO(data).readlines()
                    first = last[0] if last else b""
                else:
                    last, first = _last_lines(file, 1), _first_line(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        _torn(last)
        return Ends(run, first, last[-1]) if last else None

    def _id_of(self, name: str) -> str:
        """Return the id of a run whose file is named by a hash, from its first line."""
        try:
            with _reading(f"{self._log_folder}/{name}") as file:
                run = str(orjson.loads(_first_line(file))["run"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return ""
        return run if f"{file_name(run)}.jsonl" == name else ""

    def _opened(self, path: str) -> int | None:
        """Open and lock the file of a run; None if another writer has the lock."""
        while True:
            file = _open_file(path, _APPEND)
            try:
                is_mine = take_lock(file)
                if is_mine and _is_at(path, file):  # it was not replaced between these two lines
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)
            if not is_mine:
                return None

    def _taken_over(self, path: str, *, take: bool) -> int:
        """Replace a run's file by a locked copy, and mark the old file."""
        if not take:
            raise RunInUse(
                f"the run of {path} has a live writer; its lock ends with its process. To go on "
                f"with it here all the same, take it over"
            )
        with _locked(f"{self._log_folder}/.take"):
            file = self._opened(path)
            if file is not None:  # its writer is gone
                return file
            old = _open_file(path, _APPEND & ~os.O_CREAT)
            try:
                while True:
                    mark = _marked(old)
                    copy = self._copied(old, mark, path)
                    if os.pread(old, 1, mark) == _MARK:
                        return copy
                    os.close(copy)  # its writer took a line back, and with it the mark
            finally:
                os.close(old)

    def _copied(self, old: int, length: int, path: str) -> int:
        """Copy the beginning of a file to a new, locked file of the same name."""
        part = f"{self._log_folder}/.part"
        copy = _open_file(part, _REPLACE)
        try:
            fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for at in range(0, length, _CHUNK):
                _write_all(copy, os.pread(old, min(_CHUNK, length - at), at))
            if self._durable:
                os.fsync(copy)
            os.replace(part, path)  # noqa: PTH105 - a Path is slow to make
            if self._durable:
                self._sync_folder(self._log_folder)
        except BaseException:
            os.close(copy)
            raise
        return copy

    def _value(self, path: str, key: str) -> bytes | None:
        try:
            file = _open_file(path, os.O_RDONLY)
            try:
                data = _read_all(file)
            finally:
                os.close(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _refused(f"{path} can't be read", error) from error
        head, _, value = data.partition(b"\n")
        if head != _head_of(key, value):
            raise StoreError(
                f"{path} is damaged: its first line does not tell its key and the hash of the rest."
                f" Put it back from a copy; if there is none, remove it, and look at the runs that "
                f"it may have been of"
            )
        return value

    def _put(self, path: str, key: str, new: bytes | None) -> None:
        """Write a whole value at a path, or remove it; the caller holds the lock of the folder."""
        folder = path.rpartition("/")[0]
        if new is None:
            os.unlink(path)  # noqa: PTH108 - a Path is slow to make
        else:
            part = f"{folder}/.part"
            file = _open_file(part, _REPLACE)
            try:
                _write_all(file, _head_of(key, new) + b"\n" + new)
                if self._durable:
                    os.fsync(file)
            finally:
                os.close(file)
            os.replace(part, path)  # noqa: PTH105 - a Path is slow to make
        if self._durable:
            self._sync_folder(folder)

    def _ring(self) -> None:
        file = _open_file(self._bell, _APPEND)
        try:
            os.write(file, b".")
        finally:
            os.close(file)
        ring_at(f"{self._bell}.heard")

    def _sync_folder(self, folder: str) -> None:
        """Wait until the names in a folder, and the names of its parents, are on the disk.

        The store's own name is synced once, too: a power cut could otherwise take the whole store.
        """
        while len(folder) >= len(self.root):
            _sync_one(folder)
            folder = folder.rpartition("/")[0]
        if not self._is_named:
            with contextlib.suppress(PermissionError):  # another user's folder
                _sync_one(folder or "/")
            self._is_named = True


def _sync_one(folder: str) -> None:
    """Wait until the names in one folder are on the disk."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _key_of(folder: str, name: str) -> str | None:
    """Return the key of a file; None if the file is no value."""
    if name[0] == "~":
        try:
            with _reading(f"{folder}/{name}") as file:
                key = str(orjson.loads(_read_all(file).partition(b"\n")[0])["key"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
    else:
        key = key_of(name)
    return key if key and file_name(key) == name else None


def _head_of(key: str, value: bytes) -> bytes:
    """Return the first line of a value's file."""
    return orjson.dumps({"key": key, "sha256": sha256(value).hexdigest()})


def _ring_count(path: str) -> int:
    """Return the number of a bell; 0 without a bell."""
    try:
        found = os.stat(path)  # noqa: PTH116 - of a text, for each write
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise _refused(f"{path} can't be looked at", error) from error
    return hash((found.st_ino, found.st_size, found.st_mtime_ns))


def _torn(lines: list[bytes]) -> int:
    """Remove the bytes behind the last whole line; return how many."""
    end = len(lines)
    if lines and lines[-1][-1:] != b"\n":
        end -= 1
    for number, line in enumerate(lines):
        if line[0] == _MARK[0]:  # a take-over was killed
            end = number
            break
    cut = sum(map(len, lines[end:]))
    del lines[end:]
    return cut


def _taken(where: str, found: os.stat_result) -> str:
    if found.st_nlink:
        return f"{where} is written by another session, which took its run over, or was changed"
    return f"{where} was replaced by another session, which took its run over, or was removed"


def _marked(file: int) -> int:
    """Mark the end of a file, so its writer is refused; return the offset of the mark."""
    os.write(file, _MARK)
    return os.lseek(file, 0, os.SEEK_CUR) - len(_MARK)  # behind any line appended just now


def _first_line(file: int) -> bytes:
    """Return the first line of a file, torn or not."""
    with open(file, "rb", closefd=False) as reader:
        reader.seek(0)
        return reader.readline()


def _last_lines(file: int, count: int) -> list[bytes]:
    """Return the last lines of a file, and the torn line behind them."""
    size = os.fstat(file).st_size
    length = _END
    while True:
        start = max(size - length, 0)
        lines = io.BytesIO(os.pread(file, size - start, start)).readlines()
        if not start:
            return lines
        if len(lines) > count + 3:  # two that may not count, and one without its beginning
            return lines[1:]
        length *= 4


def take_lock(file: int) -> bool:
    """Take the lock of an open file; False if a writer has it.

    A check holds the lock for a moment, shared with other checks: that moment is waited for.

    Raises:
        OSError: the file can't be locked.
    """
    until = time.monotonic() + _CHECKED
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if has_writer(file) or time.monotonic() > until:
                return False
        else:
            return True
        time.sleep(_PAUSE)


def has_writer(file: int) -> bool:
    """Tell whether a writer has the lock of a file; the caller must not have it.

    Raises:
        OSError: the lock can't be checked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of a file, made if missing."""
    until = time.monotonic() + _PATIENCE
    pause = 0.001
    while True:
        file = _open_file(path, _APPEND)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                yield
                return
            continue
        except BlockingIOError:
            if time.monotonic() > until:
                raise StoreError(
                    f"{path} is locked for {_PATIENCE:.0f} seconds: a process that was stopped "
                    f"while it had it has to go on, or to end"
                ) from None
        finally:
            os.close(file)
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[int]:
    """Open a file for reading."""
    file = _open_file(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def _open_file(path: str, flags: int) -> int:
    """Open a file of the store; one that is made, with the missing folders around it."""
    try:
        file = os.open(path, flags | _CARE, 0o600)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
        _make_folder(path.rpartition("/")[0])
        file = os.open(path, flags | _CARE, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a file", path)
    return file


def _make_folder(path: str) -> None:
    """Make a folder, and missing parents, for the owner alone."""
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102 - a Path is slow to make
    except FileExistsError:
        pass
    except FileNotFoundError:
        _make_folder(path.rpartition("/")[0])
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)  # noqa: PTH102


def _is_at(path: str, file: int) -> bool:
    """Tell whether a path still names an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))  # noqa: PTH116
    except FileNotFoundError:
        return False


def _read_all(file: int) -> bytes:
    parts = []
    while part := os.read(file, _CHUNK):
        parts.append(part)
    return b"".join(parts)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _describe(error: OSError) -> str:
    """Describe an error of the system by text and name, with a remedy."""
    number = error.errno or 0
    text = f"{error.strerror or error} ({errno.errorcode.get(number, number)})"
    return f"{text}: {_NEXT[number]}" if number in _NEXT else text


def _refused(text: str, error: OSError) -> StoreError:
    read_only = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    return (StoreReadOnly if read_only else StoreError)(f"{text}: {_describe(error)}")
