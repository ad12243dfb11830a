"""A folder seen through one open directory: the way to every place in it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from rollcage_toolbox.errors import LimitExceeded, PathRefused
from rollcage_toolbox.store_files import is_database, is_store, is_store_file
from rollcage_toolbox.workspace.images import ABSENT, Image, Images, Settings, dir_image
from rollcage_toolbox.workspace.names import TEMPORARY, parts, usable
from rollcage_toolbox.workspace.place import NamedPlace, enter, sweep
from rollcage_toolbox.workspace.refusals import in_store, refuse_store

__all__ = ["Found", "Tree"]


class Found(NamedTuple):
    """An entry found on a walk."""

    path: str  # relative to the start of the walk
    status: os.stat_result
    place: NamedPlace


class Tree:
    """A folder, by a descriptor that was opened once.

    Each access starts there and descends name by name. Nothing above the folder can be named.
    """

    def __init__(self, fd: int, settings: Settings) -> None:
        self.fd = fd
        self.settings = settings

    @contextlib.contextmanager
    def directory(self, names: tuple[str, ...]) -> Iterator[int]:
        """Give the directory at the end of these names, opened."""
        if in_store(self.fd):
            raise PathRefused("the workspace's folder is a part of a store", "path_store")
        fd = os.dup(self.fd)
        try:
            for depth, name in enumerate(names, 1):
                inner = enter(fd, name, "/".join(names[:depth]))
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def place(self, path: str) -> Iterator[NamedPlace]:
        """Give a place in the folder; its directory must exist."""
        *above, name = parts(path)
        with self.directory(tuple(above)) as fd:
            refuse_store(fd, name, path)
            yield NamedPlace(fd, name, path, self.settings)

    def image(self, path: str, *, reading: bool = False) -> Image:
        """Return the state of a path, as data.

        If a directory on the way is missing, nothing exists.
        """
        try:
            with self.place(path) as place:
                return place.image(reading=reading)
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT

    def sweep(self, path: str) -> None:
        """Remove unfinished files of killed processes at a path."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self.place(path) as place:
            place.sweep()

    def sweep_all(self) -> None:
        """Remove unfinished files of killed processes anywhere in the folder."""
        _sweep(self.fd)
        for found in self.walk(()):
            if stat.S_ISDIR(found.status.st_mode) and usable(found.place.name):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    inner = enter(found.place.fd, found.place.name, found.path)
                    try:
                        _sweep(inner)
                    finally:
                        os.close(inner)

    def listing(self, fd: int) -> list[str]:
        """Return the names in an open directory, without unfinished files."""
        return sorted(each for each in os.listdir(fd) if not each.startswith(TEMPORARY))

    def walk(self, names: tuple[str, ...]) -> Iterator[Found]:
        """Yield everything below a directory, parents first, each directory's entries by name.

        Links are yielded, and never followed.

        Raises:
            LimitExceeded: there are more entries than the limit.
        """
        limit = self.settings.limits.entries
        with self.directory(names) as fd:
            for count, found in enumerate(self._walk(fd, "", len(names)), 1):
                if count > limit:
                    raise LimitExceeded(f"more than {limit} entries: name a smaller directory")
                yield found

    def _walk(self, fd: int, above: str, depth: int) -> Iterator[Found]:
        own = is_store(fd)
        for name in self.listing(fd):
            if (own and is_store_file(name)) or is_database(fd, name):
                continue
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue  # it was removed in between
            path = above + name
            yield Found(path, status, NamedPlace(fd, name, path, self.settings))
            if stat.S_ISDIR(status.st_mode) and usable(name):
                if depth >= 63:
                    raise LimitExceeded(f"{path!r} is nested too deep")
                try:
                    inner = enter(fd, name, path)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except PathRefused as refused:
                    if refused.code != "path_store":
                        raise
                    continue  # yielded, and never entered
                try:
                    yield from self._walk(inner, f"{path}/", depth + 1)
                finally:
                    os.close(inner)

    def subtree(self, names: tuple[str, ...], *, reading: bool) -> Images:
        """Return everything below a directory as images, by its path in it.

        Raises:
            PathRefused: it contains a link, a device, or an unusable name.
            LimitExceeded: it is more than an archive may hold.
        """
        images: Images = {}
        limits, size = self.settings.limits, 0
        for found in self.walk(names):
            parts(found.path)
            if found.place.status() is None:
                continue
            if stat.S_ISDIR(found.status.st_mode):
                images[found.path] = dir_image(stat.S_IMODE(found.status.st_mode))
            else:
                images[found.path] = found.place.image(reading=reading)
                size += images[found.path].get("size", 0)
            if size > limits.archive_bytes or len(images) > limits.archive_entries:
                raise LimitExceeded(
                    f"more than {limits.archive_bytes} bytes or {limits.archive_entries} entries"
                )
        return images


def _sweep(fd: int) -> None:
    for name in os.listdir(fd):
        if name.startswith(TEMPORARY):
            sweep(fd, name)
