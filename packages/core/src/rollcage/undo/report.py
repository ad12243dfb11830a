"""The plan and the report of an undo, as callers read them (DESIGN §6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Literal

import orjson

from rollcage.contract.compensation import PlannedCall

__all__ = [
    "InDoubt",
    "PlannedStep",
    "TaskState",
    "UndoPlan",
    "UndoReport",
    "UndoStatus",
    "UndoneStep",
]  # fmt: skip

UndoStatus = Literal[
    "verified", "compensated", "accepted", "conflict", "irreversible", "unknown", "failed"
]
"""The result of undoing a step.

`verified`: the observed state is the one before the step again; `compensated`: the compensating
calls were made, but their effect is not observed; `accepted`: somebody has put right by hand what
it did, or accepts it as it is; `conflict`: somebody else has changed the state
since, so nothing was undone; `irreversible`: its tool declares no undo; `unknown`: its own outcome
is unknown; `failed`: a compensating call failed, or did not restore the state.
"""

TaskState = Literal["reversible", "nothing", "conflict", "irreversible", "unknown"]
"""What an undo would do with a step: `nothing` if the state is already the one before it."""

InDoubt = Literal["list", "restore"]
"""What an undo does with a step whose outcome is unknown."""

_DONE: Final = ("verified", "compensated", "accepted")
_MOST_LINES: Final = 20  # of a report's text: an error with it stays readable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoneStep:
    """The result of undoing one step.

    Attributes:
        run: the run in which it was performed.
        step: its number there.
        name: the tool's name.
        status: see `UndoStatus`.
        reason: why, in words.
        calls: the compensating calls of its plan.
        differs: the fields that do not have the expected value, by resource (empty: the whole
            resource).
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
    """The result of an undo. It never claims more than was observed.

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
        """Whether everything was undone."""
        return not self.left and all(each.status in _DONE for each in self.steps)

    def __str__(self) -> str:
        """A line for each step that is not undone, up to 20; if all are, their number."""
        lines = [_line(each) for each in self.steps if each.status not in _DONE]
        lines += [f"step {step} ({name}) of run {run}: not tried" for run, step, name in self.left]
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES} more steps that are not undone"]
        return "\n".join(lines) or f"{len(self.steps)} effects undone"

    def as_data(self) -> dict[str, Any]:
        """For machines."""
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
    """What an undo would do with one step.

    Attributes:
        run: the run in which it was performed.
        step: its number there.
        name: the tool's name.
        args: its canonical arguments.
        state: see `TaskState`.
        reason: why, in words.
        calls: the compensating calls that would be made, in order.
        differs: the fields that do not have the expected value, by resource (empty: the whole
            resource).
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
    """What an undo would do, the newest effect first; nothing has been done.

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
        """Whether somebody else has changed a state since: then nothing would be undone."""
        return any(each.state == "conflict" for each in self.steps)

    @property
    def complete(self) -> bool:
        """Whether everything could be undone."""
        return all(each.state in ("reversible", "nothing") for each in self.steps)

    @property
    def digest(self) -> str:
        """The identity of the plan (64 hex digits): equal for plans that would do the same."""
        return sha256(orjson.dumps(self.as_data(), option=orjson.OPT_SORT_KEYS)).hexdigest()

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {
            "run": self.run, "to": self.to, "complete": self.complete, "conflicts": self.conflicts,
            "steps": [each.as_data() for each in self.steps],
        }  # fmt: skip

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> UndoPlan:
        """A plan from the data of `as_data`, as parsed from JSON.

        Raises:
            KeyError, TypeError: the data are not a plan.
        """
        steps = tuple(
            PlannedStep(**each | {"calls": tuple(PlannedCall(**call) for call in each["calls"])})
            for each in data["steps"]
        )
        return cls(run=data["run"], to=data["to"], steps=steps)
