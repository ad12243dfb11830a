"""An audit for people: tables on a terminal, a Markdown report and a page of HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text
from rollcage_views import time_text

from rollcage_cli.audit.entries import Entry, Head, Origin, policy_text
from rollcage_cli.audit.lines import instant
from rollcage_cli.audit.reading import Damaged, Item, Summary
from rollcage_cli.table import Table

__all__ = ["what_happened", "who_decided", "write_html", "write_markdown", "write_table"]

_STYLES: Final = {
    "hit": "cyan", "seen": "blue", "ran": "green", "failed": "red", "blocked": "magenta",
    "unknown": "bold yellow", "not_asked_for": "bold yellow", "pending": "bold yellow",
    "stopped": "bold red", "conflict": "red", "not_started": "dim", "continued": "dim",
    "refused": "magenta",
}  # fmt: skip
_TITLES: Final = ("time", "step", "agent", "call", "arguments", "decision", "outcome")
_MARKS: Final = re.compile(r"([\\`*_\[\]|~#])")


# --- what is said of an entry --------------------------------------------------------------------


def _subject(entry: Entry) -> str:
    """What an entry is about, in the column of calls."""
    if entry.kind == "call":
        return f"↺ {entry.tool}" if entry.undoes else entry.tool
    words = {
        "approval": "approval of", "undo": "undo of", "stop": "stop", "refused": "refused",
        "policy": "policy", "said": "the user said", "orphan": "orphaned",
    }  # fmt: skip
    return f"{words[entry.kind]} {entry.tool}".rstrip()


def who_decided(entry: Entry) -> str:
    """The decision, by which rule, by whom."""
    if entry.kind in ("undo", "orphan"):
        return ""
    parts = [entry.decision] if entry.decision else []
    if not entry.enforced:
        parts.append("(not enforced)")
    if entry.rule:
        parts.append(f"by {entry.rule}")
    if entry.shadow:
        rule = f" by {entry.shadow_rule}" if entry.shadow_rule else ""
        parts.append(f"[shadow: {entry.shadow}{rule}]")
    if entry.kind == "policy":
        parts.append(policy_text(entry.policy, entry.policy_digest, entry.policy_mode))
    if entry.kind == "call" and entry.by:
        parts.append(f"{'rejected' if entry.state == 'blocked' else 'approved'} by {entry.by}")
    elif entry.by:
        parts.append(f"{entry.state} by {entry.by}")
    return " ".join(parts)


def what_happened(entry: Entry) -> str:
    """What became of it, where it first ran, and whether it was undone."""
    parts = [entry.state.replace("_", " ")]
    said = entry.reason if entry.kind != "call" or entry.state == "blocked" else entry.outcome
    code = f"{entry.code}: " if entry.code and entry.state in ("blocked", "refused") else ""
    if said or code:
        parts[0] += f": {code}{said}"
    if entry.shadow_reason:
        parts.append(f"shadow: {entry.shadow_reason}")
    if entry.args_before:
        parts.append(f"asked for with {entry.args_before}")
    if entry.drift:
        parts.append(f"drift: {entry.drift}")
    if entry.first_ran:
        parts.append(f"first ran as {_step_text(entry, entry.first_ran)}")
    if entry.undoes:
        parts.append(f"undoes {_step_text(entry, entry.undoes)}")
    if entry.undone:
        parts.append(f"undo: {entry.undone}")
    if entry.left_by:
        parts.append(f"left behind by {_step_text(entry, entry.left_by)}")
    if entry.resolved_by:
        parts.append(f"resolved by {entry.resolved_by}")
    return "; ".join(parts)


def _step_text(entry: Entry, step: Origin) -> str:
    run, number = step
    return f"step {number}" if run == entry.run else f"step {number} of run {run}"


def _about_run(head: Head) -> str:
    return _about(head, instant(head.time))


def _about(head: Head, when: str) -> str:
    joined = " of " if head.mode == "fork" else ", resumes "
    source = f"{joined}{head.source}" if head.source else ""
    torn = f", a torn last line of {head.torn} bytes is left out" if head.torn else ""
    policy = f", policy {head.policy}" if head.policy else ""
    return f"{head.status}, {head.mode}{source}, started {when}{policy}{torn}"


def _counts(summary: Summary) -> Iterator[tuple[str, Mapping[str, int]]]:
    """The tables of counts at the end."""
    yield "Decisions", summary.decisions
    yield "Rules", summary.rules
    yield "Tools", {tool: states.total() for tool, states in summary.tools.items()}
    yield "Outcomes", {state.replace("_", " "): n for state, n in summary.states.items()}
    yield "Approvals", summary.approvals
    yield "Undos", summary.undos
    yield "Credentials redacted", summary.credentials


def _sorted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _totals(summary: Summary) -> str:
    damaged = f", {len(summary.damaged)} of them damaged" if summary.damaged else ""
    pruned = f", {summary.pruned} of them pruned" if summary.pruned else ""
    runs = f"{summary.runs} run{'' if summary.runs == 1 else 's'}{damaged}{pruned}"
    calls, told = summary.kinds["call"], summary.told
    refused = f", {summary.kinds['refused']} refused" if summary.kinds["refused"] else ""
    return f"{runs}; {calls} call{'' if calls == 1 else 's'}{refused} in {told} of them"


# --- on a terminal -------------------------------------------------------------------------------


def write_table(items: Iterator[Item], summary: Summary, out: Console) -> None:
    """A table for each run, and the counts."""
    table: Table | None = None
    for item in items:
        if isinstance(item, Entry):
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
        out.print(Text(_about(item, time_text(item.time))), soft_wrap=True)
        table = _empty_table()
    if table is not None:
        out.print(table, "", crop=False)
    _print_summary(summary, out)


def _empty_table() -> Table:
    table = Table()
    for title, width in zip(_TITLES, (19, 4, 12, 26, None, 30, None), strict=True):
        table.add_column(title, max_width=width, no_wrap=width is not None)
    return table


def _row(entry: Entry) -> tuple[str | Text, ...]:
    happened = Text(_short(what_happened(entry), 300), style=_STYLES.get(entry.state, ""))
    return (
        time_text(entry.time), str(entry.step or ""), entry.agent, _subject(entry),
        _short(entry.args, 200), who_decided(entry), happened,
    )  # fmt: skip


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def _print_summary(summary: Summary, out: Console) -> None:
    out.print(Text(_totals(summary), style="bold"))
    for title, counts in _counts(summary):
        if counts:
            said = ", ".join(f"{number} {name}" for name, number in _sorted(counts))
            out.print(Text(f"{title}: {said}"), soft_wrap=True)
    if summary.open:
        out.print(Text("Needs attention:", style="bold yellow"))
        for entry in summary.open:
            out.print(Text(f"  {_open_text(entry)}"), soft_wrap=True)
        if summary.more_open:
            out.print(f"  and {summary.more_open} more")


def _open_text(entry: Entry) -> str:
    where = f"step {entry.step} of " if entry.step else ""
    return f"{where}run {entry.run}: {_subject(entry)}: {_short(what_happened(entry), 300)}"


# --- Markdown ------------------------------------------------------------------------------------


def write_markdown(items: Iterator[Item], summary: Summary, out: TextIO) -> None:
    """A report that any Markdown reader shows, GitHub's among them."""
    out.write("# Audit\n")
    for item in items:
        if isinstance(item, Head):
            out.write(f"\n## {_marked(item.job)}\n\n`{item.run}`: {_marked(_about_run(item))}\n\n")
            out.write(f"| {' | '.join(_TITLES)} |\n|{'---|' * len(_TITLES)}\n")
        elif isinstance(item, Entry):
            cells = (
                instant(item.time), str(item.step or ""), item.agent, _subject(item),
                _short(item.args, 400), who_decided(item), _short(what_happened(item), 600),
            )  # fmt: skip
            out.write(f"| {' | '.join(map(_marked, cells))} |\n")
        else:
            out.write(f"\n## Damaged: {_marked(item.run)}\n\n{_marked(item.reason)}\n")
    out.write(f"\n## Summary\n\n{_totals(summary)}\n")
    for title, counts in _counts(summary):
        if counts:
            out.write(f"\n| {title} | calls |\n|---|---:|\n")
            out.writelines(f"| {_marked(name)} | {n} |\n" for name, n in _sorted(counts))
    if summary.open:
        out.write("\n## Needs attention\n\n")
        out.writelines(f"- {_marked(_open_text(entry))}\n" for entry in summary.open)
        if summary.more_open:
            out.write(f"- and {summary.more_open} more\n")


