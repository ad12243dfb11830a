"""The steps of a run over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text
from rollcage_views import Step, duration_text

from rollcage_cli.show.rows import STYLES, styled_state
from rollcage_cli.table import Table

__all__ = ["over_time"]

_WIDTH: Final = 40  # columns of the timeline


def over_time(rows: Sequence[Step], *, ascii_only: bool) -> Table:
    """Return each step at its place between the first step's beginning and the last one's end."""
    start = min(row.time for row in rows)
    end = max(row.time + _ran_for(row) for row in rows)
    table = Table()
    table.add_column("step", right=True, no_wrap=True)
    table.add_column(f"over {duration_text(end - start)}", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.step), _bar(row, start, end, ascii_only=ascii_only), styled_state(row)
        )
    return table


def _ran_for(row: Step) -> int:
    """Return how long the step took in this run; zero for a replayed step."""
    return 0 if row.state == "hit" else row.duration or 0


def _bar(row: Step, start: int, end: int, *, ascii_only: bool) -> Text:
    scale = (_WIDTH - 1) / max(end - start, 1)
    left = round((row.time - start) * scale)
    length = max(1, round(_ran_for(row) * scale))
    marks = {"hit": "o", "blocked": "x", "unknown": "?", "cut_off": "?"}
    if not ascii_only:
        marks |= {"hit": "◆", "blocked": "✕"}
    mark = marks.get(row.state, "#" if ascii_only else "━")
    bar = mark if row.state in marks else mark * min(length, _WIDTH - left)
    return Text(" " * left).append(bar, style=STYLES[row.state])
