"""Hold a step to undo, with the facts found out on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rollcage.contract.compensation import Digests, PlannedCall, Tool
from rollcage.contract.contract import Contract
from rollcage.undo.report import PlannedStep, TaskState, UndoneStep, UndoStatus

__all__ = ["Task", "Undoable"]


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
