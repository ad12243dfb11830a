"""What came after each recorded step: a failure that nothing came after is run again.

Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rollcage.replay.path import Entry

__all__ = [
    "forked_off", "forks_of", "is_fork", "is_pure", "mark_frontier", "mark_frontiers",
    "undone_as_recorded",
]  # fmt: skip


def mark_frontiers(
    branches: dict[str, list[Entry]],
    after: dict[str, tuple[str, ...]],
    *,
    retry_failed: bool | None,
) -> None:
    """Mark in each branch the steps that nothing came after."""
    went_on = _went_on(branches, after)
    joined = _joined(branches)
    for name, steps in branches.items():
        if name in joined and retry_failed is None:
            continue
        mark_frontier(steps, retry_failed=retry_failed, went_on=went_on.get(name))


def mark_frontier(
    steps: list[Entry], *, retry_failed: bool | None, went_on: int | None = None
) -> None:
    """Mark the steps that no tool call of a later turn, or of their own slot, came after.

    `went_on` is the last turn of what was forked off their branch, if anything was. A pure step of
    an older trace says nothing: it holds anywhere.
    """
    if retry_failed is not None:
        for entry in steps:
            entry.frontier = retry_failed
        return
    last: int | None = None
    pure: list[tuple[int, int]] = []  # the pure steps so far: their traces, and their turns
    seats: set[int] = set()
    for entry in reversed(steps):
        if entry.status == "blocked" or entry.abandoned or entry.undone:
            continue
        if entry.kind == "model":
            entry.frontier = last is None and not pure
            continue
        if last is not None and entry.era != last:
            break
        later = any(made >= entry.generation and era != entry.era for made, era in pure)
        later = later or (went_on is not None and went_on > entry.era)
        entry.frontier = not later and entry.seat not in seats  # else: retried in its own slot
        if is_pure(entry):
            pure.append((entry.generation, entry.era))
            continue
        last = entry.era
        seats.add(entry.seat)


def _went_on(branches: dict[str, list[Entry]], after: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """By branch, the last turn of what was forked off it, or comes after, and changed something."""
    last = _came_after(branches, after)
    for branch in filter(is_fork, branches):
        turn = _last_change(branches[branch])
        for around in forked_off(branch) if turn else ():
            last[around] = max(last.get(around, 0), turn)
    return last


def _came_after(
    branches: dict[str, list[Entry]], after: dict[str, tuple[str, ...]]
) -> dict[str, int]:
    """By branch, the last turn of what comes after it and changed something."""
    last: dict[str, int] = {}
    changed: dict[str, int] = {}  # the last turn in which a branch, or one off it, did
    for branch, steps in branches.items() if after else ():
        turn = _last_change(steps)
        for each in (branch, *forked_off(branch)):
            changed[each] = max(changed.get(each, 0), turn)
    for branch, comes_after in after.items():
        turn = changed.get(branch, 0)
        before = set(comes_after) if turn else set[str]()
        waiting = [*before]
        while waiting:
            each = waiting.pop()
            last[each] = max(last.get(each, 0), turn)
            more = set(after.get(each, ())) - before
            before |= more
            waiting += more
    return last


def _last_change(steps: Iterable[Entry]) -> int:
    """The last turn in which one of these steps changed something; 0: none did."""
    return max((e.era for e in steps if e.has_effect and not e.abandoned), default=0)


def _joined(branches: dict[str, list[Entry]]) -> set[str]:
    """The branches that came back: whoever worked there has gone on."""
    every = (entry for steps in branches.values() for entry in steps if entry.kind == "branch")
    return {entry.name for entry in every if not (entry.undone or entry.abandoned)}


def undone_as_recorded(
    branches: dict[str, list[Entry]],
    forks: dict[str, list[str]],
    after: dict[str, tuple[str, ...]],
    rolled: set[str],
    *,
    offline: bool,
) -> set[str]:
    """The branches that were undone whole, and that the agent has left behind by then.

    As a failure that something came after, each is given back as it was; one that nothing came
    after is run again, in whole.
    """
    replayed: set[str] = set()
    joined = _joined(branches)
    came_after = _came_after(branches, after)
    for branch in rolled:
        parent = branch.rpartition("/")[0] if is_fork(branch) else None
        if parent in rolled:
            continue  # it is one with that
        block = {branch, *(each for each in rolled if each.startswith(f"{branch}/"))}
        steps = [entry for each in block for entry in branches.get(each, ()) if not entry.past]
        last = max((entry.era for entry in steps), default=0)
        siblings: list[str] = []
        if parent is not None:
            siblings = [parent, *(each for each in forks.get(parent, ()) if each != branch)]
        went_on = not joined.isdisjoint(forked_off(branch))
        went_on = went_on or any(came_after.get(each, 0) > last for each in forked_off(branch))
        went_on = went_on or any(
            entry.era > last
            and entry.kind != "model"
            and entry.status != "blocked"
            and not is_pure(entry)
            and not entry.abandoned
            and not entry.undone
            for each in siblings
            for entry in branches.get(each, ())
        )
        if (offline or went_on) and not any(entry.has_effect for entry in steps):
            replayed |= block
    inside = {f"#{e.fingerprint}" for each in replayed for e in branches.get(each, ())}
    return replayed | (inside & rolled)


def forks_of(branches: Iterable[str]) -> dict[str, list[str]]:
    """By branch, those that were forked off it."""
    forks: dict[str, list[str]] = {}
    for branch in filter(is_fork, branches):
        forks.setdefault(branch.rpartition("/")[0], []).append(branch)
    return forks


def is_fork(branch: str) -> bool:
    """Whether a branch was forked off another one: not the first one, nor that of a body."""
    return "/" in branch or (branch != "" and not branch.startswith("#"))


def forked_off(branch: str) -> Iterator[str]:
    """What a branch was forked off, and what that was, and so on."""
    while is_fork(branch):
        branch = branch.rpartition("/")[0]
        yield branch


def is_pure(entry: Entry) -> bool:
    """Whether a step is found by its key alone, in any world."""
    return entry.kind == "tool" and entry.effect == "pure" and entry.status != "blocked"
