"""`rollcage audit`: who made each call, which rule decided, and which calls were undone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rollcage_views.audit import Item, Selection, Summary, audited, write_csv, write_jsonl

from rollcage_cli.audit.documents import write_markdown, write_table
from rollcage_cli.audit.selection import runs_meant
from rollcage_cli.errors import CORRUPT, UsageError
from rollcage_cli.files import page_file, whole_file
from rollcage_cli.moments import moment
from rollcage_cli.options import DEFAULT_STORE, OFF, ForceOption, HtmlOption, StoreOption
from rollcage_cli.output import console, is_terminal, visible

__all__ = ["audit"]


class Format(StrEnum):
    """The format of an audit."""

    TABLE = "table"
    JSONL = "jsonl"
    CSV = "csv"
    MARKDOWN = "md"


class Decided(StrEnum):
    """The gate's decision on a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


_WRITERS: dict[Format, Callable[[Iterator[Item], Summary, TextIO], None]] = {
    Format.JSONL: write_jsonl,
    Format.CSV: write_csv,
    Format.MARKDOWN: write_markdown,
}


def audit(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="As in every command; by default all runs of the store.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    name: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only runs of these jobs.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From this time on: 2026-03-01T12:30, or 24h ago."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Up to this time, written as for --since.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only these tools.")
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only steps of these agents.")
    ] = None,
    decision: Annotated[
        list[Decided] | None, typer.Option(help="Only calls that the gate decided this way.")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only calls that these rules decided.")
    ] = None,
    undone: Annotated[
        bool, typer.Option("--undone", help="Only undone steps, and their undos.")
    ] = OFF,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format", "-f", help="By default, the format that the name of --output ends with."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="A file to write to; by default, stdout."
        ),
    ] = None,
    html: HtmlOption = None,
    force: ForceOption = OFF,
) -> None:
    """Report who called which tool, and how each call was decided.

    The report shows the rule of each decision, the approvals, and the undone calls.

    Options that name something can be repeated. Credentials are hidden. A run that can't be read is
    reported, the others are processed, and the exit code is 3.
    """
    if html is not None and (form is not None or output is not None):
        raise UsageError("--html is a page of its own: leave out --format and --output")
    now = datetime.now().astimezone()
    wanted = Selection(
        since=None if since is None else moment(since, now),
        until=None if until is None else moment(until, now),
        tools=tuple(tool or ()),
        agents=tuple(agent or ()),
        rules=tuple(rule or ()),
        decisions=tuple(each.value for each in decision or ()),
        undone=undone,
    )
    chosen = form or _form_of(output)
    meant = runs_meant(store, runs or (), name or (), wanted.until)
    summary = Summary()
    to_file = output is not None or html is not None
    shows = is_terminal(sys.stderr) and (to_file or not is_terminal(sys.stdout))
    with _progress(len(meant), shown=shows) as advance:
        items = audited(meant, wanted, summary, advance)
        if html is None:
            _write(chosen, items, summary, output)
        else:
            from rollcage_views.html import write_audit  # templates, only for a page

            with page_file(html, force=force) as page:
                write_audit(page, items, summary)
    for damaged in summary.damaged:
        console(error=True).print(
            f"rollcage: run {damaged.run} can't be read: {damaged.reason}", soft_wrap=True
        )
    if summary.damaged:
        raise typer.Exit(CORRUPT)


def _form_of(output: Path | None) -> Format:
    """Return the format for a file's extension."""
    if output is None:
        return Format.TABLE
    known = {f".{form.value}": form for form in Format if form is not Format.TABLE}
    known |= {".markdown": Format.MARKDOWN}
    if output.suffix.lower() in (".html", ".htm"):
        raise UsageError(f"a page is written with --html {visible(str(output))}")
    form = known.get(output.suffix.lower())
    if form is None:
        raise UsageError(f"{visible(str(output))}: name the format with --format")
    return form


@contextlib.contextmanager
def _progress(total: int, *, shown: bool) -> Generator[Callable[[], None]]:
    """Show the progress, on a terminal that does not show the audit itself."""
    columns = TextColumn("reading runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console(error=True), transient=True, disable=not shown)
    with bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def _write(form: Format, items: Iterator[Item], summary: Summary, output: Path | None) -> None:
    with _opened(output) as out:
        if form is Format.TABLE:
            write_table(items, summary, console(to=out))
        else:
            _WRITERS[form](items, summary, out)


@contextlib.contextmanager
def _opened(output: Path | None) -> Generator[TextIO]:
    """Open the output: a file that replaces an old one once it is complete, or stdout."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    with whole_file(output, replace=True) as out:
        yield out
