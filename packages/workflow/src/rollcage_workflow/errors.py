"""The errors of a plan, or of an execution."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rollcage import RollcageError

__all__ = [
    "CommandCorrupt",
    "ExecutionFailed",
    "ExpressionFailed",
    "InputsInvalid",
    "PlanFinding",
    "PlanInvalid",
    "StepFailed",
    "WorkflowError",
]


@dataclasses.dataclass(frozen=True, slots=True)
class PlanFinding:
    """One problem of a plan.

    Attributes:
        file: the plan's file; `<plan>` for a plan that was built in Python.
        line: from 1; 0 if the plan has no lines.
        path: the place in the plan: `steps.mail.args.to`.
        code: the kind of mistake: `unknown_tool`, `cycle`, ...
        reason: the problem, and the way to fix it.
    """

    file: str
    line: int
    path: str
    code: str
    reason: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}: {self.reason}" if self.path else f"{place}: {self.reason}"


class WorkflowError(RollcageError):
    """A workflow can't be used, or can't continue."""

    code = "workflow"


class CommandCorrupt(WorkflowError):
    """A command in the store was changed, or is incomplete; it is not carried out."""

    code = "command_corrupt"


class PlanInvalid(WorkflowError):
    """A plan can't be run; no step of it ran.

    Attributes:
        findings: all problems, in the order of the file.
    """

    code = "plan_invalid"

    def __init__(self, findings: Sequence[PlanFinding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)))


class InputsInvalid(WorkflowError):
    """The inputs do not match the plan's declaration; nothing ran."""

    code = "inputs_invalid"


class ExpressionFailed(WorkflowError):
    """An expression could not be evaluated: its step fails."""

    code = "expression_failed"


class StepFailed(WorkflowError):
    """A step failed without an error of its tool: its time was up, or a loop did not end."""

    code = "step_failed"


class ExecutionFailed(WorkflowError):
    """An execution ended with an error before; it runs again only on request."""

    code = "execution_failed"
