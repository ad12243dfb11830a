"""What processes that were killed leave in a directory store: files that nobody uses any more."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rollcage.errors import RunInUse, RunNotFound, StoreError
from rollcage.store import disk, system
from rollcage.store.control import read_order
from rollcage.store.protocol import is_run_id
from rollcage.store.tracefile import open_locked

__all__ = ["left_in", "remove_left"]

_PART: Final = re.compile(r"(.*)\.(?:jsonl|steps)\.[0-9a-f]{8}")


def left_in(folder: Path) -> list[Path]:
    """The control pages of runs that nobody has, without an order, and copies that were cut off.

    Raises:
        StoreError: the folder can't be read.
    """
    try:
        names = sorted(system.files.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{folder} can't be read: {disk.describe(error)}") from error
    found: list[Path] = []
    for name in names:
        part, (run, _, suffix) = _PART.fullmatch(name), name.partition(".")
        if (part is not None and is_run_id(part[1])) or (
            suffix == "control" and is_run_id(run) and _is_free(folder / name)
        ):
            found.append(folder / name)
    return found


def _is_free(page: Path) -> bool:
    """Whether nobody writes the run of a control page, and no order is in that."""
    try:
        return not disk.is_locked(page.with_suffix(".jsonl")) and read_order(page) is None
    except FileNotFoundError:
        return read_order(page) is None
    except OSError as error:
        raise StoreError(f"{page} can't be read: {disk.describe(error)}") from error


def remove_left(files: Iterable[Path]) -> None:
    """Remove them, but what somebody uses again by now. The caller has the store's lock.

    Raises:
        StoreError: one can't be removed.
    """
    for path in files:
        try:
            with contextlib.ExitStack() as locked:
                if path.suffix == ".control":
                    with contextlib.suppress(RunNotFound):
                        trace = open_locked(path.with_suffix(".jsonl"))
                        locked.callback(system.files.close, trace)
                    locked.enter_context(disk.locked(path, os.O_RDWR))
                    if read_order(path) is not None:
                        continue
                disk.remove(path)
        except (RunInUse, FileNotFoundError):
            continue
        except OSError as error:
            raise StoreError(f"{path} can't be removed: {disk.describe(error)}") from error