def _marked(text: str) -> str:
    """A text that means nothing to Markdown, nor to HTML inside of it."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\1", plain).replace("://", ":&#47;&#47;").replace("@", "&#64;")


# --- HTML ----------------------------------------------------------------------------------------


def write_html(items: Iterator[Item], summary: Summary, out: TextIO) -> None:
    """One page that needs nothing else: no script, no font, no image, no link."""
    from jinja2 import Environment, StrictUndefined

    pages = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files("rollcage_cli.audit").joinpath("report.html")
    template = pages.from_string(source.read_text(encoding="utf-8"))
    told = template.generate(
        items=_kinds(items), summary=summary, titles=_TITLES, instant=instant, subject=_subject,
        decision=who_decided, happened=what_happened, about=_about_run, open_text=_open_text,
        totals=_totals, counts=_counts, ordered=_sorted,
    )  # fmt: skip
    out.writelines(told)


def _kinds(items: Iterator[Item]) -> Iterator[tuple[str, Item]]:
    """Each item with what it is: `run` begins one, `end` is behind its last entry."""
    last: Head | None = None
    for item in items:
        if not isinstance(item, Entry) and last is not None:
            yield "end", last
            last = None
        if isinstance(item, Head):
            last = item
        yield "run" if isinstance(item, Head) else type(item).__name__.lower(), item
    if last is not None:
        yield "end", last
