"""Logs that end as if their process had died behind a line."""

from pathlib import Path

from rollcage import open_store
from rollcage.trace.store import drop

__all__ = ["cut_log"]


def cut_log(path: Path, lines: int) -> None:
    """Cut a log of a folder behind so many lines, and forget the head that it had when it ended.

    Without the second, a session refuses the log as one that somebody has cut.
    """
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    drop(open_store(path.parents[1]), "heads", path.stem)
