"""The runs that an audit reads, and the entries that it reports."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from rollcage import RunInfo, Store, list_runs
from rollcage.trace.recorded import LogTrace, trace_of

from rollcage_views.audit.entry import AuditEntry

__all__ = ["Named", "Selection", "runs_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """A selection; an empty part selects everything.

    Attributes:
        since: the earliest time (Unix, µs).
        until: the time before which entries began (Unix, µs).
        tools: globs over the names of tools.
        agents: globs over the names of agents.
        rules: globs over the ids of rules.
        decisions: decisions of the gate.
        undone: only undone calls, and the undos.
    """

    since: int | None = None
    until: int | None = None
    tools: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    undone: bool = False

    def __contains__(self, entry: AuditEntry) -> bool:
        return (
            (self.since is None or entry.time >= self.since)
            and (self.until is None or entry.time < self.until)
            and _matches(entry.tool, self.tools)
            and _matches(entry.agent, self.agents)
            and _matches(entry.rule, self.rules)
            and (not self.decisions or entry.decision in self.decisions)
            and (not self.undone or entry.kind == "undo" or entry.undone in _TAKEN_BACK)
        )


_TAKEN_BACK: Final = ("verified", "compensated")


def _matches(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A run to read.

    Attributes:
        run: its id.
        read: returns its lines.
        info: its entry in a list; None if it is in no list.
    """

    run: str
    read: Callable[[], LogTrace]
    info: RunInfo | None


def runs_of(
    store: Store,
    meant: Iterable[Named] | None = None,
    *,
    names: Sequence[str] = (),
    until: int | None = None,
) -> list[Named]:
    """Return the chosen runs, oldest first.

    Args:
        store: the store.
        meant: the runs that were named; None: all runs of the store.
        names: globs over the names of jobs.
        until: runs that began later are left out (Unix, µs).

    Raises:
        StoreError: the store can't be read.
    """
    read = functools.partial(functools.partial, trace_of, store)
    listed = (Named(info.run, read(info.run), info) for info in reversed(list_runs(store)))
    return [
        each
        for each in (listed if meant is None else meant)
        if each.info is None
        or (_matches(each.info.name, names) and (until is None or each.info.begun < until))
    ]
