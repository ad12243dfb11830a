"""How other processes stop or pause a live run of a directory store.

An order is in the run's control page, a file next to its trace. Whoever gives or lifts one writes
the page, then rings the store's bell: a file that grows by one byte. A live run looks at the bell
before each call, and reads its page where the bell is not as it was; so most runs have no page.

A page without an order is one byte, 0. With one, its first byte is 1, and the order follows as
JSON. Whoever changes it holds its OS lock, and writes the order before the byte. Page and bell
belong on a local disk, as the trace's lock does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from rollcage.errors import ControlLost, StoreError
from rollcage.store import disk, system
from rollcage.store.protocol import OrderKind, StopOrder

__all__ = ["Bell", "ControlPage", "give_order", "lift_order", "read_order"]

_PAGE: Final = 4096  # bytes, with an order
_NONE: Final = b"\0"
_ORDERED: Final = b"\1"
_RUNG: Final = b"!"


class _Heard(NamedTuple):
    """What a bell is: another one as soon as it has been rung."""

    inode: int
    size: int
    time: int


class _Seen(NamedTuple):
    """What a run has seen when it looked for an order last."""

    bell: _Heard  # looked at first, so that what is rung meanwhile is heard the next time
    page: bool  # whether there was one
    order: StopOrder | None


class Bell:
    """The file of a store by which its live runs learn that an order was given or lifted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)

    def heard(self) -> _Heard:
        """What it is now.

        Raises:
            OSError: it is gone, say.
        """
        found = system.files.stat(self._name)
        return _Heard(found.st_ino, found.st_size, found.st_mtime_ns)

    def made(self) -> _Heard:
        """What it is now, when it is there and can be rung; it is made if need be.

        Raises:
            StoreError: nobody could ring it.
        """
        self.ring(b"")
        try:
            return self.heard()
        except OSError as error:
            raise StoreError(f"{self.path} can't be read: {disk.describe(error)}") from error

    def ring(self, rung: bytes = _RUNG) -> None:
        """Let all live runs look at their pages; it is made if need be.

        Raises:
            StoreError: it can't be written.
        """
        try:
            descriptor = disk.open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                disk.write(descriptor, rung)
            finally:
                system.files.close(descriptor)
        except OSError as error:
            raise StoreError(f"{self.path} can't be written: {disk.describe(error)}") from error


class ControlPage:
    """The control page of a run that this process writes.

    Raises:
        StoreError: no order could be seen: a run that can't be stopped does not begin.
    """

    def __init__(self, path: Path, bell: Bell) -> None:
        self._path = path.absolute()  # whatever the process's folder comes to be
        self._bell = bell
        heard = bell.made()
        data = _read(path)
        self._seen = _Seen(heard, bool(data), _order_in(data))

    def order(self) -> StopOrder | None:
        """The order, if there is one.

        Raises:
            ControlLost: the bell or the page is gone or was cut: an order could go unseen.
        """
        seen, lost = self._seen, ""
        try:
            heard = self._bell.heard()
        except OSError as error:
            heard, lost = seen.bell, disk.describe(error)
        else:
            if heard == seen.bell:
                return seen.order
            if heard.inode != seen.bell.inode:
                lost = "another file was put in its place"
            elif heard.size < seen.bell.size:
                lost = "it was cut off"
        try:
            data = _read(self._path)
        except StoreError as error:
            raise self._lost(self._path, str(error)) from error
        order = _order_in(data)
        if order is None and lost:
            raise self._lost(self._bell.path, lost)
        if seen.page and not data:
            raise self._lost(self._path, "it was removed" if data is None else "it was cut off")
        if not lost:
            self._seen = _Seen(heard, bool(data), order)
        return order

    def _lost(self, file: Path, reason: str) -> ControlLost:
        message = f"{file}, by which it is stopped, was changed by somebody else ({reason})"
        return ControlLost(self._path.stem, message)

    def close(self) -> None:
        """Give the page up: one without an order goes."""
        with contextlib.suppress(OSError):
            if disk.exists(self._path):
                with disk.locked(self._path, os.O_RDWR) as descriptor:
                    if system.files.pread(descriptor, 1, 0) in (b"", _NONE):
                        system.files.unlink(self._path)


def read_order(path: Path) -> StopOrder | None:
    """The order in a control page, if there is one.

    Raises:
        StoreError: it can't be determined: the page is there, and can't be read.
    """
    return _order_in(_read(path))


def _read(path: Path) -> bytes | None:
    """What is in a control page; None where there is none."""
    try:
        return disk.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} can't be read: {disk.describe(error)}") from error


def give_order(path: Path, order: StopOrder, bell: Bell) -> bool:
    """Put an order into a control page, which is made if need be; a second replaces the first.

    Returns:
        Whether it is there: no pause replaces a stop.

    Raises:
        StoreError: the page can't be written: there is no order, or the former one. Or the bell
            can't be rung: who resumes the run sees the order, who writes it now may not.
    """
    try:
        with disk.locked(path, os.O_RDWR | os.O_CREAT) as descriptor:
            former = _found(descriptor) if order.is_pause else None
            if former is not None and not former.is_pause:
                return False
            _write(descriptor, order)
            disk.keep_name(path)
    except OSError as error:
        raise StoreError(f"{path} can't be written: {disk.describe(error)}") from error
    bell.ring()
    return True


def lift_order(
    path: Path,
    run: str,
    bell: Bell,
    kind: OrderKind | None,
    above: Callable[[], StopOrder | None],
) -> bool:
    """Withdraw the order that was given to `run`; whether there was one in this page.

    The page itself stays: the run's writer may have seen it.

    Args:
        path: of the page.
        run: whose order it is; the page may be that of a run which builds on it.
        bell: of the store.
        kind: that it has to have, if one is given.
        above: the order that holds all the same, if there is one: it takes the other's place.

    Raises:
        StoreError: the page can't be written, or the bell can't be rung: then a live run still
            holds to the order.
    """
    try:
        with disk.locked(path, os.O_RDWR) as descriptor:
            found = _found(descriptor)
            lifted = found is not None and found.run in ("", run) and kind in (None, found.kind)
            if lifted and (instead := above()) is not None:
                _write(descriptor, instead)
            elif lifted:
                system.files.pwrite(descriptor, _NONE, 0)
                system.files.ftruncate(descriptor, len(_NONE))
                system.files.fsync(descriptor)
    except FileNotFoundError:
        lifted = False
    except OSError as error:
        raise StoreError(f"{path} can't be written: {disk.describe(error)}") from error
    bell.ring()  # in any case: one that waits for a page that is gone finds out
    return lifted


def _write(descriptor: int, order: StopOrder) -> None:
    """Put an order into a page that is locked."""
    fields = {
        "run": order.run,
        "by": _writable(order.by),
        "reason": _writable(order.reason),
        "time": order.time,
        "kind": order.kind,  # who does not know of it takes a pause for a stop
    }
    body = orjson.dumps(fields).ljust(_PAGE - 1, b"\0")
    if (written := system.files.pwrite(descriptor, body, 1)) != len(body):
        system.files.pwrite(descriptor, body[written:], 1 + written)  # or the error says why not
    system.files.pwrite(descriptor, _ORDERED, 0)
    system.files.fsync(descriptor)


def _found(descriptor: int) -> StopOrder | None:
    """The order in a page that is locked, if there is one."""
    return _order_in(system.files.pread(descriptor, _PAGE, 0))


def _order_in(data: bytes | None) -> StopOrder | None:
    """The order in a page; one that can't be read is an order to stop."""
    if not data or data[:1] == _NONE:
        return None
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
