"""The command line's own errors, and the exit code of every error.

::

    RollcageError
    ├── UsageError               the request makes no sense                   (usage)
    │   ├── RunAmbiguous         more than one run is meant                  (run_ambiguous)
    │   ├── ToolsUnusable        what --tools names can't be loaded          (tools_unusable)
    │   └── DemoUnavailable      the demo lacks a library, or a free folder  (demo_unavailable)
    └── ClaimFailed              the demo found less than it promises        (claim_failed)
"""

from __future__ import annotations

from typing import Final

from rollcage.errors import (
    ApprovalCorrupt,
    ApprovalInvalid,
    GovernanceError,
    OrderRefused,
    PlanChanged,
    PolicyInvalid,
    RollcageError,
    RunConflict,
    RunElsewhere,
    RunInUse,
    RunNotFound,
    SessionError,
    StepNotFound,
    StepNotUnknown,
    StoreInvalid,
    TraceCorrupt,
)

__all__ = [
    "CORRUPT",
    "DIED",
    "DIFFERENT",
    "FAILED",
    "IN_USE",
    "OK",
    "PAUSED",
    "USAGE",
    "ClaimFailed",
    "DemoUnavailable",
    "RunAmbiguous",
    "StepNotFound",
    "StepNotUnknown",
    "ToolsUnusable",
    "UsageError",
    "exit_code",
]

OK: Final = 0
DIFFERENT: Final = 1
USAGE: Final = 2
CORRUPT: Final = 3
IN_USE: Final = 4
FAILED: Final = 5
PAUSED: Final = 6
DIED: Final = 7


class UsageError(RollcageError):
    """The request makes no sense; the message says what would."""

    code = "usage"


class RunAmbiguous(UsageError):
    """More than one run matches; the message lists them."""

    code = "run_ambiguous"


class ToolsUnusable(UsageError):
    """A name in `--tools` or in the project's setting can't be loaded, or is no tool."""

    code = "tools_unusable"


class DemoUnavailable(UsageError):
    """The demo can't begin: a library is missing, or its folder is taken."""

    code = "demo_unavailable"


class ClaimFailed(RollcageError):
    """The demo's traces do not show the promised result."""

    code = "claim_failed"


_CODES: Final[tuple[tuple[type[RollcageError], int], ...]] = (
    (RunNotFound, USAGE),
    (UsageError, USAGE),
    (PlanChanged, DIFFERENT),
    (SessionError, USAGE),
    (StoreInvalid, USAGE),
    (OrderRefused, USAGE),
    (GovernanceError, USAGE),
    (PolicyInvalid, USAGE),
    (ApprovalInvalid, USAGE),
    (ApprovalCorrupt, CORRUPT),
    (TraceCorrupt, CORRUPT),
    (RunInUse, IN_USE),
    (RunElsewhere, USAGE),
    (RunConflict, DIFFERENT),
    (ClaimFailed, DIFFERENT),
)


def exit_code(error: RollcageError) -> int:
    """Return the process's exit code for an error that reaches the user."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
