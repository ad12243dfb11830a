"""The control page of a run: a file beside its trace, by which other processes tell it to stop.

Its first byte says whether there is an order, the rest is the order as JSON. Who writes the run has
the page mapped, so that a look costs no system call. Whoever changes it holds its OS lock, and
writes the order before the byte. The page belongs on a local disk, as the trace's lock does.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from rollcage.errors import StoreError
from rollcage.store.protocol import StopOrder

__all__ = ["ControlPage", "give_order", "lift_order", "read_order"]

_PAGE: Final = 4096  # bytes
_ORDERED: Final = 1


class ControlPage:
    """The control page of a run that this process writes, mapped.

    Raises:
        StoreError: it can't be made or mapped: a run that can't be stopped does not begin.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with _locked(path, make=True) as descriptor:
                if os.fstat(descriptor).st_size < _PAGE:
                    os.ftruncate(descriptor, _PAGE)
                self._page = mmap.mmap(descriptor, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as error:
            raise StoreError(f"{path} can't be used: {error.strerror}") from error

    def order(self) -> StopOrder | None:
        """The order to stop, if there is one now."""
        try:
            return _parse(self._page[:]) if self._page[0] else None
        except ValueError:  # closed: nothing runs in it any more
            return None

    def close(self, *, keep: bool = False) -> None:
        """Give the page up; one without an order goes, unless it is another process's to `keep`."""
        self._page.close()
        if keep:
            return
        with contextlib.suppress(OSError), _locked(self._path) as descriptor:
            if os.pread(descriptor, 1, 0) in (b"", b"\0"):
                self._path.unlink()


def read_order(path: Path) -> StopOrder | None:
    """The order to stop in a control page, if there is one.

    Raises:
        StoreError: nobody can tell: the page is there, and can't be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}") from error
    return _parse(data) if data[:1] not in (b"", b"\0") else None


def give_order(path: Path, order: StopOrder) -> None:
    """Put an order into a control page, which is made if need be; a second replaces the first.

    Raises:
        StoreError: the page can't be written; there is no order, or the former one.
    """
    fields = {
        "run": order.run,
        "by": _writable(order.by),
        "reason": _writable(order.reason),
        "time": order.time,
    }
    body = orjson.dumps(fields).ljust(_PAGE - 1, b"\0")
    if len(body) >= _PAGE:
        raise StoreError("the reason is too long; say it in fewer words")
    try:
        with _locked(path, make=True) as descriptor:
            os.pwrite(descriptor, body, 1)
            os.pwrite(descriptor, bytes([_ORDERED]), 0)
            os.fsync(descriptor)
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror}") from error


def lift_order(path: Path, run: str) -> bool:
    """Take back the order that was given to `run`; whether there was one in this page.

    The page itself stays: the run's writer may have it mapped.

    Raises:
        StoreError: the page can't be written.
    """
    try:
        with _locked(path) as descriptor:
            data = os.pread(descriptor, _PAGE, 0)
            found = _parse(data) if data[:1] not in (b"", b"\0") else None
            if found is None or found.run not in ("", run):
                return False
            os.pwrite(descriptor, b"\0", 0)
            os.fsync(descriptor)
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror}") from error


def _parse(data: bytes) -> StopOrder:
    """The order in a page; one that can't be read is an order all the same."""
    try:
        fields = orjson.loads(data[1:].rstrip(b"\0"))
        run, by, reason = (str(fields[name]) for name in ("run", "by", "reason"))
        return StopOrder(run, by, reason, max(int(fields["time"]), 0))
    except (ValueError, TypeError, KeyError):
        return StopOrder("", "", "its control page is damaged", 0)


def _writable(text: str) -> str:
    """A text without what UTF-8 can't hold (lone surrogates)."""
    return text.encode("utf-8", "replace").decode()


@contextlib.contextmanager
def _locked(path: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the page, with its OS lock. Not of one that was removed meanwhile."""
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    while True:
        descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                yield descriptor
                return
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a mapping keeps a descriptor of its own
            os.close(descriptor)
