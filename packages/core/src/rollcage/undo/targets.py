"""Select the steps that an undo covers, and their order. Pure functions of a run.

A choice covers all later steps of a branch, too: a step that stays behind an undone one was made in
a world that is gone, and the next resume would diverge there.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from rollcage.errors import SessionError
from rollcage.trace.run import CHANGES, Level, Run, Step

__all__ = [
    "after_step",
    "around",
    "blocks_named",
    "keeps_place",
    "newest_first",
    "of_blocks",
    "resources",
]


def around(run: Run, step: Step) -> Iterator[Step]:
    """Yield the calls and blocks around a step, the innermost first."""
    owner = run.owner(step.branch)
    while owner is not None:
        yield owner
        owner = run.owner(owner.branch)


def after_step(run: Run, to: int, within: str = "") -> list[Step]:
    """Return the steps behind step `to`; 0: all.

    The calls in a body stay or go with the call: all stay, if the call stays and has ended well;
    none stays, if the call is a write that goes, because its plan may cover its calls.

    Args:
        run: the run.
        to: the last step that stays.
        within: only steps in this branch, and in branches inside it; empty: all.
    """
    return [
        step
        for step in run.held()
        if not (step.effect == "pure" or step.borrowed)
        and _is_after(run, step, to)
        and (not within or run.within(step, within))
    ]


def _is_after(run: Run, step: Step, to: int) -> bool:
    for owner in reversed(list(around(run, step))):
        if owner.effect == "write" and owner.n > to:
            return True
        if owner.effect != "branch" and owner.n <= to and owner.status == "ok":
            return False
    return step.n > to


def blocks_named(run: Run, name: str) -> list[Step]:
    """Return the blocks with a name, or a path of names: `outer/inner`.

    Raises:
        SessionError: there is no such block.
    """
    found = []
    for step in run.held():
        if step.effect != "branch":
            continue
        path = [each.name for each in around(run, step) if each.effect == "branch"]
        whole = "/".join([*reversed(path), step.name])
        if name in (step.inner, whole) or whole.endswith("/" + name):
            found.append(step)
    if not found:
        raise SessionError(f"run {run.id} has no branch {name!r} that holds")
    return found


def of_blocks(run: Run, blocks: Iterable[Step]) -> list[Step]:
    """Return the steps in blocks, and all later steps, which have seen the joins of the blocks.

    A block in the body of an ended write can't go without that call: then the whole call goes. The
    blocks themselves keep their places.
    """
    chosen: dict[int, Step] = {}
    for block in blocks:
        first = block
        for owner in around(run, block):
            if owner.effect == "write" and owner.status in ("ok", "error"):
                first = owner
        if first is not block:
            chosen[first.n] = first
        inside = list(run.inside(first.inner))
        last = max((step.n for step in inside), default=first.n)
        place = {level.branch: level for level in run.lineage_of(first)}
        for step in run.held():
            if step.effect == "pure" or step.borrowed:
                continue
            if run.within(step, first.inner) or _comes_after(run, step, place, last):
                chosen[step.n] = step
    return list(chosen.values())


def _comes_after(run: Run, step: Step, place: dict[str, Level], last: int) -> bool:
    """Tell whether a step came after a place; `last`: the last step inside the place."""
    level = next((each for each in run.lineage_of(step) if each.branch in place), None)
    if level is None or level.step is None:
        return False
    mine, its = place[level.branch], level.step
    if mine.step is its:  # it is around it
        return False
    if its.effect == "read":
        return its.start > mine.pos
    if its.effect == "model":
        return its.pos > mine.pos or (its.pos == mine.pos and its.n > last)
    if its.pos != mine.pos:
        return its.pos > mine.pos
    assert mine.step is not None
    return run.comes_after(its, mine.step)


def resources(step: Step) -> set[str]:
    """Return the changed resources of a step, by the names that its tool observes."""
    undo = step.undo or {}
    return {*(undo.get("before") or ()), *(undo.get("after") or ())}


def newest_first(steps: Iterable[Step]) -> list[Step]:
    """Return steps in the order of their undo.

    Steps on one resource go in the reverse order of execution, wherever they stand (a step that ran
    again has a later number than its followers). Otherwise batches go in reverse order, and a batch
    in the reverse order of its slots.
    """
    every = list(steps)
    first: dict[tuple[str, int, str], int] = {}
    for step in every:
        at = step.branch, step.pos, step.gone  # a step left behind is of another batch
        first[at] = min(first.get(at, step.n), step.n)
    on: defaultdict[str, list[Step]] = defaultdict(list)
    for step in sorted(every, key=lambda step: -step.n):
        for resource in resources(step):
            on[resource].append(step)
    before: defaultdict[int, set[int]] = defaultdict(set)
    then: defaultdict[int, list[Step]] = defaultdict(list)
    for row in on.values():
        for newer, older in pairwise(row):
            if newer.n not in before[older.n]:
                before[older.n].add(newer.n)
                then[newer.n].append(older)

    def rank(step: Step) -> tuple[int, int, int]:
        return -first[step.branch, step.pos, step.gone], -step.slot, -step.n

    ready = [(rank(step), step.n, step) for step in every if not before[step.n]]
    heapq.heapify(ready)
    found: list[Step] = []
    while ready:
        _, n, step = heapq.heappop(ready)
        found.append(step)
        for older in then[n]:
            before[older.n].discard(n)
            if not before[older.n]:
                heapq.heappush(ready, (rank(older), older.n, older))
    return found


def keeps_place(run: Run, step: Step, gone: set[int]) -> bool:
    """Tell whether an undone write keeps its place, because other steps of its batch stay."""
    return (
        not step.gone
        and step.effect in CHANGES
        and any(
            other.pos == step.pos and other.effect in CHANGES and other.n not in gone
            for other in run.branches.get(step.branch, ())
        )
    )
