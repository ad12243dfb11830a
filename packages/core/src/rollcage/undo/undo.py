"""What is undone, in which order, and whether it may be: decisions, and the report (DESIGN §6).

Pure functions over what the traces of a lineage tell and what was observed. `_undo` carries out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from rollcage.contract.contract import Contract
from rollcage.replay.path import Entry
from rollcage.replay.recording import Lineage
from rollcage.replay.steps import Origin, around, branches_below
from rollcage.undo.compensation import Digests, PlannedCall, Tool, differing, digests_of

__all__ = [
    "InDoubt",
    "PlannedStep",
    "Task",
    "TaskState",
    "UndoPlan",
    "UndoReport",
    "UndoStatus",
    "UndoneStep",
    "assess",
    "targets",
    "without_calls",
]  # fmt: skip

UndoStatus = Literal["verified", "compensated", "conflict", "irreversible", "unknown", "failed"]
"""What became of the undo of a step.

`verified`: the state now is the state before, as observed; `compensated`: the compensating calls
were made, and nothing observes what they did; `conflict`: somebody else changed the state since, so
nothing was changed; `irreversible`: its tool declares no undo; `unknown`: nobody can tell whether
it had happened; `failed`: a compensating call failed, or did not bring back the state before.
"""

TaskState = Literal["reversible", "nothing", "conflict", "irreversible", "unknown"]
"""What an undo would do with a step: `nothing` where the state is as it was before."""

InDoubt = Literal["list", "restore"]
"""What an undo does with a step whose outcome is unknown."""

_DONE: Final = ("verified", "compensated")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoneStep:
    """What became of the undo of one step.

    Attributes:
        run: the run in which it was performed.
        step: its number there.
        name: the tool's name.
        status: see `UndoStatus`.
        reason: why, in words.
        calls: the compensating calls of its plan.
        differs: by resource, the fields that are not as they should be (empty: all of it).
    """

    run: str
    step: int
    name: str
    status: UndoStatus
    reason: str = ""
    calls: tuple[PlannedCall, ...] = ()
    differs: Mapping[str, list[str]] = dataclasses.field(default_factory=dict[str, list[str]])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoReport:
    """What an undo has done. It never claims more than was looked at.

    Attributes:
        run: the run whose effects were undone.
        to: the step after which everything was; None: everything.
        steps: in the order in which they were dealt with, the newest effect first.
        left: steps (run, step, tool) that were not dealt with any more.
    """

    run: str
    to: int | None
    steps: tuple[UndoneStep, ...]
    left: tuple[tuple[str, int, str], ...] = ()

    @property
    def complete(self) -> bool:
        """Whether everything was undone."""
        return not self.left and all(each.status in _DONE for each in self.steps)

    def __str__(self) -> str:
        """A line for each step that is not undone; else how many were."""
        lines = [_line(each) for each in self.steps if each.status not in _DONE]
        lines += [f"step {step} ({name}) of run {run}: not tried" for run, step, name in self.left]
        return "\n".join(lines) or f"{len(self.steps)} effects undone"


def _line(each: UndoneStep) -> str:
    said = f"step {each.step} ({each.name}) of run {each.run}: {each.status}"
    if each.reason:
        said += f": {each.reason}"
    if each.differs:
        named = [f"{r} ({', '.join(f)})" if f else r for r, f in each.differs.items()]
        said += f"; what differs: {', '.join(named)}"
    return said


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """What an undo would do with one step.

    Attributes:
        run: the run in which it was performed.
        step: its number there.
        name: the tool's name.
        args: its canonical arguments.
        state: see `TaskState`.
        reason: why, in words.
        calls: the compensating calls that would be made, in order.
        differs: by resource, the fields that are not as they should be (empty: all of it).
    """

    run: str
    step: int
    name: str
    args: Mapping[str, Any]
    state: TaskState
    reason: str = ""
    calls: tuple[PlannedCall, ...] = ()
    differs: Mapping[str, list[str]] = dataclasses.field(default_factory=dict[str, list[str]])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """What an undo would do, the newest effect first; nothing was done.

    Attributes:
        run: the run whose effects would be undone.
        to: the step after which everything would be; None: everything.
        steps: see `PlannedStep`.
    """

    run: str
    to: int | None
    steps: tuple[PlannedStep, ...]

    @property
    def conflicts(self) -> bool:
        """Whether somebody else has changed a state since: then nothing would be done."""
        return any(each.state == "conflict" for each in self.steps)

    @property
    def complete(self) -> bool:
        """Whether everything could be undone."""
        return all(each.state in ("reversible", "nothing") for each in self.steps)


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """A step to undo, and what is known of it.

    Attributes:
        contract: of its tool, where that is here.
        values: its arguments, validated.
        calls: the compensating calls, each with its tool and arguments; None: it has no plan.
        was: the states before it; `after`: after it; `now`: at present. None: not known.
        happened: what its probe says, where its outcome is unknown.
        begun: an earlier undo of it has begun, and may have done a part.
        attempt: how many earlier ones did not bring back what was before.
        put_back: all is as it was before the first step on its resources; none is undone in turn.
    """

    entry: Entry
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
    def origin(self) -> Origin:
        """Where it was performed: run and step."""
        return self.entry.run, self.entry.step

    def ended(self, status: UndoStatus, reason: str = "", differs: Any = None) -> UndoneStep:
        """What became of it."""
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
        """What would become of it."""
        calls = (self.plan or ()) if self.state == "reversible" else ()
        entry = self.entry
        return PlannedStep(
            run=entry.run, step=entry.step, name=entry.name, args=entry.args, state=self.state,
            reason=self.reason, calls=calls, differs=self.differs,
        )  # fmt: skip


# --- which steps, in which order -----------------------------------------------------------------


def targets(
    lineage: Lineage, *, to: int = 0, branch: str = "", only: Iterable[Entry] | None = None
) -> list[Entry]:
    """The effects to undo, the newest first: by world, a batch by its slots, in reverse.

    Args:
        lineage: what the traces tell.
        to: the newest run's step after which they are; 0: all. What the body of a step that stays
            had called stays with it, once that step has ended; and so does what it was let leave
            behind.
        branch: only those in it, and below.
        only: these, and what is below them.
    """
    names = branches_below(branch, lineage.entries)
    newest = len(lineage.runs) - 1
    by_origin = {(entry.run, entry.step): entry for entry in lineage.entries}
    wanted = None if only is None else _origins_below(only, lineage.entries)
    forked = lineage.settings.get("mode") == "fork"  # what it was given is not its own
    found = [
        entry
        for entry in lineage.entries
        if entry.undoes is None and not entry.undone and _may_have_changed(entry)
        if not forked or entry.run == lineage.runs[-1]
        if _is_behind(entry, newest, to, by_origin)
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
        # What a scope did is in its branch; it stands for it only where that branch is gone.
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


def _is_behind(entry: Entry, newest: int, to: int, by_origin: Mapping[Origin, Entry]) -> bool:
    """Whether a step, or the write that left it behind, is behind step `to` of the newest run."""
    if entry.accepted is not None:
        entry = by_origin.get(entry.accepted, entry)
    return entry.generation < newest or entry.number > to


def _may_have_changed(entry: Entry) -> bool:
    """Whether a step has anything to undo; one that failed where it says what it changed."""
    if entry.kind != "tool" or entry.effect not in ("write", "scope"):
        return False
    if entry.status == "error":
        return entry.undo is not None and entry.effect == "write"
    return entry.status in ("ok", "unknown")


def _origins_below(only: Iterable[Entry], entries: Sequence[Entry]) -> set[Origin]:
    """These steps, and all in the branches that came back in them or that their bodies made."""
    chosen = list(only)
    found = {(entry.run, entry.step) for entry in chosen}
    names: set[str] = set()
    for entry in chosen:
        below = entry.name if entry.kind == "branch" else f"#{entry.fingerprint}"
        names |= branches_below(below, entries) or set()
    return found | {(entry.run, entry.step) for entry in entries if entry.branch in names}


def _stands_for_its_calls(entry: Entry) -> bool:
    """Whether the plan of a step undoes what its body has called, too."""
    known = entry.status != "unknown"  # else that is only known of it by its probe
    return known and entry.effect == "write" and bool((entry.undo or {}).get("reversible"))


def without_calls(tasks: Sequence[Task], entries: Iterable[Entry]) -> list[Task]:
    """Leave out what was called by a step whose probe says that it happened: its plan has that."""
    happened = {t.entry.fingerprint for t in tasks if t.happened and t.plan is not None}
    if not happened:
        return list(tasks)
    bodies = {entry.fingerprint: entry for entry in entries}
    return [
        task
        for task in tasks
        if not any(outer.fingerprint in happened for outer in around(task.entry, bodies))
    ]


# --- whether they may be -------------------------------------------------------------------------


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
    coming: Digests = {}  # what a resource will be when the steps behind are undone
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
