"""Which recorded steps an undo covers, and in which order (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rollcage.replay.path import Entry
from rollcage.replay.recording import Lineage
from rollcage.replay.steps import Origin, around, branches_below
from rollcage.undo.task import Task

__all__ = ["targets", "without_calls"]


def targets(
    lineage: Lineage, *, to: int = 0, branch: str = "", only: Iterable[Entry] | None = None
) -> list[Entry]:
    """The effects to undo, the newest first: by world, a batch by its slots, in reverse.

    Args:
        lineage: the run and the runs that it resumes, from their traces.
        to: undo the effects after this step of the newest run; 0: all. Calls from the body of a
            step that stays, and has ended, stay with it; so do the orphans that it accepted.
        branch: only effects in this branch, and below.
        only: only these steps, and those below them.
    """
    names = branches_below(branch, lineage.entries)
    newest = len(lineage.runs) - 1
    by_origin = {(entry.run, entry.step): entry for entry in lineage.entries}
    wanted = None if only is None else _origins_below(only, lineage.entries)
    forked = lineage.settings.get("mode") == "fork"  # the recorded effects are not its own
    found = [
        entry
        for entry in lineage.entries
        if entry.undoes is None and not entry.undone and _may_have_changed(entry)
        if not forked or entry.run == lineage.runs[-1]
        if _is_after(entry, newest, to, by_origin)
        if names is None or entry.branch in names
        if wanted is None or (entry.run, entry.step) in wanted
    ]
    bodies = {entry.fingerprint: entry for entry in lineage.entries}
    kept = {e.fingerprint for e in lineage.entries if e.generation == newest and e.number <= to}
    chosen = {entry.fingerprint for entry in found}
    inside = {entry.branch for entry in lineage.entries}
    found = [
        entry
        for entry in found
        if not any(
            (outer.fingerprint in kept and outer.is_settled)
            or ((outer.undone or outer.fingerprint in chosen) and _stands_for_its_calls(outer))
            for outer in around(entry, bodies)
        )
        # A scope's effects are in its branch; the scope stands for them only if that is gone.
        if entry.effect != "scope"
        or (entry.run not in lineage.runs and f"#{entry.fingerprint}" not in inside)
    ]
    when = {run: number for number, run in enumerate(lineage.runs)}
    batches: dict[tuple[str, str, int], int] = {}
    for entry in found:
        batch = entry.run, entry.branch, entry.position
        batches[batch] = min(batches.get(batch, entry.step), entry.step)

    def order(entry: Entry) -> tuple[int, int, int, int, int]:
        first = batches[entry.run, entry.branch, entry.position]
        return when.get(entry.run, -1), first, entry.turn, entry.slot, entry.step

    return sorted(found, key=order, reverse=True)


def _is_after(entry: Entry, newest: int, to: int, by_origin: Mapping[Origin, Entry]) -> bool:
    """Whether a step, or the write that orphaned it, is after step `to` of the newest run."""
    if entry.accepted is not None:
        entry = by_origin.get(entry.accepted, entry)
    return entry.generation < newest or entry.number > to


def _may_have_changed(entry: Entry) -> bool:
    """Whether a step has anything to undo; a failed one does if it recorded what it changed."""
    if entry.kind != "tool" or entry.effect not in ("write", "scope"):
        return False
    if entry.status == "error":
        return entry.undo is not None and entry.effect == "write"
    return entry.status in ("ok", "unknown")


def _origins_below(only: Iterable[Entry], entries: Sequence[Entry]) -> set[Origin]:
    """These steps, with all steps in the branches that ended in them or that their bodies made."""
    chosen = list(only)
    found = {(entry.run, entry.step) for entry in chosen}
    names: set[str] = set()
    for entry in chosen:
        below = entry.name if entry.kind == "branch" else f"#{entry.fingerprint}"
        names |= branches_below(below, entries) or set()
    return found | {(entry.run, entry.step) for entry in entries if entry.branch in names}


def _stands_for_its_calls(entry: Entry) -> bool:
    """Whether the plan of a step also undoes the calls from its body."""
    known = entry.status != "unknown"  # otherwise only its probe can find that out
    return known and entry.effect == "write" and bool((entry.undo or {}).get("reversible"))


def without_calls(tasks: Sequence[Task[Entry]], entries: Iterable[Entry]) -> list[Task[Entry]]:
    """Leave out calls from the body of a step that a probe found to have happened.

    The plan of that step covers them.
    """
    happened = {t.entry.fingerprint for t in tasks if t.happened and t.plan is not None}
    if not happened:
        return list(tasks)
    bodies = {entry.fingerprint: entry for entry in entries}
    return [
        task
        for task in tasks
        if not any(outer.fingerprint in happened for outer in around(task.entry, bodies))
    ]
