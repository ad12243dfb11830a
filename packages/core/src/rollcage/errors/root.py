"""The root of the error tree."""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "RollcageError",
]


class RollcageError(Exception):
    """The root of all errors of Rollcage; `code` is for machines, the message for people."""

    code: ClassVar[str] = "rollcage_error"
