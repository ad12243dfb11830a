"""The output of a backtest: a table, JSON, or a self-contained page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

from rich.console import Console
from rich.text import Text
from rollcage_cli.output import arguments_text, counted, visible
from rollcage_cli.table import Table

from rollcage_policy.commands.backtest.rows import LIMITS, BacktestRow

__all__ = ["as_data", "print_table", "totals", "write_page"]

_JUDGED: Final = ("calls", "blocked", "asked", "newly_allowed", "unknown", "tokens")
_FORKED: Final = ("calls", "ran", "blocked", "writes", "failed", "tokens")
_TITLES: Final = {"newly_allowed": "allowed", "asked": "asks", "writes": "new writes"}


def totals(rows: Sequence[BacktestRow]) -> dict[str, int]:
    """Return the sums over all runs, by name."""
    return {what: sum(row.count(what) for row in rows) for what in (*_JUDGED, "writes", "failed")}


def print_table(
    out: Console, rows: Sequence[BacktestRow], change: str, over: Mapping[str, int]
) -> None:
    """Print a line for each run, then the sums, then the exceeded limits."""
    columns = _columns(rows)
    table = Table()
    table.add_column("run", no_wrap=True)
    table.add_column("job", max_width=16)
    for each in columns:
        table.add_column(_TITLES.get(each, each), right=True, no_wrap=True)
    priced = any(row.cost is not None for row in rows)
    if priced:
        table.add_column("cost", right=True, no_wrap=True)
    table.add_column("first difference")
    for row in rows:
        cells = map(Text, _counts(row, columns, priced=priced))
        last = Text(visible(row.error or row.first), style="red" if row.error else "")
        table.add_row(Text(f"…{row.run[-8:]}"), Text(visible(row.name)), *cells, last)
    if rows:
        out.print(table)
        out.print()
    for row in rows:
        for write in row.writes:
            line = f"…{row.run[-8:]} would write {visible(write['name'])}"
            shown = Text(f"{line}({arguments_text(write['args'])})", style="magenta")
            out.print(shown, soft_wrap=True)
    out.print(_sums(rows, change), soft_wrap=True)
    for line in _over(rows, over):
        out.print(Text(line, style="bold red"), soft_wrap=True)


def _columns(rows: Sequence[BacktestRow]) -> Sequence[str]:
    """Return the columns that have a count in any run."""
    found = _FORKED if any(row.fork for row in rows) else _JUDGED
    return [each for each in found if each == "calls" or any(row.count(each) for row in rows)]


def _counts(row: BacktestRow, columns: Sequence[str], *, priced: bool) -> list[str]:
    """Return the numbers of a run that are not zero; its cost is the last of them."""
    counts = [str(row.count(each) or "") for each in columns]
    cost = "" if row.cost is None else f"{row.cost:.4g}"
    return [*counts, cost] if priced else counts


def _over(rows: Sequence[BacktestRow], over: Mapping[str, int]) -> list[str]:
    """Return the exceeded limits."""
    sums = totals(rows)
    return [
        f"over the limit: {_counted(sums[what], what)}, at most {limit} allowed"
        for what, limit in over.items()
    ]


def _counted(count: int, what: str) -> str:
    """Return a count in words: `1 new write`, `3 blocked`."""
    if what == "writes":
        return counted(count, "new write")
    return f"{count} {what.replace('_', ' ')}"


def _sums(rows: Sequence[BacktestRow], change: str) -> str:
    sums = totals(rows)
    parts = [_counted(sums[what], what) for what in LIMITS if sums[what]]
    unread = sum(bool(row.error) for row in rows)
    parts += [f"{counted(unread, 'run')} can't be tested"] if unread else []
    head = f"{change}: {counted(len(rows), 'run')}, {counted(sums['calls'], 'call')}"
    return f"{head}, {', '.join(parts) or 'nothing changes'}"


def as_data(rows: Sequence[BacktestRow], change: str, over: Mapping[str, int]) -> dict[str, Any]:
    """Return the result for machines."""
    return {
        "change": change,
        "runs": [dataclasses.asdict(row) for row in rows],
        "totals": totals(rows),
        "over": dict(over),
    }


def write_page(
    out: TextIO, rows: Sequence[BacktestRow], change: str, over: Mapping[str, int]
) -> None:
    """Write a self-contained page, with all recorded values as text."""
    from rollcage_views.html import write_report  # templates, which only a page needs

    columns = _columns(rows)
    priced = any(row.cost is not None for row in rows)
    write_report(
        "backtest.html",
        out,
        package=__package__,
        change=change,
        sums=_sums(rows, change),
        over=_over(rows, over),
        counted=[*(_TITLES.get(each, each) for each in columns), *(["cost"] if priced else [])],
        rows=[_page_row(row, columns, priced=priced) for row in rows],
    )


def _page_row(row: BacktestRow, columns: Sequence[str], *, priced: bool) -> dict[str, Any]:
    writes = [f"{visible(each['name'])}({arguments_text(each['args'])})" for each in row.writes]
    counts = _counts(row, columns, priced=priced)
    return {
        "run": row.run, "name": row.name, "counts": counts, "writes": writes,
        "first": row.first, "error": row.error,
    }  # fmt: skip
