"""The progress of an execution: a table on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text
from rollcage_cli.output import visible

__all__ = ["ProgressTable"]

_SHOWN: Final = 20
_STYLES: Final = {
    "completed": "green", "given": "green", "failed": "red", "halted": "red", "running": "blue",
    "waiting": "yellow", "skipped": "dim",
}  # fmt: skip


class ProgressTable:
    """Show the steps of an attempt; `run` calls `on_step`.

    Args:
        console: the output; on a terminal, a table is drawn.
        clock: seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._began: dict[str, float] = {}
        self._rows: dict[str, tuple[str, float]] = {}  # by path: the state, and the duration
        self._counts = Counter[str]()
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console, get_renderable=self._drawn, refresh_per_second=8, transient=True
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_step(self, path: str, state: str) -> None:
        """Show that a step begins, or ends."""
        if self._live is None:
            self._console.print(Text(f"{visible(path)}: {state}"), soft_wrap=True)
            return
        now = self._clock()
        before = self._rows.pop(path, None)
        if before is not None:
            self._counts[before[0]] -= 1
        if state == "running":
            self._began[path] = now
        self._rows[path] = state, now - self._began.get(path, now)
        self._counts[state] += 1
        if len(self._rows) > 10 * _SHOWN:
            self._forget()

    def _forget(self) -> None:
        """Drop rows that are no longer shown: a loop may have many rounds."""
        over = [path for path, (state, _) in self._rows.items() if state != "running"]
        for path in over[:-_SHOWN]:
            del self._rows[path]
            self._began.pop(path, None)

    def _drawn(self) -> Group:
        now = self._clock()
        table = Table(box=None, pad_edge=False, show_header=False)
        ended = [each for each in self._rows.items() if each[1][0] != "running"]
        running = [each for each in self._rows.items() if each[1][0] == "running"]
        for path, (state, took) in [*ended[-_SHOWN:], *running[:_SHOWN]]:
            seconds = now - self._began[path] if state == "running" else took
            name = Text(visible(path), style=_STYLES.get(state, ""))
            table.add_row(name, Text(state), Text(f"{seconds:.1f} s", style="dim"))
        counts = ", ".join(f"{count} {state}" for state, count in self._counts.items() if count)
        return Group(table, Spinner("dots", Text(counts or "begins"), style="blue"))
