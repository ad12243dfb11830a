"""What a store tells of a run in a list: its first and its last line."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Ends"]


class Ends(NamedTuple):
    """The id of a run, and its first and last whole line."""

    run: str
    first: bytes
    last: bytes
