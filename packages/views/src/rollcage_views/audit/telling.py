"""An audit in words: an entry, a run, the counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollcage_views.audit.entry import AuditEntry, Origin, RunHeading, policy_text
from rollcage_views.audit.lines import instant
from rollcage_views.audit.reading import Summary

__all__ = [
    "about_run", "counts_of", "most_first", "open_text", "short", "subject", "totals_text",
    "what_happened", "who_decided",
]  # fmt: skip


def subject(entry: AuditEntry) -> str:
    """Return the subject of an entry."""
    if entry.kind == "call":
        return f"↺ {entry.tool}" if entry.undoes else entry.tool
    words = {
        "approval": "approval of", "undo": "undo of", "stop": "stop", "refused": "refused",
        "policy": "policy", "user_input": "user input", "orphan": "orphaned",
    }  # fmt: skip
    return f"{words[entry.kind]} {entry.tool}".rstrip()


def who_decided(entry: AuditEntry) -> str:
    """Return the decision, its rule, and the person."""
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


def what_happened(entry: AuditEntry) -> str:
    """Return the state, where the call first ran, and whether it was undone."""
    parts = [entry.state.replace("_", " ")]
    detail = entry.reason if entry.kind != "call" or entry.state == "blocked" else entry.outcome
    code = f"{entry.code}: " if entry.code and entry.state in ("blocked", "refused") else ""
    if detail or code:
        parts[0] += f": {code}{detail}"
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


def _step_text(entry: AuditEntry, step: Origin) -> str:
    run, number = step
    return f"step {number}" if run == entry.run else f"step {number} of run {run}"


def about_run(head: RunHeading, when: str = "") -> str:
    """Return a run in a line: its status, and when it started, in UTC by default."""
    when = when or instant(head.time)
    source = f" of {head.source}" if head.source else ""
    policy = f", policy {head.policy}" if head.policy else ""
    return f"{head.status}, {head.mode}{source}, started {when}{policy}"


def counts_of(summary: Summary) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Yield the tables of counts at the end."""
    yield "Decisions", summary.decisions
    yield "Rules", summary.rules
    yield "Tools", {tool: states.total() for tool, states in summary.tools.items()}
    yield "Outcomes", {state.replace("_", " "): n for state, n in summary.states.items()}
    yield "Approvals", summary.approvals
    yield "Undos", summary.undos
    yield "Credentials redacted", summary.credentials


def most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Counts, the highest first."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def totals_text(summary: Summary) -> str:
    """Return how many runs were read, and how many are reported."""
    damaged = f", {len(summary.damaged)} of them damaged" if summary.damaged else ""
    pruned = f", {summary.pruned} of them pruned" if summary.pruned else ""
    runs = f"{summary.runs} run{'' if summary.runs == 1 else 's'}{damaged}{pruned}"
    calls, reported = summary.kinds["call"], summary.reported
    refused = f", {summary.kinds['refused']} refused" if summary.kinds["refused"] else ""
    return f"{runs}; {calls} call{'' if calls == 1 else 's'}{refused} in {reported} of them"


def open_text(entry: AuditEntry) -> str:
    """Return an entry that needs attention, in a line."""
    where = f"step {entry.step} of " if entry.step else ""
    return f"{where}run {entry.run}: {subject(entry)}: {short(what_happened(entry), 300)}"


def short(text: str, length: int) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= length else f"{text[:length]}…"
