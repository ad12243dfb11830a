"""Which runs an audit reads, and which of their entries it tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from rollcage.store import Reader, RunInfo, Store, open_store

from rollcage_cli.audit.entries import Entry
from rollcage_cli.lookup import find

__all__ = ["Named", "Selection", "runs_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for; an empty part asks for everything.

    Attributes:
        since: from when on (Unix, µs).
        until: up to and without when (Unix, µs).
        tools: globs over the names of tools.
        agents: globs over the names of agents.
        rules: globs over the ids of rules.
        decisions: of the gate.
        undone: only what was undone, and the undos.
    """

    since: int | None = None
    until: int | None = None
    tools: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    undone: bool = False

    def __contains__(self, entry: Entry) -> bool:
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
    """A run to read, and what its store's index says of it."""

    reader: Reader
    run: str
    info: RunInfo | None


def runs_of(
    store: str, references: Sequence[str], names: Sequence[str], until: int | None
) -> tuple[list[Named], list[Named]]:
    """The runs that are meant, and those besides that may tell of an undo of their steps.

    Args:
        store: the directory.
        references: as for every command; none: all runs of the store.
        names: globs over the names of jobs.
        until: runs that began later are left out.

    Raises:
        RollcageError: a reference means no run, or the store's index can't be read.
    """
    own_store = open_store(store)
    infos = own_store.runs()
    known = {info.run: Named(own_store, info.run, info) for info in infos}
    if references:
        meant: dict[str, Named] = {}
        for reference in references:
            found = find(store, reference)
            in_store = isinstance(found.reader, Store) and found.reader.url == own_store.url
            own = known.get(found.run) if in_store else None
            if own is not None and reference.startswith("@"):  # a job is all that it builds on
                meant |= _builds_on(own, known)
            meant[found.run] = own or Named(found.reader, found.run, None)
    else:
        meant = dict(known)
    chosen = [
        each
        for each in meant.values()
        if each.info is None
        or (_matches(each.info.name, names) and (until is None or each.info.time < until))
    ]
    return chosen, [known[run] for run in _later(infos, {each.run for each in chosen})]


def _builds_on(newest: Named, known: Mapping[str, Named]) -> dict[str, Named]:
    """The runs that one builds on, oldest first."""
    found: dict[str, Named] = {}
    each: Named | None = newest
    while each is not None and each.info is not None and each.run not in found:
        found[each.run] = each
        each = known.get(each.info.source or "")
    return dict(reversed(found.items()))


def _later(infos: Iterable[RunInfo], chosen: set[str]) -> Iterator[str]:
    """The runs that replay a chosen one, and those that replay these, but for themselves."""
    behind = set(chosen)
    for info in infos:  # oldest first: a source comes before what replays it
        if info.source in behind:
            behind.add(info.run)
            if info.run not in chosen:
                yield info.run
