"""Errors about a store, or a trace in it."""

from __future__ import annotations

from rollcage.errors.root import RollcageError

__all__ = [
    "ApprovalCorrupt",
    "OrderRefused",
    "RegistryCorrupt",
    "RunConflict",
    "RunElsewhere",
    "RunInUse",
    "RunNotFound",
    "RunPruned",
    "SourceMissing",
    "StoreError",
    "StoreInvalid",
    "StoreReadOnly",
    "TraceCorrupt",
]


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
    """A run can't be copied into a store: another run has its id there, or its trace differs."""

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
