"""Assess whether a step may be undone, from the states before, after and now (DESIGN §6).

The functions are pure: `undo.program` observes the states, and carries out the decisions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rollcage.contract.compensation import (
    NOTHING,
    Digest,
    Digests,
    PlannedCall,
    State,
    Tool,
    differing,
)
from rollcage.contract.contract import Contract
from rollcage.undo.report import InDoubt, PlannedStep, TaskState, UndoneStep, UndoStatus

__all__ = ["Task", "Undoable", "assess"]

_STAY: Final = ("conflict", "irreversible", "unknown")


def assess(tasks: Sequence[Task], in_doubt: InDoubt) -> None:
    """Decide for each task, the newest first, how far it can be undone, from the observed states.

    Each state is followed back from the current one: once a later step is undone, the state is the
    one before that step. A state that is neither the one after a step nor the one before it was
    changed by another program.
    """
    _follow_down(tasks, in_doubt, set())
    clean = _put_back(tasks)
    if clean:
        _follow_down(tasks, in_doubt, clean)


def _follow_down(tasks: Sequence[Task], in_doubt: InDoubt, clean: set[Task]) -> None:
    # The state of a resource once the later steps on it are undone.
    coming: dict[str, Digest | State] = {}
    stays: dict[str, Task] = {}  # by resource, the step on it that can't be undone
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
        elif task.state == "reversible":  # if there is nothing to do, the state does not change
            was, known = task.was or {}, task.after
            if known is None and task.happened:  # killed before its state was observed
                known = task.now
            # What a step made and could not name before it (a row's new key) was not there then.
            coming |= dict.fromkeys((known or {}).keys() - was.keys(), NOTHING)
            coming |= was


def _blame(task: Task, stays: Mapping[str, Task]) -> None:
    """Name the run's own later step that stays, if that step changed the state."""
    later = [stays[resource] for resource in task.differs if resource in stays]
    if len(later) < len(task.differs):
        return
    last = later[0]
    task.state, task.differs = last.state, {}
    task.reason = (
        f"step {last.entry.step} ({last.entry.name}) changed the same state later, and was not "
        f"undone: "
        f"it is {last.state}"
    )


def _put_back(tasks: Sequence[Task]) -> set[Task]:
    """Return the steps that can't and need not be undone: the state before them is back.

    The decision covers all steps that share resources together.
    """
    first: dict[str, Digest | State] = {}
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
    """Yield groups of steps that share resources, directly or through other steps."""
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
        for member in group:  # the group grows during the loop
            for resource in _resources(member):
                near = [each for each in on.pop(resource, ()) if each not in seen]
                seen.update(near)
                group += near
        yield group


def _resources(task: Task) -> set[str]:
    """Return all resources that a step changed or created."""
    return {*(task.was or ()), *(task.after or ())}


def _state(task: Task, here: Digests, coming: Digests, in_doubt: InDoubt) -> tuple[TaskState, str]:
    entry = task.entry
    if task.happened is False:
        return "nothing", "its probe reports that it did not happen"
    after = task.after or {}
    # A later step removed what this one created (a row with a new key); undoing that restores it.
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
    """Return why the effect of a step is unknown; empty if it is known."""
    if task.entry.status == "unknown" and not task.happened:
        return task.reason or "it may have happened or not"
    if task.entry.status == "error" and task.after is None:
        return "it failed, and what it had changed by then is not known"
    if task.was is not None and task.after is None and not task.happened:
        return "what it changed was not observed"
    return ""


# --- a step to undo -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Undoable:
    """Hold the record of a step to undo.

    Attributes:
        run: the run that performed the step.
        step: the number in that run.
        name: the tool's name.
        args: the canonical arguments.
        status: how the step ended: `ok`, `error` or `unknown`.
    """

    run: str
    step: int
    name: str
    args: Mapping[str, Any]
    status: str


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """Hold a step to undo, and the facts about it.

    Attributes:
        contract: the contract of the tool, if declared.
        values: the validated arguments.
        calls: the compensating calls, each with its tool and arguments; None without a plan.
        was: the states before the step; `after`: after it; `now`: at present. None if unknown.
        happened: the result of the probe, if the outcome is unknown.
        begun: whether an earlier undo has begun, and may have done a part.
        attempt: how many earlier undos did not restore the state.
        put_back: whether the state is the one before the first step on its resources, so none of
            these steps has to be undone.
    """

    entry: Undoable
    contract: Contract | None = None
    values: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    plan: tuple[PlannedCall, ...] | None = None
    calls: list[tuple[Tool, dict[str, Any]]] = dataclasses.field(
        default_factory=list[tuple[Tool, dict[str, Any]]]
    )
    was: Digests | None = None
    after: Digests | None = None
    now: Digests | None = None
    happened: bool | None = None
    begun: bool = False
    attempt: int = 0
    put_back: bool = False
    state: TaskState = "irreversible"
    reason: str = ""
    differs: dict[str, list[str]] = dataclasses.field(default_factory=dict[str, list[str]])

    @property
    def origin(self) -> tuple[str, int]:
        """Return the run and the step's number in it."""
        return self.entry.run, self.entry.step

    def ended(self, status: UndoStatus, reason: str = "", differs: Any = None) -> UndoneStep:
        """Return the result of the undo."""
        return UndoneStep(
            run=self.entry.run,
            step=self.entry.step,
            name=self.entry.name,
            status=status,
            reason=reason,
            calls=self.plan or (),
            differs=differs or {},
        )

    def planned(self) -> PlannedStep:
        """Return the step's entry in a plan."""
        calls = (self.plan or ()) if self.state == "reversible" else ()
        entry = self.entry
        return PlannedStep(
            run=entry.run, step=entry.step, name=entry.name, args=entry.args, state=self.state,
            reason=self.reason, calls=calls, differs=self.differs,
        )  # fmt: skip
