"""Errors about decisions: policies, the gate, approvals, the registry of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollcage.errors.root import RollcageError

__all__ = [
    "ApprovalInvalid",
    "Blocked",
    "CaptureFailed",
    "FacadeMissing",
    "GovernanceError",
    "PolicyInvalid",
    "PolicyProblem",
]


class PolicyProblem(NamedTuple):
    """One problem in a policy file.

    Attributes:
        where: the file.
        line: its line, from 1; 0 if the problem concerns the whole file.
        path: the entry, as `rules[3].when`; empty if the problem concerns no single entry.
        reason: what is wrong.
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
