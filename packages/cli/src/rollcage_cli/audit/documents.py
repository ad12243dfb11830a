"""An audit for people: tables on a terminal, and a report in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text
from rollcage_views import time_text
from rollcage_views.audit import (
    AuditEntry,
    Damaged,
    Item,
    RunHeading,
    Summary,
    about_run,
    counts_of,
    instant,
    most_first,
    open_text,
    short,
    subject,
    totals_text,
    what_happened,
    who_decided,
)

from rollcage_cli.table import Table

__all__ = ["write_markdown", "write_table"]

_STYLES: Final = {
    "hit": "cyan", "ran": "green", "failed": "red", "blocked": "magenta",
    "unknown": "bold yellow", "not_asked_for": "bold yellow", "pending": "bold yellow",
    "stopped": "bold red", "conflict": "red", "not_started": "dim", "continued": "dim",
    "refused": "magenta",
}  # fmt: skip
_TITLES: Final = ("time", "step", "agent", "call", "arguments", "decision", "outcome")
_MARKS: Final = re.compile(r"([\\`*_\[\]|~#])")


# --- on a terminal -------------------------------------------------------------------------------


def write_table(items: Iterator[Item], summary: Summary, out: Console) -> None:
    """Print a table for each run, and the counts."""
    table: Table | None = None
    for item in items:
        if isinstance(item, AuditEntry):
            assert table is not None
            table.add_row(*_row(item))
            continue
        if table is not None:
            out.print(table, "", crop=False)
            table = None
        if isinstance(item, Damaged):
            out.print(Text(f"run {item.run} can't be read: {item.reason}\n", style="red"))
            continue
        out.print(Text(f"{item.job}  ", style="bold").append(item.run, style="dim"))
        out.print(Text(about_run(item, time_text(item.time))), soft_wrap=True)
        table = _empty_table()
    if table is not None:
        out.print(table, "", crop=False)
    _print_summary(summary, out)


def _empty_table() -> Table:
    table = Table()
    for title, width in zip(_TITLES, (19, 4, 12, 26, None, 30, None), strict=True):
        table.add_column(title, max_width=width, no_wrap=width is not None)
    return table


def _row(entry: AuditEntry) -> tuple[str | Text, ...]:
    happened = Text(short(what_happened(entry), 300), style=_STYLES.get(entry.state, ""))
    return (
        time_text(entry.time), str(entry.step or ""), entry.agent, subject(entry),
        short(entry.args, 200), who_decided(entry), happened,
    )  # fmt: skip


def _print_summary(summary: Summary, out: Console) -> None:
    out.print(Text(totals_text(summary), style="bold"))
    for title, counts in counts_of(summary):
        if counts:
            listed = ", ".join(f"{number} {name}" for name, number in most_first(counts))
            out.print(Text(f"{title}: {listed}"), soft_wrap=True)
    if summary.open:
        out.print(Text("Needs attention:", style="bold yellow"))
        for entry in summary.open:
            out.print(Text(f"  {open_text(entry)}"), soft_wrap=True)
        if summary.more_open:
            out.print(f"  and {summary.more_open} more")


# --- Markdown ------------------------------------------------------------------------------------


def write_markdown(items: Iterator[Item], summary: Summary, out: TextIO) -> None:
    """Write a report that any Markdown reader shows, including GitHub's."""
    out.write("# Audit\n")
    for item in items:
        if isinstance(item, RunHeading):
            out.write(f"\n## {_marked(item.job)}\n\n`{item.run}`: {_marked(about_run(item))}\n\n")
            out.write(f"| {' | '.join(_TITLES)} |\n|{'---|' * len(_TITLES)}\n")
        elif isinstance(item, AuditEntry):
            cells = (
                instant(item.time), str(item.step or ""), item.agent, subject(item),
                short(item.args, 400), who_decided(item), short(what_happened(item), 600),
            )  # fmt: skip
            out.write(f"| {' | '.join(map(_marked, cells))} |\n")
        else:
            out.write(f"\n## Damaged: {_marked(item.run)}\n\n{_marked(item.reason)}\n")
    out.write(f"\n## Summary\n\n{totals_text(summary)}\n")
    for title, counts in counts_of(summary):
        if counts:
            out.write(f"\n| {title} | calls |\n|---|---:|\n")
            out.writelines(f"| {_marked(name)} | {n} |\n" for name, n in most_first(counts))
    if summary.open:
        out.write("\n## Needs attention\n\n")
        out.writelines(f"- {_marked(open_text(entry))}\n" for entry in summary.open)
        if summary.more_open:
            out.write(f"- and {summary.more_open} more\n")


def _marked(text: str) -> str:
    """Escape a text for Markdown, and for HTML inside of it."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\1", plain).replace("://", ":&#47;&#47;").replace("@", "&#64;")
