"""A step that is to be undone, and what becomes known of it on the way."""

from __future__ import annotations

import dataclasses
from typing import Any

from rollcage.contract.contract import Contract
from rollcage.replay.path import Entry
from rollcage.replay.steps import Origin
from rollcage.undo.compensation import Digests, PlannedCall, Tool
from rollcage.undo.report import PlannedStep, TaskState, UndoneStep, UndoStatus

__all__ = ["Task"]


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
