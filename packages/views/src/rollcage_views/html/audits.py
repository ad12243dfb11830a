"""An audit as a page, written as its runs are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TextIO

from rollcage_views.audit import (
    AuditEntry,
    Damaged,
    Item,
    RunHeading,
    Summary,
    about_run,
    counts_of,
    most_first,
    open_text,
    subject,
    totals_text,
    what_happened,
    who_decided,
)
from rollcage_views.html.rendering import write_report
from rollcage_views.text import utc_text

__all__ = ["AuditRow", "AuditRun", "AuditSummary", "audit_parts", "audit_row", "write_audit"]


@dataclasses.dataclass(frozen=True, slots=True)
class AuditRun:
    """The head of a run before its rows; `about` it in a line. Without an id, it ends the rows."""

    run: str = ""
    job: str = ""
    about: str = ""
    status: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class AuditRow:
    """An entry, as texts."""

    run: str
    step: int
    time: str
    agent: str
    subject: str
    args: str
    decision: str
    decided: str
    state: str
    happened: str


@dataclasses.dataclass(frozen=True, slots=True)
class AuditSummary:
    """The counts: in words, in tables, and the entries that need attention."""

    totals: str
    counts: list[tuple[str, list[tuple[str, int]]]]
    open: list[tuple[str, int, str, str]]
    more_open: int


def write_audit(out: TextIO, items: Iterable[Item], summary: Summary) -> None:
    """Write an audit as one self-contained page.

    Args:
        out: the output.
        items: see `rollcage_views.audit.audited`.
        summary: their counts.
    """
    write_report("audit.html", out, parts_of=audit_parts(items, summary))


def audit_parts(
    items: Iterable[Item], summary: Summary
) -> Iterator[tuple[str, AuditRun | AuditRow | Damaged | AuditSummary]]:
    """Yield an audit, piece by piece: `run` begins a run, `end` follows its last row.

    The summary comes last.

    Args:
        items: see `rollcage_views.audit.audited`.
        summary: their counts.
    """
    inside = False
    for item in items:
        if inside and not isinstance(item, AuditEntry):
            yield "end", AuditRun()
            inside = False
        match item:
            case RunHeading():
                inside = True
                about = about_run(item, utc_text(item.time))
                yield "run", AuditRun(item.run, item.job, about, item.status)
            case AuditEntry():
                yield "row", audit_row(item)
            case Damaged():
                yield "damaged", item
    if inside:
        yield "end", AuditRun()
    yield "summary", _summary(summary)


def audit_row(entry: AuditEntry) -> AuditRow:
    """Return one entry as a row."""
    return AuditRow(
        run=entry.run,
        step=entry.step,
        time=utc_text(entry.time),
        agent=entry.agent,
        subject=subject(entry),
        args=entry.args,
        decision=entry.decision,
        decided=who_decided(entry),
        state="undone" if entry.undone in ("verified", "compensated") else entry.state,
        happened=_behind_state(what_happened(entry), entry.state.replace("_", " ")),
    )


def _behind_state(happened: str, state: str) -> str:
    """Return the details without the state, which has a badge."""
    return happened.removeprefix(state).lstrip(":; ")


def _summary(summary: Summary) -> AuditSummary:
    counts = [(title, most_first(numbers)) for title, numbers in counts_of(summary) if numbers]
    listed = [(each.run, each.step, each.state, open_text(each)) for each in summary.open]
    return AuditSummary(totals_text(summary), counts, listed, summary.more_open)
