"""The attempts at a run: how each ended, and which steps it replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text
from rollcage_views import Attempt, Run, time_text

from rollcage_cli.output import visible
from rollcage_cli.runs import STATUS_STYLES
from rollcage_cli.show.rows import cell
from rollcage_cli.table import Table

__all__ = ["print_attempts"]

_FIXED: Final = 64  # columns of the table besides the reason for an attempt's end
_SHOWN: Final = 20  # attempts: the last ones


def print_attempts(out: Console, seen: Run) -> None:
    """Print a line for each attempt at a run with several."""
    if len(seen.attempts) < 2:
        return
    left_out = max(len(seen.attempts) - _SHOWN, 0)
    if left_out:
        out.print(f"The first {left_out} attempts are not shown.")
    table = Table()
    for title in ("attempt", "status", "began", "replayed", "new", "why it ended"):
        table.add_column(title, right=title in ("attempt", "new"), no_wrap=True)
    for number, each in enumerate(seen.attempts[left_out:], left_out + 1):
        is_last = number == len(seen.attempts)
        status = each.status or ("unfinished" if is_last else "died")
        table.add_row(
            str(number),
            Text(visible(status), style=STATUS_STYLES.get(status, "")),
            time_text(each.begin),
            cell(_spans_text(each.replayed) or "", 16),
            str(len(each.steps) or ""),
            cell(_why(each), max(out.width - _FIXED, 12)),
        )
    out.print(table)
    out.print()


def _spans_text(spans: Sequence[tuple[int, int]]) -> str:
    """Return the numbers of the steps that answered calls: `1-4, 7`."""
    joined: list[list[int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in joined)


def _why(attempt: Attempt) -> str:
    if attempt.waits:
        return f"waits for {visible(attempt.waits)}"
    if attempt.error:
        kind = str(attempt.error.get("type", "")).rpartition(".")[2]
        return f"{visible(kind)}: {visible(str(attempt.error.get('message', '')))}"
    return ""
