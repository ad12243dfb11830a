"""What an undo would do, and what it has done, in the words that a caller reads (DESIGN §6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Literal

import orjson

from rollcage.undo.compensation import PlannedCall

__all__ = [
    "InDoubt",
    "PlannedStep",
    "TaskState",
    "UndoPlan",
    "UndoReport",
    "UndoStatus",
    "UndoneStep",
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

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return dataclasses.asdict(self) | {"calls": [call.as_data() for call in self.calls]}


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

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        left = [{"run": run, "step": step, "name": name} for run, step, name in self.left]
        return {
            "run": self.run, "to": self.to, "complete": self.complete,
            "steps": [each.as_data() for each in self.steps], "left": left,
        }  # fmt: skip


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

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return dataclasses.asdict(self) | {"calls": [call.as_data() for call in self.calls]}


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

    @property
    def digest(self) -> str:
        """The identity of the plan: two that would do the same have one (64 hex digits)."""
        return sha256(orjson.dumps(self.as_data(), option=orjson.OPT_SORT_KEYS)).hexdigest()

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {
            "run": self.run, "to": self.to, "complete": self.complete, "conflicts": self.conflicts,
            "steps": [each.as_data() for each in self.steps],
        }  # fmt: skip

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> UndoPlan:
        """A plan that `as_data` gave, as it comes back from JSON.

        Raises:
            KeyError, TypeError: it is none.
        """
        steps = tuple(
            PlannedStep(**each | {"calls": tuple(PlannedCall(**call) for call in each["calls"])})
            for each in data["steps"]
        )
        return cls(run=data["run"], to=data["to"], steps=steps)
