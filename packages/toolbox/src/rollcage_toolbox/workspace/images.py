"""The state of a path, as data: the before-image that undo restores and verification compares."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Final

__all__ = ["ABSENT", "Image", "Images", "Limits", "Settings", "dir_image", "file_image"]

Image = dict[str, Any]
"""`{"kind": "absent"}`, `{"kind": "dir", "mode"}` or `{"kind": "file", "sha256", "size", "mode",
"data"}`; `data` are the bytes themselves, `mode` the permission bits."""

Images = dict[str, Image]
"""Images by path."""

ABSENT: Final[Image] = {"kind": "absent"}


def file_image(data: bytes, mode: int) -> Image:
    """Return a regular file with this content."""
    return {
        "kind": "file",
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
        "mode": mode,
        "data": data,
    }


def dir_image(mode: int) -> Image:
    """Return the image of a directory; its entries have images of their own."""
    return {"kind": "dir", "mode": mode}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a workspace's tools; beyond them they raise `LimitExceeded`.

    Attributes:
        file_bytes: the largest file that is written, changed, moved or deleted. Its content is
            kept in the trace for undo, so this also bounds a step's size.
        read_bytes: the largest result of `read_file`.
        hash_bytes: the largest file that is hashed.
        entries: how many directory entries a call visits.
        archive_bytes: the largest unpacked size of an archive.
        archive_entries: how many files and directories an archive holds.
    """

    file_bytes: int = 16 * 2**20
    read_bytes: int = 2**20
    hash_bytes: int = 2**30
    entries: int = 10_000
    archive_bytes: int = 64 * 2**20
    archive_entries: int = 2_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of all tools of one workspace; see `Workspace`."""

    limits: Limits = dataclasses.field(default_factory=Limits)
    file_mode: int = 0o644
    dir_mode: int = 0o755
    sync: bool = False
    read_hard_links: bool = False
