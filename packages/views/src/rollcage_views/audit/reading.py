"""Read the runs of an audit one after the other, holding one at a time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rollcage.errors import RollcageError

from rollcage_views.audit.entries import entries_of, head_of
from rollcage_views.audit.entry import AuditEntry, RunHeading, as_seen_by
from rollcage_views.audit.selection import Named, Selection
from rollcage_views.infos import is_pruned
from rollcage_views.runs import read_run
from rollcage_views.screen import Screen
from rollcage_views.viewer import SEES_ALL, Viewer

__all__ = ["Damaged", "Item", "Summary", "audited"]

_LISTED: Final = 500  # entries that are kept for the list at the end


@dataclasses.dataclass(frozen=True, slots=True)
class Damaged:
    """A run that can't be read, and why; it has no entries."""

    run: str
    code: str
    reason: str


Item = RunHeading | AuditEntry | Damaged


@dataclasses.dataclass(slots=True)
class Summary:
    """The counts of an audit; complete when its last item was taken.

    Attributes:
        runs: runs that were read.
        reported: how many of them had selected entries.
        kinds: entries by kind.
        decisions: calls by the gate's decision.
        rules: calls by the rule that decided; without calls that no rule matched.
        tools: calls by tool, then by state.
        states: calls by state.
        approvals: approvals by decision.
        undos: undos by result.
        open: entries that need attention, the first 500.
        more_open: how many more need attention.
        damaged: the runs that can't be read.
        pruned: the runs whose traces were removed: they are only counted.
        credentials: removed credentials, by kind.
    """

    runs: int = 0
    reported: int = 0
    kinds: Counter[str] = dataclasses.field(default_factory=Counter[str])
    decisions: Counter[str] = dataclasses.field(default_factory=Counter[str])
    rules: Counter[str] = dataclasses.field(default_factory=Counter[str])
    tools: dict[str, Counter[str]] = dataclasses.field(default_factory=dict[str, Counter[str]])
    states: Counter[str] = dataclasses.field(default_factory=Counter[str])
    approvals: Counter[str] = dataclasses.field(default_factory=Counter[str])
    undos: Counter[str] = dataclasses.field(default_factory=Counter[str])
    open: list[AuditEntry] = dataclasses.field(default_factory=list[AuditEntry])
    more_open: int = 0
    damaged: list[Damaged] = dataclasses.field(default_factory=list[Damaged])
    pruned: int = 0
    credentials: dict[str, int] = dataclasses.field(default_factory=dict[str, int])

    def add(self, entry: AuditEntry) -> None:
        """Count an entry."""
        self.kinds[entry.kind] += 1
        if entry.kind == "call":
            self.decisions[entry.decision] += 1
            self.states[entry.state] += 1
            self.tools.setdefault(entry.tool, Counter())[entry.state] += 1
            if entry.rule:
                self.rules[entry.rule] += 1
        elif entry.kind == "approval":
            self.approvals[entry.state] += 1
        elif entry.kind == "undo":
            self.undos[entry.state] += 1
        if entry.is_open and len(self.open) < _LISTED:
            self.open.append(entry)
        elif entry.is_open:
            self.more_open += 1

    def as_data(self) -> dict[str, Any]:
        """Return the counts for machines."""
        return {
            "kind": "summary",
            "runs": self.runs,
            "entries": dict(self.kinds),
            "decisions": dict(self.decisions),
            "rules": dict(self.rules),
            "tools": {tool: dict(states) for tool, states in self.tools.items()},
            "states": dict(self.states),
            "approvals": dict(self.approvals),
            "undos": dict(self.undos),
            "open": len(self.open) + self.more_open,
            "damaged": len(self.damaged),
            "pruned": self.pruned,
            "credentials": self.credentials,
        }


def audited(
    runs: Sequence[Named],
    wanted: Selection,
    summary: Summary,
    advance: Callable[[], None] = lambda: None,
    viewer: Viewer = SEES_ALL,
) -> Iterator[Item]:
    """Yield each run with selected entries, followed by these entries; count them in `summary`.

    A run that can't be read is one item with its error, and the others follow.

    Args:
        runs: the runs to report on.
        wanted: the selection of their entries.
        summary: the counts.
        advance: called after each run that was read.
        viewer: the viewer.
    """
    screen = Screen()
    summary.credentials = screen.found
    for each in runs:
        summary.runs += 1
        if each.info is not None and is_pruned(each.info):
            summary.pruned += 1
            advance()
            continue
        try:
            seen = read_run(each.read())
        except RollcageError as error:
            reason = viewer.text(screen.text(str(error)))
            damaged = Damaged(screen.text(each.run), error.code, reason)
            summary.damaged.append(damaged)
            yield damaged
        else:
            entries = entries_of(seen, screen)
            reported = [as_seen_by(viewer, entry) for entry in entries if entry in wanted]
            if reported:
                summary.reported += 1
                yield head_of(seen, screen)
            for entry in reported:
                summary.add(entry)
                yield entry
        advance()
