"""How a backtest is told: a table, JSON, or one HTML file that needs nothing else."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text
from rollcage_cli.output import arguments_text, counted, visible
from rollcage_cli.table import Table

from rollcage_policy.commands.backtest.rows import LIMITS, Row

__all__ = ["as_data", "as_html", "print_table", "totals"]

_JUDGED: Final = ("calls", "blocked", "asked", "newly_allowed", "unknown", "tokens")
_FORKED: Final = ("calls", "ran", "blocked", "writes", "failed", "tokens")
_TITLES: Final = {"newly_allowed": "allowed", "asked": "asks", "writes": "new writes"}
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #1a1a1a }
table { border-collapse: collapse; width: 100% } th, td { padding: .3rem .6rem; text-align: left }
th { border-bottom: 2px solid #999 } td { border-bottom: 1px solid #ddd; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums } .bad { color: #a40000 }
code { font-size: 90% } p.limits { font-weight: 600 }
"""


def totals(rows: Sequence[Row]) -> dict[str, int]:
    """The sums over all runs, by what is counted."""
    return {what: sum(row.count(what) for row in rows) for what in (*_JUDGED, "writes", "failed")}


def print_table(out: Console, rows: Sequence[Row], change: str, over: Mapping[str, int]) -> None:
    """A line a run, then the sums, and what went over its limit."""
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
        cells = [Text(str(row.count(each) or "")) for each in columns]
        if priced:
            cells.append(Text("" if row.cost is None else f"{row.cost:.4g}"))
        last = Text(visible(row.error or row.first), style="red" if row.error else "")
        table.add_row(Text(f"…{row.run[-8:]}"), Text(visible(row.name)), *cells, last)
    if rows:
        out.print(table)
        out.print()
    for row in rows:
        for write in row.writes:
            said = f"…{row.run[-8:]} would write {visible(write['name'])}"
            shown = Text(f"{said}({arguments_text(write['args'])})", style="magenta")
            out.print(shown, soft_wrap=True)
    out.print(_sums(rows, change), soft_wrap=True)
    for what, limit in over.items():
        said = f"over the limit: {_counted(totals(rows)[what], what)}, at most {limit} allowed"
        out.print(Text(said, style="bold red"), soft_wrap=True)


def _columns(rows: Sequence[Row]) -> Sequence[str]:
    """What is counted, where there is anything to count."""
    found = _FORKED if any(row.fork for row in rows) else _JUDGED
    return [each for each in found if each == "calls" or any(row.count(each) for row in rows)]


def _counted(count: int, what: str) -> str:
    """`1 new write`, `3 blocked`."""
    if what == "writes":
        return counted(count, "new write")
    return f"{count} {what.replace('_', ' ')}"


def _sums(rows: Sequence[Row], change: str) -> str:
    sums = totals(rows)
    told = [_counted(sums[what], what) for what in LIMITS if sums[what]]
    unread = sum(bool(row.error) for row in rows)
    told += [f"{counted(unread, 'run')} can't be tested"] if unread else []
    head = f"{change}: {counted(len(rows), 'run')}, {counted(sums['calls'], 'call')}"
    return f"{head}, {', '.join(told) or 'nothing changes'}"


def as_data(rows: Sequence[Row], change: str, over: Mapping[str, int]) -> dict[str, Any]:
    """For machines."""
    return {
        "change": change,
        "runs": [dataclasses.asdict(row) for row in rows],
        "totals": totals(rows),
        "over": dict(over),
    }


def as_html(rows: Sequence[Row], change: str, over: Mapping[str, int]) -> str:
    """One file; nothing in it is fetched, and all that is recorded is text."""
    columns = _columns(rows)
    cost = ["cost"] if any(row.cost is not None for row in rows) else []
    counts = [_TITLES.get(each, each) for each in columns]
    titles = ["run", "job", *counts, *cost, "first difference"]
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    body = "\n".join(_html_row(row, columns, priced=bool(cost)) for row in rows)
    broken = "".join(
        f'<p class="limits bad">{_text(_counted(totals(rows)[what], what))}, at most {limit}</p>'
        for what, limit in over.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src 'unsafe-inline'\">\n<title>Backtest: {_text(change)}</title>\n"
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>Backtest: {_text(change)}</h1>\n"
        f"<p>{_text(_sums(rows, change))}</p>\n{broken}\n<table>\n<tr>{head}</tr>\n{body}\n</table>"
        "\n</body>\n</html>\n"
    )


def _html_row(row: Row, columns: Sequence[str], *, priced: bool) -> str:
    counts = "".join(f'<td class="n">{row.count(each) or ""}</td>' for each in columns)
    if priced:
        counts += f'<td class="n">{"" if row.cost is None else f"{row.cost:.4g}"}</td>'
    writes = "".join(
        f"<br><code>{_text(each['name'])}({_text(arguments_text(each['args']))})</code>"
        for each in row.writes
    )
    last = f'<span class="bad">{_text(row.error)}</span>' if row.error else _text(row.first)
    return (
        f"<tr><td><code>{_text(row.run)}</code></td><td>{_text(row.name)}</td>{counts}"
        f"<td>{last}{writes}</td></tr>"
    )


def _text(said: str) -> str:
    return html.escape(visible(said))
