"""A run's entry in a list: for machines, and in the words of pages."""

from __future__ import annotations

from typing import Any

from rollcage import RunInfo

__all__ = ["info_data", "is_pruned", "mode_of"]


def mode_of(info: RunInfo) -> str:
    """Return how a run came to be.

    `record`, `fork`, `resume`: it continues a run of another store; `imported`: another tool has
    recorded it.
    """
    if info.fork:
        return "fork"
    if info.imported:
        return "imported"
    return "resume" if info.origin else "record"


def is_pruned(info: RunInfo) -> bool:
    """Return whether only the first line and the end of a run are left."""
    return info.last == "pruned"


def info_data(info: RunInfo) -> dict[str, Any]:
    """Return a run's entry in a list, for machines."""
    return {
        "run": info.run, "name": info.name, "mode": mode_of(info), "source": info.origin or None,
        "time": info.begun, "status": info.status, "ended": info.ended, "attempts": info.attempts,
        "waits": info.waits, "input": info.input or None, "pruned": is_pruned(info),
    }  # fmt: skip
