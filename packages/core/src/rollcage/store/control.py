"""The control page of a run: a file next to its trace, by which other processes stop or pause it.

It is one byte long, 0, while there is no order. With one, its first byte is 1, and the order
follows as JSON. Whoever changes it holds its OS lock, and writes the order before the byte. Who
writes the run has it open, and looks at it before each call. It is read and not mapped, so that who
cuts it off can't kill the interpreter. It belongs on a local disk, as the trace's lock does.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import orjson

from rollcage.errors import ControlLost, StoreError
from rollcage.store import disk, system
from rollcage.store.protocol import OrderKind, StopOrder

__all__ = ["ControlPage", "give_order", "lift_order", "read_order"]

_PAGE: Final = 4096  # bytes, with an order
_NONE: Final = b"\0"
_ORDERED: Final = b"\1"


class ControlPage:
    """The control page of a run that this process writes.

    Raises:
        StoreError: it can't be made: a run that can't be stopped does not begin.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()  # whatever the process's folder comes to be
        self._name = str(self._path)
        try:
            with disk.locked(path, os.O_RDWR | os.O_CREAT) as descriptor:
                if system.files.pread(descriptor, 1, 0) in (b"", _NONE):
                    system.files.ftruncate(descriptor, len(_NONE))
                self._descriptor = disk.open_file(path, os.O_RDONLY)  # without the lock
        except OSError as error:
            raise StoreError(f"{path} can't be used: {disk.describe(error)}") from error

    def order(self) -> StopOrder | None:
        """The order, if there is one in the page that was opened."""
        try:
            flag = system.files.pread(self._descriptor, 1, 0)
        except OSError as error:
            if self._descriptor < 0:  # closed: nothing runs in it any more
                return None
            raise self._lost(error.strerror) from error
        return None if flag == _NONE else self.order_where_it_lies()

    def order_where_it_lies(self) -> StopOrder | None:
        """The order, if there is one in what has the page's name now.

        Raises:
            ControlLost: the page is gone or was cut: nobody could stop the run any more.
        """
        try:
            size = system.files.stat(self._name).st_size
        except OSError as error:
            raise self._lost(error.strerror) from error
        if size == len(_NONE):
            return None
        if not size:
            raise self._lost("it was cut off")
        try:
            return read_order(self._path)
        except StoreError as error:
            raise self._lost(str(error)) from error

    def _lost(self, reason: str | None) -> ControlLost:
        message = f"its control page {self._path} was changed by somebody else ({reason})"
        return ControlLost(self._path.stem, message)

    def close(self, *, keep: bool = False) -> None:
        """Give the page up; one without an order goes, unless it is another process's to `keep`."""
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            system.files.close(descriptor)
        if keep:
            return
        with contextlib.suppress(OSError), disk.locked(self._path, os.O_RDWR) as again:
            if system.files.pread(again, 1, 0) in (b"", _NONE):
                system.files.unlink(self._path)


def read_order(path: Path) -> StopOrder | None:
    """The order in a control page, if there is one.

    Raises:
        StoreError: it can't be determined: the page is there, and can't be read.
    """
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} can't be read: {disk.describe(error)}") from error
    return _parse(data) if data[:1] not in (b"", _NONE) else None


def give_order(path: Path, order: StopOrder) -> bool:
    """Put an order into a control page, which is made if need be; a second replaces the first.

    Returns:
        Whether it is there: no pause replaces a stop.

    Raises:
        StoreError: the page can't be written; there is no order, or the former one.
    """
    fields = {
        "run": order.run,
        "by": _writable(order.by),
        "reason": _writable(order.reason),
        "time": order.time,
        "kind": order.kind,  # who does not know of it takes a pause for a stop
    }
    body = orjson.dumps(fields).ljust(_PAGE - 1, b"\0")
    try:
        with disk.locked(path, os.O_RDWR | os.O_CREAT) as descriptor:
            former = _found(descriptor) if order.is_pause else None
            if former is not None and not former.is_pause:
                return False
            if (written := system.files.pwrite(descriptor, body, 1)) != len(body):
                system.files.pwrite(
                    descriptor, body[written:], 1 + written
                )  # or the error says why not
            system.files.pwrite(descriptor, _ORDERED, 0)
            system.files.fsync(descriptor)
            disk.keep_name(path)
    except OSError as error:
        raise StoreError(f"{path} can't be written: {disk.describe(error)}") from error
    return True


def lift_order(path: Path, run: str, kind: OrderKind | None = None) -> bool:
    """Withdraw the order that was given to `run`; whether there was one in this page.

    Of a `kind`, if one is given.

    The page itself stays: the run's writer may have it open.

    Raises:
        StoreError: the page can't be written.
    """
    try:
        with disk.locked(path, os.O_RDWR) as descriptor:
            found = _found(descriptor)
            if found is None or found.run not in ("", run) or kind not in (None, found.kind):
                return False
            system.files.pwrite(descriptor, _NONE, 0)
            system.files.ftruncate(descriptor, len(_NONE))
            system.files.fsync(descriptor)
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path} can't be written: {disk.describe(error)}") from error


def _found(descriptor: int) -> StopOrder | None:
    """The order in a page that is locked, if there is one."""
    data = system.files.pread(descriptor, _PAGE, 0)
    return _parse(data) if data[:1] not in (b"", _NONE) else None


def _parse(data: bytes) -> StopOrder:
    """The order in a page; one that can't be read is an order to stop."""
    try:
        fields = orjson.loads(data[1:].rstrip(b"\0"))
        run, by, reason = (str(fields[name]) for name in ("run", "by", "reason"))
        kind: OrderKind = "pause" if fields.get("kind") == "pause" else "stop"
        return StopOrder(run, by, reason, max(int(fields["time"]), 0), kind)
    except (ValueError, TypeError, KeyError, AttributeError):
        return StopOrder("", "", "its control page is damaged", 0)


def _writable(text: str) -> str:
    """A text without what UTF-8 can't hold (lone surrogates)."""
    return text.encode("utf-8", "replace").decode()
