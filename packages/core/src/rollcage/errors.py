"""Every error that Rollcage raises.

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
    │   └── ReplayedCancellation      a recorded call was cancelled       (replayed_cancellation)
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
        ├── RunConflict               another run has its id, or key, there       (run_conflict)
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

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

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
    "ReplayedCancellation",
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


class RollcageError(Exception):
    """The root of all errors of Rollcage; `code` is for machines, the message for people."""

    code: ClassVar[str] = "rollcage_error"


# --- contracts, values and packages ---------------------------------------------------------------


class ContractError(RollcageError):
    """A tool's declaration can't be used; raised when it is declared, before any call."""

    code = "contract_invalid"


class ToolRefused(ContractError):
    """A tool can't be given to an agent: the session's facade does not grant it.

    Attributes:
        contract: the tool's contract.
        verdict_code: the machine-readable reason: `tool_unapproved`, `tool_changed`, `tool_frozen`
            or `tool_outside_facade`.
        diff: how it differs from the approved tool, by field; empty if none was approved.
    """

    code = "tool_refused"

    def __init__(self, message: str, contract: Any, verdict_code: str, diff: str) -> None:
        super().__init__(message)
        self.contract = contract
        self.verdict_code = verdict_code
        self.diff = diff


class ArgumentsInvalid(RollcageError):
    """The arguments do not match the tool's own schema; the tool did not run."""

    code = "arguments_invalid"


class OutputDrift(RollcageError):
    """The tool ran, and its output breaks its contract; the trace keeps the output.

    Attributes:
        tool: the tool's name.
        drift_code: `output_not_json`, `output_wrong_type`, `output_missing_field`, `output_empty`
            or `output_too_large`.
        path: the field of the output, from `$`.
        reason: the flaw there, without values of the output.
        performed: whether the tool is a write: its effects remain.
    """

    code = "output_drift"

    def __init__(
        self, tool: str, drift_code: str, path: str, reason: str, *, performed: bool
    ) -> None:
        stands = " The call was performed, and its effects remain." if performed else ""
        super().__init__(
            f"{tool}: its output is not what it declares ({drift_code} at {path}): "
            f"{reason}.{stands}"
        )
        self.tool = tool
        self.drift_code = drift_code
        self.path = path
        self.reason = reason
        self.performed = performed


class PermissionUndeclared(RollcageError):
    """A tool's body tried to do something that its contract does not declare; it was refused.

    It is not an `OSError`: much code reads those as "nothing there", and a refusal must not be
    mistaken for an answer.

    Attributes:
        needs: the missing permission, as the contract would declare it.
    """

    code = "permission_undeclared"

    def __init__(self, message: str, needs: str) -> None:
        super().__init__(message)
        self.needs = needs


class Unencodable(RollcageError):
    """A value has no encoding in the trace; `path` says where in the arguments or result it is."""

    code = "value_unencodable"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ReplayedError(RollcageError):
    """A recorded exception whose type is neither a builtin nor declared in `raises=`.

    Attributes:
        type_name: the full name of the recorded type.
        message: its text.
    """

    code = "replayed_error"

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(f"{type_name}: {message}")
        self.type_name = type_name
        self.message = message


class ReplayedCancellation(ReplayedError, TimeoutError):
    """A recorded call was cancelled. As a rule a time limit did that, so it is caught like one."""

    code = "replayed_cancellation"


class DetectorMissing(RollcageError):
    """Credential detection is on, and the library for it is not installed."""

    code = "detector_missing"


class PackageMissing(RollcageError):
    """A session was given something that needs a package which is not installed.

    Attributes:
        extra: the extra of `rollcage` that installs the package.
    """

    code = "package_missing"

    def __init__(self, message: str, extra: str) -> None:
        super().__init__(message)
        self.extra = extra


# --- decisions ------------------------------------------------------------------------------------


class PolicyProblem(NamedTuple):
    """One problem in a policy file.

    Attributes:
        where: the file.
        line: its line, from 1; 0 if the problem concerns the whole file.
        path: the entry, as `rules[3].when`; empty if the problem concerns no single entry.
        reason: the flaw.
    """

    where: str
    line: int
    path: str
    reason: str

    def __str__(self) -> str:
        place = f"{self.where}, line {self.line}" if self.line else self.where
        return ": ".join(part for part in (place, self.path, self.reason) if part)


