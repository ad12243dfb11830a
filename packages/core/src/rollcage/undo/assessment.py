"""Whether a step may be undone, by what was observed before, after and now (DESIGN §6).

Pure functions; `step.undoing` looks at the states, and carries out what is decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rollcage.undo.compensation import Digests, differing, digests_of
from rollcage.undo.report import InDoubt, TaskState
from rollcage.undo.task import Task

__all__ = ["assess"]

_STAY: Final = ("conflict", "irreversible", "unknown")
_NOTHING: Final = digests_of({"": None})[""]


def assess(tasks: Sequence[Task], in_doubt: InDoubt) -> None:
    """Say of each task, the newest first, what can be done, by what was observed.

    A state is followed down from what it is now: once a later step is undone, it is what it
    was before that one. Where it is neither what a step left nor what was before that step,
    somebody else has changed it.
    """
    _follow_down(tasks, in_doubt, set())
    clean = _put_back(tasks)
    if clean:
        _follow_down(tasks, in_doubt, clean)


def _follow_down(tasks: Sequence[Task], in_doubt: InDoubt, clean: set[Task]) -> None:
    coming: Digests = {}  # what a resource will be when the steps after it are undone
    stays: dict[str, Task] = {}  # by resource, the step on it that can't be
    for task in tasks:
        here = {r: coming.get(r, state) for r, state in (task.now or {}).items()}
        task.differs = {}
        task.put_back = task in clean
        task.state, task.reason = _state(task, here, coming, in_doubt)
        if task.state == "conflict":
            task.differs = differing(task.after or {}, here)
            _blame(task, stays)
        if task.state in ("irreversible", "unknown"):
            stays |= dict.fromkeys(task.was or {}, task)
        elif task.state == "reversible":  # where there is nothing to do, it stays as it is
            was = task.was or {}
            # What a step made and could not name before it (a row's new key) was not there then.
            coming |= dict.fromkeys((task.after or {}).keys() - was.keys(), _NOTHING) | was


def _blame(task: Task, stays: Mapping[str, Task]) -> None:
    """Where it was not somebody else who changed a state, but a step of ours that stays."""
    behind = [stays[resource] for resource in task.differs if resource in stays]
    if len(behind) < len(task.differs):
        return
    last = behind[0]
    task.state, task.differs = last.state, {}
    task.reason = (
        f"step {last.entry.step} ({last.entry.name}) changed the same state later, and was not "
        f"undone: "
        f"it is {last.state}"
    )


def _put_back(tasks: Sequence[Task]) -> set[Task]:
    """The steps that can't be undone in turn, and need not be: all is as it was before them.

    That holds for steps that share resources together, or for none of them.
    """
    first: Digests = {}
    for task in tasks:
        first |= task.was or {}
    found: set[Task] = set()
    for group in _sharing(tasks):
        clean = all(
            task.was and all((task.now or {}).get(r) == first[r] for r in task.was)
            for task in group
        )
        if clean and any(task.state in _STAY for task in group):
            found.update(group)
    return found


def _sharing(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """The steps that share resources with one another, or with others that do; each is in one."""
    on: dict[str, list[Task]] = {}
    for task in tasks:
        for resource in _resources(task):
            on.setdefault(resource, []).append(task)
    seen: set[Task] = set()
    for task in tasks:
        if task in seen:
            continue
        seen.add(task)
        group = [task]
        for member in group:  # grows meanwhile
            for resource in _resources(member):
                near = [each for each in on.pop(resource, ()) if each not in seen]
                seen.update(near)
                group += near
        yield group


def _resources(task: Task) -> set[str]:
    """All that a step changed, what it made and could not name before it included."""
    return {*(task.was or ()), *(task.after or ())}


def _state(task: Task, here: Digests, coming: Digests, in_doubt: InDoubt) -> tuple[TaskState, str]:
    entry = task.entry
    if task.happened is False:
        return "nothing", "its probe reports that it never happened"
    after = task.after or {}
    # What it made (a row with a new key) a later step took away, and is there again by its turn.
    made = after.keys() - (task.was or {}).keys()
    returns = bool(made) and all(coming.get(resource) == after[resource] for resource in made)
    if task.was is not None and (task.put_back or not (returns or differing(task.was, here))):
        if task.plan is None and entry.status == "ok" and task.after not in (None, task.was):
            return "nothing", "its state was restored by somebody else"
        return "nothing", "the state is as it was before"
    if task.plan is None and entry.status != "unknown":
        return "irreversible", task.reason or "its tool declares no undo"
    in_doubt_why = _doubt(task)
    if in_doubt_why and not task.begun:
        if in_doubt == "restore" and task.plan is not None:
            return "reversible", f"{in_doubt_why}: the earlier state is restored"
        return "unknown", in_doubt_why
    if task.plan is None:
        return "irreversible", task.reason or "its tool declares no undo"
    if task.was is None or task.begun or task.happened:
        return "reversible", ""
    for resource in {*after, *here}:
        state = here.get(resource)
        put_back = (returns or resource in coming) and state == task.was.get(resource)
        if state != after.get(resource) and not put_back:
            return "conflict", "somebody else has changed it since"
    return "reversible", ""


def _doubt(task: Task) -> str:
    """Why nobody can tell what a step has changed; empty where it is known."""
    if task.entry.status == "unknown" and not task.happened:
        return task.reason or "it may have happened or not"
    if task.entry.status == "error" and task.after is None:
        return "it failed, and what it had changed by then is not known"
    if task.was is not None and task.after is None and not task.happened:
        return "what it changed was not observed"
    return ""
