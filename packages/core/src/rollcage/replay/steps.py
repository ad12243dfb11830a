"""The steps of one trace as it is read, and of the older ones what it has not come to yet.

Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rollcage.replay.path import Entry

__all__ = ["Origin", "TraceSteps", "around", "branches_below"]

Origin = tuple[str, int]
"""A step by where it first ran: run and step."""


class TraceSteps:
    """The steps of one trace as it is read, and of the older ones what it has not come to yet.

    Attributes:
        number: which trace of the lineage it is, from 0 for the oldest.
        run: the run of it.
        older: what the older ones left, by where each step first ran.
        own: those of this trace, in order.
        by_number: those of this trace that were started in it, by their numbers.
        replays: those of this trace that it gave back, by where each first ran.
        joins: how each branch came back, where that was not undone.
    """

    def __init__(self, number: int, older: dict[Origin, Entry]) -> None:
        self.number = number
        self.run = ""
        self.older = older
        self.own: list[Entry] = []
        self.by_number: dict[int, Entry] = {}
        self.replays: dict[Origin, Entry] = {}
        self.joins = {e.name: e for e in older.values() if e.kind == "branch" and not e.undone}

    def __iter__(self) -> Iterator[Entry]:
        """All of them, the older ones first."""
        yield from self.older.values()
        yield from self.own

    def find(self, origin: Origin) -> Entry | None:
        """The step that first ran there, where it stands now; None: of a run that is not read."""
        entry = self.older.get(origin) or self.replays.get(origin)
        if entry is None and origin[0] == self.run:
            entry = self.by_number.get(origin[1])
        return entry

    def bodies(self) -> dict[str, Entry]:
        """The steps by their fingerprints, which the branches of their bodies are named by."""
        return {entry.fingerprint: entry for entry in self}

    def below(self, branch: str) -> set[str] | None:
        """The names of a branch, of those forked off it, and of the calls inside; None for all."""
        return branches_below(branch, self)


def around(entry: Entry, bodies: Mapping[str, Entry]) -> Iterator[Entry]:
    """The steps in whose bodies a step was called, from the innermost on.

    `bodies` are steps by their fingerprints.
    """
    branch = entry.branch
    while branch.startswith("#"):
        outer = bodies.get(branch[1:65])
        if outer is None:
            return
        yield outer
        branch = outer.branch


def branches_below(branch: str, entries: Iterable[Entry]) -> set[str] | None:
    """The names of a branch, of those forked off it, and of the calls inside; None for all."""
    if not branch:
        return None
    names = {branch}
    for entry in entries:  # in order: what a body calls comes after its step
        at = entry.branch
        inside = at.startswith("#") and at.partition("/")[0] in names
        if at in names or inside or at.startswith(f"{branch}/"):
            names |= {at, f"#{entry.fingerprint}"}
    return names
