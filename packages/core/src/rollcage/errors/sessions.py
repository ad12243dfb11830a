"""Errors about how a session, or a run and its steps, are used."""

from __future__ import annotations

from rollcage.errors.root import RollcageError

__all__ = [
    "Forked",
    "PlanChanged",
    "RunAbandoned",
    "RunTooOld",
    "SessionError",
    "SessionHalted",
    "StepNotFound",
    "StepNotUnknown",
    "ToolMissing",
]


class SessionError(RollcageError):
    """The session can't be used like this."""

    code = "session_misused"


class SessionHalted(SessionError):
    """The session was halted before this call; nothing runs in it any more.

    `__cause__` is the error that halted it.
    """

    code = "session_halted"


class Forked(SessionError):
    """The session belongs to the parent process: a forked child can't write its run."""

    code = "session_forked"


class RunAbandoned(SessionError):
    """The run was abandoned: nothing resumes it."""

    code = "run_abandoned"


class RunTooOld(SessionError):
    """The run that would be resumed is older than the session's `resume_within`."""

    code = "run_too_old"


class StepNotFound(SessionError):
    """The run has no such step."""

    code = "step_not_found"


class StepNotUnknown(SessionError):
    """The step has a known outcome, so there is nothing to resolve."""

    code = "step_not_unknown"


class PlanChanged(SessionError):
    """An undo would differ from the plan that was shown; nothing was undone."""

    code = "plan_changed"


class ToolMissing(SessionError):
    """An undo needs a tool that is not declared, or has another version; nothing was undone.

    Attributes:
        tool: its name.
    """

    code = "tool_missing"

    def __init__(self, message: str, tool: str) -> None:
        super().__init__(message)
        self.tool = tool