class PolicyInvalid(RollcageError):
    """A policy can't be used; it is refused as a whole, and the previous one stays in force.

    Attributes:
        problems: all its problems, each with its file and line.
    """

    code = "policy_invalid"

    def __init__(self, problems: Sequence[PolicyProblem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class Blocked(RollcageError):
    """A rule denied the call; the tool did not run.

    Attributes:
        rule: the id of the rule that decided.
        reason: the rule's reason, written so that a model can act on it.
        verdict_code: the rule's machine-readable code.
    """

    code = "blocked"

    def __init__(self, reason: str, *, rule: str, code: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rule = rule
        self.verdict_code = code


class CaptureFailed(Blocked):
    """The undo of a call can't be prepared, so the tool did not run; nothing happened."""

    code = "capture_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(reason, rule="", code="capture_failed")


class ApprovalInvalid(RollcageError):
    """This request can't be decided, or not by this person; no decision was recorded."""

    code = "approval_invalid"


class GovernanceError(RollcageError):
    """The registry of tools refuses a transition; nothing was written."""

    code = "governance_refused"


class FacadeMissing(GovernanceError):
    """No facade of the store has this name, so no session can be opened with it."""

    code = "facade_missing"


# --- sessions -------------------------------------------------------------------------------------


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


# --- halts ----------------------------------------------------------------------------------------


class Halt(RollcageError):
    """A condition that stops the run: the session stays halted even if this error is swallowed."""

    code = "halted"


class ApprovalRequired(Halt):
    """A rule asks for approval and there is no answer yet; the tool did not run."""

    code = "approval_required"


class ReplayMiss(Halt):
    """Replay found no recorded step for a call that may not run live; nothing ran."""

    code = "replay_miss"


class NotReplayable(Halt):
    """A recorded write whose result can't be returned, and which is not silently run again."""

    code = "not_replayable"


class Diverged(Halt):
    """The run is about to leave its recorded path with recorded effects still ahead.

    `orphans` lists them as (run id, step); `ways` is the part of the message that names the ways
    out.
    """

    code = "diverged"

    def __init__(self, message: str, orphans: tuple[tuple[str, int], ...], ways: str = "") -> None:
        super().__init__(message)
        self.orphans = orphans
        self.ways = ways


class UndoIncomplete(Halt):
    """A transaction could not be undone completely; the message lists the remaining steps."""

    code = "undo_incomplete"


class ForkEnded(Halt):
    """A fork reached a call that it must not make; the call did not happen.

    Attributes:
        status: how the fork ends: `would_write`, before a write that is not recorded; `would_ask`,
            before a call that requires an approval.
        name: the tool's name.
    """

    code = "fork_ended"

    def __init__(self, message: str, status: str = "would_write", name: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.name = name


class RunStopped(Halt):
    """The run was stopped: nothing runs in it, nor in a resume of it, until the stop is lifted.

    Attributes:
        run: the run that was stopped.
        by: the person who stopped it.
        reason: why.
    """

    code = "run_stopped"

    def __init__(self, run: str, by: str, reason: str, at: str = "") -> None:
        who = f" by {by}" if by else ""
        super().__init__(
            f"run {run} was stopped{who}: {reason or 'no reason was given'}. To let it go on: "
            f"rollcage stop {run} --lift{at}"
        )
        self.run = run
        self.by = by
        self.reason = reason


class ControlLost(Halt):
    """The file for orders to a live run was removed, cut or replaced, so it can't be stopped.

    Attributes:
        run: the run.
    """

    code = "control_lost"

    def __init__(self, run: str, reason: str) -> None:
        super().__init__(
            f"run {run} could no longer be stopped, so nothing more runs in it: {reason}. Leave "
            f"the files of a live run alone; the next session of its name resumes it"
        )
        self.run = run


class UnknownOutcome(Halt):
    """A write may have happened or not; a person has to resolve it."""

    code = "outcome_unknown"

    def __init__(self, message: str, run: str, step: int) -> None:
        super().__init__(message)
        self.run = run
        self.step = step


class TraceUnwritable(Halt):
    """The trace can't be written, so nothing more may run."""

    code = "trace_unwritable"


class Fenced(TraceUnwritable):
    """The run's log goes on without this writer: another session has taken the run over."""

    code = "run_taken_over"


# --- stores ---------------------------------------------------------------------------------------


class StoreError(RollcageError):
    """The store, or a trace in it, can't be used."""

    code = "store_error"


class OrderRefused(StoreError):
    """The run's state does not allow this order: it has ended, or there is no stop to lift, say."""

    code = "order_refused"


class StoreInvalid(StoreError):
    """The path or URL given is not a store: an unknown URL, or another program's file."""

    code = "store_invalid"


class StoreReadOnly(StoreError):
    """This process may not write the store; `replay="offline"` and `"verify"` need not."""

    code = "store_read_only"


class RunNotFound(StoreError):
    """The store has no such run."""

    code = "run_not_found"


class RunPruned(RunNotFound):
    """The run's lines were pruned: only its entry in lists is left."""

    code = "run_pruned"


class RunConflict(StoreError):
    """A run can't come into a store: another run has its id there, or the key of its effect."""

    code = "run_conflict"


class RunElsewhere(StoreError):
    """The run goes on in another store, or may: this is a copy, or the rest of a moved run."""

    code = "run_elsewhere"


class RunInUse(StoreError):
    """The run has a live writer."""

    code = "run_in_use"


class SourceMissing(StoreError):
    """A run to resume or replay is gone, with the record of its effects."""

    code = "source_missing"


class TraceCorrupt(StoreError):
    """A trace that was changed or damaged; `line` is the first line that shows it (from 1)."""

    code = "trace_corrupt"

    def __init__(self, where: str, line: int, reason: str) -> None:
        super().__init__(f"{where}, line {line}: {reason}")
        self.where = where
        self.line = line
        self.reason = reason


class RegistryCorrupt(TraceCorrupt):
    """A registry of tools that was changed, damaged or cut off; it is never taken for empty."""

    code = "registry_corrupt"


class ApprovalCorrupt(StoreError):
    """A request for approval that was changed or damaged: its call does not run.

    Attributes:
        approval: its id.
    """

    code = "approval_corrupt"

    def __init__(self, approval: str, reason: str) -> None:
        super().__init__(f"the request for approval {approval} can't be believed: {reason}")
        self.approval = approval


# --- warnings -------------------------------------------------------------------------------------


class NotReplayableWarning(RuntimeWarning):
    """A write was performed and recorded, but a replay can't return its result.

    Issued when the step is recorded; the step's outcome says why (`lossy`), and so does `rollcage
    show`. The caller has the result. A later resume halts at that step until somebody supplies the
    result with `rollcage resolve RUN STEP --happened --result JSON`.

    Attributes:
        tool: the tool's name.
    """

    def __init__(self, message: str, tool: str = "") -> None:
        super().__init__(message)
        self.tool = tool


class UnguardedCallWarning(RuntimeWarning):
    """A tool ran outside every session although sessions are open in this process.

    Usually in a thread that does not know its session: start it with
    `contextvars.copy_context().run`, or call the tool through `session.call` or the function that
    `session.tool` returned.
    """
