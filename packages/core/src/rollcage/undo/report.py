"""Report the plan and the result of an undo to callers (DESIGN §6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any, Final, Literal

import orjson

from rollcage.contract.compensation import PlannedCall

__all__ = [
    "InDoubt", "PlannedStep", "TaskState", "UndoPlan", "UndoReport", "UndoStatus", "UndoneStep",
    "changes", "stays_undone",
]  # fmt: skip

UndoStatus = Literal[
    "verified", "compensated", "accepted", "conflict", "irreversible", "unknown", "failed"
]
"""The result of undoing a step.

`verified`: the observed state is the one before the step again; `compensated`: the compensating
calls were made, and their effect is not observed; `accepted`: a person has repaired the effect by
hand, or accepts it; `conflict`: another program has changed the state since, so nothing was undone;
`irreversible`: the tool declares no undo, or the effect answered another call, which stays;
`unknown`: the step's own outcome is unknown; `failed`: a compensating call failed, or did not
restore the state.
"""

TaskState = Literal["reversible", "nothing", "conflict", "irreversible", "unknown"]
"""The possible undo of a step: `nothing` if the state is already the one before it."""

InDoubt = Literal["list", "restore"]
"""The response of an undo to a step of unknown outcome."""

_DONE: Final = ("verified", "compensated", "accepted")
_MOST_LINES: Final = 20  # of a report's text: an error with it stays readable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoneStep:
    """Report the undo of one step.

    Attributes:
        run: the run that performed the step.
        step: the number in that run.
        name: the tool's name.
        status: see `UndoStatus`.
        reason: why, in words.
        calls: the compensating calls of the plan.
        differs: the fields without the expected value, by resource (empty: the whole resource).
    """

    run: str
    step: int
    name: str
    status: UndoStatus
    reason: str = ""
    calls: tuple[PlannedCall, ...] = ()
    differs: Mapping[str, list[str]] = dataclasses.field(default_factory=dict[str, list[str]])

    def as_data(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return dataclasses.asdict(self) | {"calls": [call.as_data() for call in self.calls]}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoReport:
    """Report an undo. A report never claims more than was observed.

    Attributes:
        run: the run whose effects were undone.
        to: the step after which everything was undone; None: the whole run.
        steps: the steps in the order of their undo, the newest effect first.
        left: steps (run, step, tool) that the undo did not get to.
    """

    run: str
    to: int | None
    steps: tuple[UndoneStep, ...]
    left: tuple[tuple[str, int, str], ...] = ()

    @property
    def complete(self) -> bool:
        """Tell whether everything was undone."""
        return not self.left and all(each.status in _DONE for each in self.steps)

    def __str__(self) -> str:
        """Return a line for each step that is not undone, up to 20; if all are, their number."""
        lines = [_line(each) for each in self.steps if each.status not in _DONE]
        lines += [f"step {step} ({name}) of run {run}: not tried" for run, step, name in self.left]
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES} more steps that are not undone"]
        return "\n".join(lines) or f"{len(self.steps)} effects undone"

    def as_data(self) -> dict[str, Any]:
        """Return the report as plain data."""
        left = [{"run": run, "step": step, "name": name} for run, step, name in self.left]
        return {
            "run": self.run, "to": self.to, "complete": self.complete,
            "steps": [each.as_data() for each in self.steps], "left": left,
        }  # fmt: skip


def _line(each: UndoneStep) -> str:
    line = f"step {each.step} ({each.name}) of run {each.run}: {each.status}"
    if each.reason:
        line += f": {each.reason}"
    if each.differs:
        named = [f"{r} ({', '.join(f)})" if f else r for r, f in each.differs.items()]
        line += f"; what differs: {', '.join(named)}"
    return line


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """Describe the planned undo of one step.

    Attributes:
        run: the run that performed the step.
        step: the number in that run.
        name: the tool's name.
        args: the canonical arguments.
        state: see `TaskState`.
        reason: why, in words.
        calls: the compensating calls to make, in order.
        differs: the fields without the expected value, by resource (empty: the whole resource).
    """

    run: str
    step: int
    name: str
    args: Mapping[str, Any]
    state: TaskState
    reason: str = ""
    calls: tuple[PlannedCall, ...] = ()
    differs: Mapping[str, list[str]] = dataclasses.field(default_factory=dict[str, list[str]])

    def as_data(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return dataclasses.asdict(self) | {"calls": [call.as_data() for call in self.calls]}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """Describe a planned undo, the newest effect first; nothing has been done.

    Attributes:
        run: the run whose effects would be undone.
        to: the step after which everything would be undone; None: the whole run.
        steps: see `PlannedStep`.
    """

    run: str
    to: int | None
    steps: tuple[PlannedStep, ...]

    @property
    def conflicts(self) -> bool:
        """Tell whether another program has changed a state since: then nothing would be undone."""
        return any(each.state == "conflict" for each in self.steps)

    @property
    def complete(self) -> bool:
        """Tell whether everything could be undone."""
        return all(each.state in ("reversible", "nothing") for each in self.steps)

    @property
    def digest(self) -> str:
        """Return the identity of the plan (64 hex digits): equal for plans with equal effects."""
        return sha256(orjson.dumps(self.as_data(), option=orjson.OPT_SORT_KEYS)).hexdigest()

    def as_data(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "run": self.run, "to": self.to, "complete": self.complete, "conflicts": self.conflicts,
            "steps": [each.as_data() for each in self.steps],
        }  # fmt: skip

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> UndoPlan:
        """Make a plan from the data of `as_data`, as parsed from JSON.

        Raises:
            KeyError, TypeError: the data are not a plan.
        """
        steps = tuple(
            PlannedStep(**each | {"calls": tuple(PlannedCall(**call) for call in each["calls"])})
            for each in data["steps"]
        )
        return cls(run=data["run"], to=data["to"], steps=steps)


# --- a reviewed plan ------------------------------------------------------------------------------


Origin = tuple[str, int]


def changes(expected: UndoPlan | str, now: UndoPlan) -> list[str]:
    """Return how an undo would differ from the expected plan, as messages; empty if it does not.

    A part of the plan may already be done, if an earlier undo was cut off. Nothing outside the
    reviewed plan is ever done.

    Args:
        expected: the reviewed plan; or its digest, which can only match or not.
        now: the current plan.
    """
    if isinstance(expected, str):
        return [] if expected == now.digest else ["the plan does not have the expected digest"]
    known = {_origin(each): each for each in expected.steps}
    found = [_change(known.get(_origin(each)), each, now.run) for each in now.steps]
    changed = [each for each in found if each]
    if expected.run != now.run or expected.to != now.to:
        changed.append("the expected plan is of another undo")
    if changed:
        return changed
    left = iter(expected.steps)
    in_order = all(any(_origin(each) == _origin(one) for one in left) for each in now.steps)
    return [] if in_order else ["the steps would be undone in another order"]


def stays_undone(expected: UndoPlan | str, undone: Collection[Origin]) -> str:
    """Describe the state after a refused undo: unchanged, or with the work of an earlier undo.

    Args:
        expected: the reviewed plan, or its digest.
        undone: the steps whose undo has begun or is complete.
    """
    if isinstance(expected, str):
        return "nothing more was undone than before" if undone else "nothing was undone"
    before = [each.step for each in expected.steps if _origin(each) in undone]
    if not before:
        return "nothing was undone"
    named = f"step{'s' * (len(before) > 1)} {', '.join(map(str, before))}"
    return f"an earlier undo of {named} had begun, and its effects stay; nothing more was undone"


def _change(seen: PlannedStep | None, now: PlannedStep, run: str) -> str:
    """Describe how the plan for one step differs from the reviewed one; empty if it does not."""
    where = "" if now.run == run else f" of run {now.run}"
    named = f"step {now.step}{where} ({now.name})"
    if seen is None:
        return f"{named} would be undone now, too"
    if _plain(seen) == _plain(now):
        return ""
    if seen.state != now.state:
        change = f"{named} was {seen.state} and is {now.state} now"
        return change + (f" ({', '.join(sorted(now.differs))} differs)" if now.differs else "")
    if _calls(seen) != _calls(now):
        return f"{named} would be undone by other calls"
    return f"{named}: its entry in the plan differs"


def _origin(each: PlannedStep) -> Origin:
    return each.run, each.step


def _plain(each: PlannedStep) -> bytes:
    """Return a step in a form that survives a round trip through JSON."""
    return orjson.dumps(each.as_data(), option=orjson.OPT_SORT_KEYS)


def _calls(each: PlannedStep) -> list[bytes]:
    return [orjson.dumps(call.as_data(), option=orjson.OPT_SORT_KEYS) for call in each.calls]
