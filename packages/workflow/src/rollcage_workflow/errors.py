"""What goes wrong with a plan, or with an execution of one."""

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
    """One thing that is wrong with a plan.

    Attributes:
        file: the plan's file; `<plan>` for one that was built in Python.
        line: from 1; 0 where the plan has no lines.
        path: where in the plan: `steps.mail.args.to`.
        code: which kind of mistake: `unknown_tool`, `cycle`, ...
        reason: what is wrong, and what would be right.
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
    """Something is wrong with a workflow."""

    code = "workflow"


class CommandCorrupt(WorkflowError):
    """A command in the store was changed, or is incomplete; nothing that it says is done."""

    code = "command_corrupt"


class PlanInvalid(WorkflowError):
    """A plan can't be run; nothing of it was.

    Attributes:
        findings: everything that was found, in the order of the file.
    """

    code = "plan_invalid"

    def __init__(self, findings: Sequence[PlanFinding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)))


class InputsInvalid(WorkflowError):
    """The inputs are not those that the plan declares; nothing was run."""

    code = "inputs_invalid"


class ExpressionFailed(WorkflowError):
    """An expression could not be evaluated: the step that it belongs to fails."""

    code = "expression_failed"


class StepFailed(WorkflowError):
    """A step failed in a way that is no tool's own error: its time was up, a loop did not end."""

    code = "step_failed"


class ExecutionFailed(WorkflowError):
    """An execution ended with an error before; it is not run again unless that is asked for."""

    code = "execution_failed"
