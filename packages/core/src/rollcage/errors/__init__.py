"""Every error that Rollcage raises; each family is in a file of its own here.

::

    RollcageError                     code, and what to do next, in each
    ├── ContractError                 a tool's declaration can't be used        (contract_invalid)
    │   └── ToolRefused               a facade does not give an agent this tool (tool_refused)
    ├── PolicyInvalid                 a policy's file can't be used             (policy_invalid)
    ├── ArgumentsInvalid              refused by the tool's own schema          (arguments_invalid)
    ├── Unencodable                   a value that has no encoding              (value_unencodable)
    ├── Blocked                       a rule denied it; the tool did not run    (the verdict's code)
    │   └── CaptureFailed             its undo can't be prepared; it did not run (capture_failed)
    ├── OutputDrift                   it ran, and its output breaks its contract (output_drift)
    ├── PermissionUndeclared          its body tried to do what its contract does not declare
    │                                                                   (permission_undeclared)
    ├── DetectorMissing               the credential detector is not installed  (detector_missing)
    ├── PackageMissing                it needs a package that is not installed  (package_missing)
    ├── ApprovalInvalid               the request can't be decided like this    (approval_invalid)
    ├── ReplayedError                 a recorded exception of a type that the reader does not know
    ├── GovernanceError               the registry of tools refuses this        (governance_refused)
    │   └── FacadeMissing             the store has no facade of this name      (facade_missing)
    ├── SessionError                  the session can't be used like this       (session_misused)
    │   ├── SessionHalted             the session was halted before this call   (session_halted)
    │   ├── Forked                    used in a forked child of its process     (session_forked)
    │   ├── RunAbandoned              somebody has set the run aside            (run_abandoned)
    │   ├── RunTooOld                 older than what `resume_within` allows    (run_too_old)
    │   ├── StepNotFound              the run has no such step                (step_not_found)
    │   ├── StepNotUnknown            the step has a known outcome          (step_not_unknown)
    │   ├── PlanChanged               the undo is no longer the plan you saw    (plan_changed)
    │   └── ToolMissing               an undo needs a tool that is not declared (tool_missing)
    ├── Halt                          ends the session: nothing runs after it
    │   ├── ApprovalRequired          a rule asks, and nobody can answer        (approval_required)
    │   ├── ReplayMiss                replay found no recorded step             (replay_miss)
    │   ├── NotReplayable             a recorded write that can't be given back (not_replayable)
    │   ├── Diverged                  recorded effects would be orphaned        (diverged)
    │   ├── UndoIncomplete            not everything could be undone        (undo_incomplete)
    │   ├── RunStopped                somebody stopped the run                  (run_stopped)
    │   ├── ForkEnded                 a fork reached a call it must not make    (fork_ended)
    │   ├── ControlLost               the run could no longer be stopped        (control_lost)
    │   ├── UnknownOutcome            a write that may have happened or not      (outcome_unknown)
    │   └── TraceUnwritable           the trace can't be written                (trace_unwritable)
    │       └── Fenced                another session has taken the run over    (run_taken_over)
    └── StoreError                    the store or a trace in it
        ├── RunNotFound               no such run                               (run_not_found)
        │   └── RunPruned             its trace was removed, a stub stays           (run_pruned)
        ├── RunConflict               another run has its id in that store        (run_conflict)
        ├── RunElsewhere              the run goes on in another store, or may   (run_elsewhere)
        ├── RunInUse                  another process or session writes it      (run_in_use)
        ├── OrderRefused              the run's state does not allow this order (order_refused)
        ├── StoreInvalid              the path or URL given is not a store      (store_invalid)
        ├── StoreReadOnly             this process may not write it             (store_read_only)
        ├── ApprovalCorrupt           a request for approval that was changed   (approval_corrupt)
        ├── SourceMissing             a run that this run resumes is gone       (source_missing)
        └── TraceCorrupt              a trace that was changed or damaged       (trace_corrupt)
            └── RegistryCorrupt       a tool registry that was                  (registry_corrupt)

``Halt`` errors stop the run even where a framework swallows exceptions: the session stays halted,
and leaving it raises the original error.
"""

from __future__ import annotations

from rollcage.errors.contracts import (
    ArgumentsInvalid,
    ContractError,
    DetectorMissing,
    OutputDrift,
    PackageMissing,
    PermissionUndeclared,
    ReplayedError,
    ToolRefused,
    Unencodable,
)
from rollcage.errors.decisions import (
    ApprovalInvalid,
    Blocked,
    CaptureFailed,
    FacadeMissing,
    GovernanceError,
    PolicyInvalid,
    PolicyProblem,
)
from rollcage.errors.halts import (
    ApprovalRequired,
    ControlLost,
    Diverged,
    Fenced,
    ForkEnded,
    Halt,
    NotReplayable,
    ReplayMiss,
    RunStopped,
    TraceUnwritable,
    UndoIncomplete,
    UnknownOutcome,
)
from rollcage.errors.root import (
    RollcageError,
)
from rollcage.errors.sessions import (
    Forked,
    PlanChanged,
    RunAbandoned,
    RunTooOld,
    SessionError,
    SessionHalted,
    StepNotFound,
    StepNotUnknown,
    ToolMissing,
)
from rollcage.errors.stores import (
    ApprovalCorrupt,
    OrderRefused,
    RegistryCorrupt,
    RunConflict,
    RunElsewhere,
    RunInUse,
    RunNotFound,
    RunPruned,
    SourceMissing,
    StoreError,
    StoreInvalid,
    StoreReadOnly,
    TraceCorrupt,
)
from rollcage.errors.warned import (
    NotReplayableWarning,
    UnguardedCallWarning,
)

__all__ = [
    "ApprovalCorrupt",
    "ApprovalInvalid",
    "ApprovalRequired",
    "ArgumentsInvalid",
    "Blocked",
    "CaptureFailed",
    "ContractError",
    "ControlLost",
    "DetectorMissing",
    "Diverged",
    "FacadeMissing",
    "Fenced",
    "ForkEnded",
    "Forked",
    "GovernanceError",
    "Halt",
    "NotReplayable",
    "NotReplayableWarning",
    "OrderRefused",
    "OutputDrift",
    "PackageMissing",
    "PermissionUndeclared",
    "PlanChanged",
    "PolicyInvalid",
    "PolicyProblem",
    "RegistryCorrupt",
    "ReplayMiss",
    "ReplayedError",
    "RollcageError",
    "RunAbandoned",
    "RunConflict",
    "RunElsewhere",
    "RunInUse",
    "RunNotFound",
    "RunPruned",
    "RunStopped",
    "RunTooOld",
    "SessionError",
    "SessionHalted",
    "SourceMissing",
    "StepNotFound",
    "StepNotUnknown",
    "StoreError",
    "StoreInvalid",
    "StoreReadOnly",
    "ToolMissing",
    "ToolRefused",
    "TraceCorrupt",
    "TraceUnwritable",
    "UndoIncomplete",
    "Unencodable",
    "UnguardedCallWarning",
    "UnknownOutcome",
]


def _named_here() -> None:
    """Set the module of each error to this one, from which users import it."""
    for name in __all__:
        globals()[name].__module__ = __name__


_named_here()
