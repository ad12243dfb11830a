"""An entry of an audit: a call, approval, undo or stop; and the head of a run before them."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from rollcage_views.viewer import Viewer

__all__ = ["FIELDS", "AuditEntry", "Origin", "RunHeading", "as_seen_by", "policy_text"]

Origin = tuple[str, int]  # run and number


@dataclasses.dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of an audit; every text in it has been screened, and no field is left out.

    Attributes:
        kind: `call`, `refused` (asked for, and never made), `approval`, `undo`, `stop`, `policy`
            (another was loaded), `user_input` (in `args`) or `orphan` (a recorded
            effect that a run which ended `partial` never asked for).
        time: when (Unix, µs): of a call when it began, of the others when they were recorded.
        run: the id of the run.
        job: the run's name.
        actor: who the run acts for, where it says.
        step: the number of the call; 0 where it is about none.
        agent: the agent's name.
        tool: the tool's name, or the model's.
        version: the tool's.
        effect: the tool's.
        branch: of the run.
        turn: the message of the model that asked for the call.
        slot: its place among the calls of that message.
        args: the arguments, as one line.
        args_before: those that were asked for, where an approver has edited them.
        decision: `allow`, `ask` or `deny`, where the gate decided.
        rule: which rule did; empty where none concerned the call.
        code: of the verdict, or why an approval was refused.
        reason: of the verdict, the approval, the undo or the stop.
        shadow: what a policy that is only tried out decided: `ask` or `deny`; else empty.
        shadow_rule: which of its rules did.
        shadow_code: of that verdict.
        shadow_reason: of that verdict.
        policy: the name of the policy that was in force; empty without one.
        policy_digest: its digest, under which `rollcage policy check` shows it.
        policy_mode: `enforce`, `shadow`, or `refused` for one that could not be loaded.
        approval: the id of the request for approval.
        by: who approved or rejected the call, or stopped the run.
        state: what became of it: of a call as `rollcage show` says, of an approval how it was
            decided (`pending` until then), of an undo its outcome, of an orphan `not_asked_for`.
        outcome: the result or the error, as one line.
        drift: how the output breaks its contract.
        duration: how long the body ran (µs); None where it did not.
        first_ran: where a replayed call ran (run, step).
        undoes: what a call undoes, or an undo took back (run, step).
        undone: what became of the undo of this call; empty where nobody tried.
        resolved_by: who recorded its outcome later.
        left_by: the later write (run, step) that left this one behind: it stays done.
    """

    kind: str
    time: int
    run: str
    job: str
    actor: str = ""
    step: int = 0
    agent: str = ""
    tool: str = ""
    version: str = ""
    effect: str = ""
    branch: str = ""
    turn: int = 0
    slot: int = 0
    args: str = ""
    args_before: str = ""
    decision: str = ""
    rule: str = ""
    code: str = ""
    reason: str = ""
    shadow: str = ""
    shadow_rule: str = ""
    shadow_code: str = ""
    shadow_reason: str = ""
    policy: str = ""
    policy_digest: str = ""
    policy_mode: str = ""
    approval: str = ""
    by: str = ""
    state: str = ""
    outcome: str = ""
    drift: str = ""
    duration: int | None = None
    first_ran: Origin | None = None
    undoes: Origin | None = None
    undone: str = ""
    resolved_by: str = ""
    left_by: Origin | None = None

    @property
    def enforced(self) -> bool:
        """Whether what the gate decided is what happened; not so while a policy is tried out."""
        return self.decision != "deny" or self.state == "blocked"

    @property
    def is_open(self) -> bool:
        """Whether somebody has to look at it."""
        if self.kind == "undo":
            return self.state not in ("verified", "compensated")
        if self.undone in ("verified", "compensated") and (self.left_by or self.kind == "orphan"):
            return False
        return self.kind == "stop" or self.left_by is not None or self.state in _OPEN


_OPEN: Final = frozenset({"unknown", "pending", "not_asked_for"})
FIELDS: Final = tuple(field.name for field in dataclasses.fields(AuditEntry))


@dataclasses.dataclass(frozen=True, slots=True)
class RunHeading:
    """A run of which entries follow.

    Attributes:
        run: its id.
        job: its name.
        status: `ok`, `error`, `halted`, `paused`, `partial` or `unfinished`.
        mode: `record`, `resume`, `imported`, or `fork`.
        source: the run that it goes on from or is a fork of; empty if none.
        time: when it started (Unix, µs).
        policy: the policy that it began with, its name and digest; empty without one.
    """

    run: str
    job: str
    status: str
    mode: str
    source: str
    time: int
    policy: str = ""


def policy_text(policy: str, policy_digest: str, policy_mode: str) -> str:
    """A policy as a person tells it from another: its name, and the beginning of its digest."""
    if not policy_digest:
        return ""
    mode = "" if policy_mode == "enforce" else f" ({policy_mode})"
    return f"{policy or 'policy'}@{policy_digest[:12]}{mode}"


_VALUES: Final = ("args", "args_before", "reason", "shadow_reason", "outcome", "drift")
_HIDDEN: Final = "<redacted>"


def as_seen_by(viewer: Viewer, entry: AuditEntry) -> AuditEntry:
    """An entry, with what may quote a value hidden from who must not see it."""
    if viewer.values:
        return entry
    hidden: dict[str, Any] = {name: _HIDDEN for name in _VALUES if getattr(entry, name)}
    return dataclasses.replace(entry, **hidden, approval="", branch="")
