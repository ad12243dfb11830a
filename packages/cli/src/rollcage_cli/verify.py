"""`rollcage verify`: check that a log holds exactly the written lines.

The checks follow the format's definition, and don't use the code that wrote the log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import typer
from rich.text import Text
from rollcage import Store
from rollcage.errors import TraceCorrupt
from rollcage.trace import read_events
from rollcage.trace.chain import HASH, ROOT
from rollcage.trace.recorded import LogTrace
from rollcage_views import standing, words
from rollcage_views.runs import fold_log

from rollcage_cli.errors import CORRUPT
from rollcage_cli.log_check import Discrepancy, LogCheck
from rollcage_cli.lookup import find
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, RunArgument, StoreOption
from rollcage_cli.output import console, is_terminal, print_json, visible

__all__ = ["Report", "verify", "verify_log"]

_LONG: Final = 5000  # lines from which on the progress is shown
_EVERY: Final = 500  # lines between two steps of the bar


@dataclasses.dataclass(slots=True)
class Report:
    """The result of `verify`.

    Attributes:
        run: the run's id.
        where: its log.
        lines: how many whole lines it has.
        head: the hash of the last line (hex).
        findings: the damage; nothing after a broken chain is checked.
        notes: checks that were not possible, with the reason.
    """

    run: str
    where: str
    lines: int
    head: str
    findings: list[Discrepancy]
    notes: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings


def verify(
    run: RunArgument,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Check that a log is complete and unchanged.

    Checks every line, hash, key and large value, and whether each line fits the lines before it.
    Exits with 3 if anything was changed, removed, added or damaged.
    """
    found = find(store, run)
    report, events = _checked(found.read(), found.store, quiet=as_json)
    status: dict[str, Any] = {}
    notes: list[str] = []
    if report.ok:
        seen = fold_log(enumerate(events, 1), found.run)
        stands = standing(seen)
        status = {"standing": stands.as_data()}
        notes = words(stands, seen.status, found.run, found.at)
    if as_json:
        print_json({"ok": report.ok, **dataclasses.asdict(report), **status})
    else:
        _print(report)
        for each in notes:
            console().print(Text(each, style="yellow"), soft_wrap=True)
    if not report.ok:
        raise typer.Exit(CORRUPT)


def verify_log(trace: LogTrace, store: Store) -> Report:
    """Check one log."""
    return _checked(trace, store, quiet=True)[0]


def _checked(trace: LogTrace, store: Store, *, quiet: bool) -> tuple[Report, list[dict[str, Any]]]:
    """Return the findings in a log, and its events up to the damage; `quiet`: no progress."""
    check = LogCheck(trace.run, store)
    events: list[dict[str, Any]] = []
    head = trace.data[HASH].decode() if _ends_in_hash(trace.data) else ROOT.decode()
    lines = trace.data.count(b"\n")
    try:
        for line, event in _progress(read_events(trace.data, trace.where), lines, quiet=quiet):
            check.line = line
            if not check.event(event):
                break
            events.append(event)
    except TraceCorrupt as error:
        check.line = error.line
        check.found("chain", error.reason)
    else:
        check.end()
    return Report(trace.run, trace.where, lines, head, check.findings, check.notes), events


def _ends_in_hash(data: bytes) -> bool:
    try:
        return len(bytes.fromhex(data[HASH].decode())) == sha256().digest_size
    except ValueError:
        return False


def _progress(
    events: Iterator[tuple[int, dict[str, Any]]], lines: int, *, quiet: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    out = console(error=True)
    if quiet or lines < _LONG or not is_terminal(out.file):
        yield from events
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("verifying"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=out, transient=True) as progress:
        task = progress.add_task("", total=lines)
        for line, event in events:
            if line % _EVERY == 0:
                progress.update(task, completed=line)
            yield line, event


def _print(report: Report) -> None:
    out = console()
    for finding in report.findings:
        text = f"line {finding.line}: {finding.code}: {finding.message}"
        out.print(Text(text, style="red"), soft_wrap=True)
    for note in report.notes:
        out.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
    where = visible(report.where)
    if report.ok:
        whole = Text("whole", style="green").append(f": {report.lines} lines: {where}")
        out.print(whole, soft_wrap=True)
    else:
        out.print(
            Text("damaged", style="bold red").append(f": {len(report.findings)} found: {where}"),
            soft_wrap=True,
        )
