"""`rollcage verify`: does a trace say what was written, all of it and nothing else?

The checks are made again from the format's definition, not with the code that wrote the trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import typer
from rich.text import Text
from rollcage.errors import TraceCorrupt
from rollcage.store import Reader, RunTrace
from rollcage.trace import CHAIN_START, fold, is_log, read_events, tail_of
from rollcage_views import lineage_of, standing, words

from rollcage_cli.errors import CORRUPT
from rollcage_cli.log_check import LogCheck
from rollcage_cli.lookup import find
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, RunArgument, StoreOption
from rollcage_cli.output import console, is_terminal, print_json, visible
from rollcage_cli.trace_check import Discrepancy, TraceCheck

__all__ = ["Report", "verify", "verify_trace"]

_LONG: Final = 5000  # lines from which on the progress is shown
_EVERY: Final = 500  # lines between two steps of the bar


@dataclasses.dataclass(slots=True)
class Report:
    """What `verify` found.

    Attributes:
        run: the run's id.
        where: its trace.
        lines: how many whole lines it has.
        head: the hash of the last one (hex).
        attested: whether the index holds the run's count and head, so that a truncation shows.
        torn_bytes: of a last line whose writing was cut off.
        findings: what is damaged; nothing after a broken chain is looked at.
        notes: what could not be checked, and why.
    """

    run: str
    where: str
    lines: int
    head: str
    attested: bool
    torn_bytes: int
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
    """Check that a trace is whole and unchanged.

    Looks at every line, hash, key, fingerprint and large value, and recomputes the worlds of a run
    that resumes no other. Exits with 3 if anything was changed, removed, added or damaged.
    """
    found = find(store, run)
    trace = found.read()
    report, events = _checked(trace, found.reader, quiet=as_json)
    status: dict[str, Any] = {}
    notes: list[str] = []
    if report.ok:
        seen = fold(enumerate(events, 1))
        stands = standing(lineage_of(found.reader, seen))
        status = {"standing": stands.as_data()}
        notes = words(stands, seen.status, found.run, found.reader)
    if as_json:
        print_json({"ok": report.ok, **dataclasses.asdict(report), **status})
    else:
        _print(report)
        for each in notes:
            console().print(Text(each, style="yellow"), soft_wrap=True)
    if not report.ok:
        raise typer.Exit(CORRUPT)


def verify_trace(trace: RunTrace, reader: Reader) -> Report:
    """Check one trace."""
    return _checked(trace, reader, quiet=True)[0]


def _checked(
    trace: RunTrace, reader: Reader, *, quiet: bool
) -> tuple[Report, list[dict[str, Any]]]:
    """What was found in a trace, and its events up to what is damaged; `quiet`: no progress."""
    check = (LogCheck if is_log(trace.data) else TraceCheck)(trace.run, reader)
    events: list[dict[str, Any]] = []
    tail = tail_of(trace.data) if _ends_in_hash(trace.data) else None
    head = CHAIN_START.hex() if tail is None else tail.head.hex()
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
        check.end(trace)
    attested = trace.info is not None and trace.info.count is not None
    report = Report(
        trace.run, trace.where, lines, head, attested, len(trace.torn), check.findings, check.notes
    )
    return report, events


def _ends_in_hash(data: bytes) -> bool:
    try:
        bytes.fromhex(data[-67:-3].decode())
    except ValueError:
        return False
    return True


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
        attested = ", its end attested by the index" if report.attested else ""
        out.print(
            Text("whole", style="green").append(f": {report.lines} lines{attested}: {where}"),
            soft_wrap=True,
        )
    else:
        out.print(
            Text("damaged", style="bold red").append(f": {len(report.findings)} found: {where}"),
            soft_wrap=True,
        )
