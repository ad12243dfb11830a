"""A log in a file outside of a store, for reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from rollcage.errors import RunNotFound, StoreError, StoreReadOnly
from rollcage.trace.chain import checked
from rollcage.trace.recorded import LogTrace
from rollcage.trace.store import Ends, Log

__all__ = ["LogFile"]


class LogFile:
    """The log of one run, as a read-only `Store`.

    Args:
        path: the file.

    Attributes:
        url: the file's name.
        run: the run's id.
        torn: how many bytes follow the last whole line: an interrupted write.

    Raises:
        StoreError: the file can't be read, or its format is another.
        TraceCorrupt: the file is not the log of a run.
    """

    def __init__(self, path: Path) -> None:
        self.url = str(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} can't be read: {error.strerror}") from error
        lines = [line + b"\n" for line in data.split(b"\n")]
        self.torn = len(lines.pop()) - 1
        self._lines = lines
        first = next(checked(lines[:1], self.url), dict[str, Any]())
        self.run = str(first.get("run", ""))

    def trace(self) -> LogTrace:
        """Return the whole lines, for `rollcage_views.read_run`."""
        return LogTrace(self.run, self.url, b"".join(self._lines))

    def read(self, run: str, after: int = 0) -> list[bytes]:
        """Return the lines of the run; see `Store.read`."""
        self._check(run)
        return self._lines[after:]

    def runs(self, before: str = "", limit: int = 1000) -> list[Ends]:
        """Return the ends of the run; see `Store.runs`."""
        return [self.ends(self.run)] if limit and (not before or self.run < before) else []

    def ends(self, run: str) -> Ends:
        """Return the first and the last line; see `Store.ends`."""
        self._check(run)
        return Ends(run, self._lines[0], self._lines[-1])

    def is_live(self, run: str) -> bool:
        """Return False: there is no writer."""
        self._check(run)
        return False

    def get(self, kind: str, key: str) -> bytes | None:  # noqa: ARG002 - a store's
        """Return None: no value is kept beside it."""
        return None

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> list[str]:  # noqa: ARG002 - a store's
        """Return no keys."""
        return []

    def bell(self) -> int:
        """Return a number that never changes: a file gets no orders."""
        return 0

    def open(self, run: str, *, take: bool = False) -> Log:  # noqa: ARG002 - a store's
        """Refuse to write."""
        self._refuse()

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:  # noqa: ARG002 - a store's
        """Refuse to write."""
        self._refuse()

    def _check(self, run: str) -> None:
        if run != self.run:
            raise RunNotFound(f"there is no run {run} in {self.url}")

    def _refuse(self) -> NoReturn:
        raise StoreReadOnly(f"{self.url} is a file outside of a store: nothing is written to it")
