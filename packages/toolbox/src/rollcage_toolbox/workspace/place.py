"""One name in one open directory: every access to a file goes through it.

No path is ever given to the operating system: only single names, relative to a directory that is
held open (`dir_fd`), and never through a symbolic link (`O_NOFOLLOW`). A file that is swapped in
between two steps is either the inspected one, or is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from typing import Final

from rollcage_toolbox.errors import LimitExceeded
from rollcage_toolbox.store_files import is_linked
from rollcage_toolbox.workspace.images import ABSENT, Image, Settings, dir_image, file_image
from rollcage_toolbox.workspace.names import TEMPORARY
from rollcage_toolbox.workspace.refusals import (
    refusal,
    refuse_inexact,
    refuse_special,
    refuse_store,
    refuse_twin,
)

__all__ = ["NamedPlace", "enter", "remove_tree", "sweep"]

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LOCK: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PRIVILEGED: Final = stat.S_ISUID | stat.S_ISGID
_CHUNK: Final = 2**20


def _opened(fd: int, name: str, flags: int, mode: int = 0o777) -> int:
    """Open a name in an open directory.

    The audit event of `os.open` does not tell the directory: without the extra event, a session
    that holds tools to their permissions could not identify the file.
    """
    sys.audit("rollcage.dir_fd", fd)
    return os.open(name, flags, mode, dir_fd=fd)


def enter(fd: int, name: str, path: str) -> int:
    """Open a directory of that name in an open directory.

    Raises:
        FileNotFoundError: the name does not exist.
        NotADirectoryError: the name is something else.
        PathRefused: the name is a symbolic link, or a directory's name in another spelling.
    """
    try:
        inner = _opened(fd, name, _DIRECTORY)
    except FileNotFoundError:
        refuse_twin(fd, name, path)
        raise FileNotFoundError(errno.ENOENT, "no such directory in the workspace", path) from None
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        with contextlib.suppress(FileNotFoundError):
            refuse_special(os.stat(name, dir_fd=fd, follow_symlinks=False), path)
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", path) from None
    try:
        refuse_inexact(fd, name, os.fstat(inner), path)
        refuse_store(fd, name, path)
    except BaseException:
        os.close(inner)
        raise
    return inner


@dataclasses.dataclass(frozen=True)
class NamedPlace:
    """A name in an open directory.

    Attributes:
        fd: the directory.
        name: one name in it.
        path: the whole path, for messages and keys.
        settings: the settings of the workspace.
    """

    fd: int
    name: str
    path: str
    settings: Settings

    # --- looking ---------------------------------------------------------------------------------

    def status(self) -> os.stat_result | None:
        """Return the status of the regular file or directory; None if nothing exists.

        Raises:
            PathRefused: it is anything else, or a file's name in another spelling.
        """
        try:
            found = os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            refuse_twin(self.fd, self.name, self.path)
            return None
        refuse_special(found, self.path)
        refuse_inexact(self.fd, self.name, found, self.path)
        if stat.S_ISDIR(found.st_mode):
            refuse_store(self.fd, self.name, self.path)
        return found

    @contextlib.contextmanager
    def opened(self, *, reading: bool) -> Iterator[tuple[int, os.stat_result]]:
        """Give the existing regular file, opened for reading.

        Args:
            reading: whether it is only read; a file to be changed may have no second name.
        """
        status = self.status()
        if status is None:
            raise FileNotFoundError(errno.ENOENT, "no such file in the workspace", self.path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a directory, not a file", self.path)
        try:
            fd = _opened(self.fd, self.name, _FILE)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO}:  # swapped since it was inspected
                raise refusal("a symbolic link or a device", self.path, "path_symlink") from None
            raise
        try:
            yield fd, self._sound(os.fstat(fd), reading=reading)
        finally:
            os.close(fd)

    def _sound(self, status: os.stat_result, *, reading: bool) -> os.stat_result:
        if not stat.S_ISREG(status.st_mode):
            raise refusal("no regular file", self.path, "path_special")
        if status.st_nlink > 1 and is_linked(status):
            raise refusal("another name of a store's file", self.path, "path_store")
        if status.st_nlink > 1 and not (reading and self.settings.read_hard_links):
            raise refusal("a file with a second name (hard link)", self.path, "path_hard_link")
        if status.st_mode & _PRIVILEGED and not reading:
            raise refusal("a set-user-id or set-group-id file", self.path, "path_special")
        return status

    def read(self, limit: int, *, reading: bool) -> tuple[bytes, int]:
        """Return the content and the mode of the existing file.

        Raises:
            LimitExceeded: it has more than `limit` bytes.
        """
        with self.opened(reading=reading) as (fd, status):
            data = bytearray()
            while chunk := os.read(fd, min(_CHUNK, limit + 1 - len(data))):
                data += chunk
                if len(data) > limit:
                    raise LimitExceeded(
                        f"{self.path!r} has more than {limit} bytes, which is the limit here"
                    )
            return bytes(data), stat.S_IMODE(status.st_mode)

    def digest(self, limit: int) -> tuple[str, int]:
        """Return the SHA-256 and the size of the existing file, read piece by piece."""
        digest, size = hashlib.sha256(), 0
        with self.opened(reading=True) as (fd, _):
            while chunk := os.read(fd, _CHUNK):
                size += len(chunk)
                if size > limit:
                    raise LimitExceeded(f"{self.path!r} has more than {limit} bytes")
                digest.update(chunk)
        return digest.hexdigest(), size

    def image(self, *, reading: bool = False) -> Image:
        """Return the current state, as data."""
        status = self.status()
        if status is None:
            return ABSENT
        if stat.S_ISDIR(status.st_mode):
            return dir_image(stat.S_IMODE(status.st_mode))
        return file_image(*self.read(self.settings.limits.file_bytes, reading=reading))

    # --- changing --------------------------------------------------------------------------------

    @property
    def temporary(self) -> str:
        """Return the name of the unfinished file: one for each name, so that it can be found."""
        return TEMPORARY + hashlib.sha256(self.name.encode()).hexdigest()[:32]

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Lock the name against other changes; give the file for the new content.

        A lock ends with its process. A killed process's file is reused, or removed.
        """
        fd = self._take_lock()
        try:
            remove_tree(self.fd, self.temporary + ".d")
            yield fd
        finally:
            self._drop(fd)

    def _take_lock(self) -> int:
        while True:
            fd = _opened(self.fd, self.temporary, _LOCK | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                    raise refusal("kept by a foreign file", self.path, "path_hard_link")
                if _is_called(self.fd, self.temporary, status):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # renamed or removed while this waited for it

    def _drop(self, fd: int) -> None:
        try:
            if _is_called(self.fd, self.temporary, os.fstat(fd)):
                os.unlink(self.temporary, dir_fd=self.fd)
        finally:
            os.close(fd)

    def sweep(self) -> None:
        """Remove unfinished files of killed processes here; leave files of live processes."""
        sweep(self.fd, self.temporary)

    def replace(self, temporary: int, data: bytes, mode: int) -> None:
        """Put a file there in one step: readers see the old or the new file, whole."""
        os.ftruncate(temporary, 0)
        _write(temporary, data)
        os.fchmod(temporary, mode)
        if self.settings.sync:
            os.fsync(temporary)
        os.rename(self.temporary, self.name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        self.synced()

    def become(self, temporary: int | None, was: Image, will: Image) -> None:
        """Turn the state before into the state after; `temporary` is the result of `locked`.

        Raises:
            OSError: a directory that is not empty can't be removed; kinds don't turn into each
                other.
        """
        if was == will:
            return
        kinds = was["kind"], will["kind"]
        if kinds in {("dir", "file"), ("file", "dir")}:
            raise FileExistsError(errno.EEXIST, f"there is a {was['kind']} in its place", self.path)
        if will["kind"] == "file":
            assert temporary is not None
            self.replace(temporary, will["data"], will["mode"])
            return
        if kinds == ("file", "absent"):
            os.unlink(self.name, dir_fd=self.fd)
        elif kinds == ("dir", "absent"):
            self._remove_directory()
        else:
            if was["kind"] == "absent":
                os.mkdir(self.name, 0o700, dir_fd=self.fd)
            inner = enter(self.fd, self.name, self.path)
            try:
                os.fchmod(inner, will["mode"])
            finally:
                os.close(inner)
        self.synced()

    def _remove_directory(self) -> None:
        try:
            os.rmdir(self.name, dir_fd=self.fd)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            raise OSError(errno.ENOTEMPTY, "the directory is not empty", self.path) from None

    def make(self, image: Image) -> None:
        """Make something in a directory that no other process knows yet."""
        if image["kind"] == "dir":
            self.become(None, ABSENT, image)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = _opened(self.fd, self.name, flags, 0o600)
        try:
            _write(fd, image["data"])
            os.fchmod(fd, image["mode"])
            if self.settings.sync:
                os.fsync(fd)
        finally:
            os.close(fd)

    def synced(self) -> None:
        """Flush the directory to the disk, if the workspace must survive a power loss."""
        if self.settings.sync:
            os.fsync(self.fd)


def sweep(fd: int, temporary: str) -> None:
    """Remove a killed process's unfinished file with this temporary name in an open directory."""
    try:
        left = _opened(fd, temporary, _LOCK)
    except OSError:
        return  # it does not exist, or is not ours
    try:
        fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(left)
        ours = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if ours and _is_called(fd, temporary, status):
            remove_tree(fd, temporary + ".d")
            os.unlink(temporary, dir_fd=fd)
    except BlockingIOError:
        pass  # its process is alive
    finally:
        os.close(left)


def _is_called(fd: int, name: str, status: os.stat_result) -> bool:
    try:
        named = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, status)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def remove_tree(fd: int, name: str) -> None:
    """Remove one of our own unfinished directories with its content, following no link."""
    try:
        inner: int = _opened(fd, name, _DIRECTORY)
    except OSError:
        return  # it does not exist; a file or a link with that name is not ours
    try:
        for each in os.listdir(inner):
            if stat.S_ISDIR(os.stat(each, dir_fd=inner, follow_symlinks=False).st_mode):
                remove_tree(inner, each)
            else:
                os.unlink(each, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=fd)
