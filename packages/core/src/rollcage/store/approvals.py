"""Requests for approval in a folder: each part of one is a file that is written once.

Whoever makes a file has won it: of any number of processes that write the same part, one does. It
is whole from the moment it has its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import Final

from rollcage.errors import StoreError
from rollcage.store import disk

__all__ = ["ApprovalFiles"]

_ID: Final = re.compile(r"[0-9a-f]{16}(-[1-9][0-9]{0,5})?")
_PARTS: Final = ("request", "decision", "use")
_FILE: Final = re.compile(rf"({_ID.pattern})\.({'|'.join(_PARTS)})\.json")


class ApprovalFiles:
    """The requests for approval of a store.

    Args:
        folder: where they lie; made with the first one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, approval: str, part: str, data: bytes) -> bool:
        """Keep a part of an approval, on the disk; False where it is there already.

        Raises:
            StoreError: it can't be written.
        """
        path = self._path(approval, part)
        try:
            disk.make_folder(self._folder)
            new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            disk.add(new, data)
            try:
                os.link(new, path)
            except FileExistsError:
                return False
            finally:
                with contextlib.suppress(OSError):
                    new.unlink()
            disk.sync_folder(self._folder)  # the new name is on the disk
        except OSError as error:
            raise StoreError(f"{path} can't be written: {disk.said(error)}") from error
        return True

    def get(self, approval: str) -> dict[str, bytes]:
        """The parts of an approval, by their names; none where there is none.

        Raises:
            StoreError: they can't be read.
        """
        found: dict[str, bytes] = {}
        for part in _PARTS:
            path = self._path(approval, part)
            try:
                found[part] = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"{path} can't be read: {disk.said(error)}") from error
        return found

    def ids(self) -> list[str]:
        """The ids of all approvals.

        Raises:
            StoreError: they can't be listed.
        """
        try:
            matches = [_FILE.fullmatch(path.name) for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self._folder} can't be read: {disk.said(error)}") from error
        return sorted({match[1] for match in matches if match is not None})

    def _path(self, approval: str, part: str) -> Path:
        if _ID.fullmatch(approval) is None or part not in _PARTS:
            raise StoreError(f"{approval!r} is not the form of an approval's id")
        return self._folder / f"{approval}.{part}.json"
