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
        kind: `call`, `refused` (requested, and never made), `approval`, `undo`, `stop`, `policy`
            (another was loaded), `user_input` (in `args`) or `orphan` (a recorded
            effect that a run with the status `partial` never requested).
        time: Unix time, µs: the beginning of a call, the recording of any other entry.
        run: the id of the run.
        job: the run's name.
        actor: the person for whom the run acts, if named.
        step: the number of the call; 0 if the entry concerns none.
        agent: the agent's name.
        tool: the tool's name, or the model's.
        version: the tool's version.
        effect: the tool's effect.
        branch: the branch of the run.
        turn: the message of the model that requested the call.
        slot: its place among the calls of that message.
        args: the arguments, as one line.
        args_before: the requested arguments, if an approver has edited them.
        decision: `allow`, `ask` or `deny`, if the gate decided.
        rule: the rule that decided; empty if no rule matched.
        code: the code of the verdict, or why an approval was refused.
        reason: the reason of the verdict, the approval, the undo or the stop.
        shadow: the decision of a policy in shadow mode: `ask` or `deny`; else empty.
        shadow_rule: the rule of that decision.
        shadow_code: its code.
        shadow_reason: its reason.
        policy: the name of the policy in force; empty without one.
        policy_digest: its digest, under which `rollcage policy check` shows it.
        policy_mode: `enforce`, `shadow`, or `refused` for a policy that could not be loaded.
        approval: the id of the request for approval.
        by: the person who approved or rejected the call, or stopped the run.
        state: for a call, the state in `rollcage show`; for an approval, the decision (`pending`
            without one); for an undo, its result; for an orphan, `not_asked_for`.
        outcome: the result or the error, as one line.
        drift: how the output breaks its contract.
        duration: how long the body ran (µs); None if it did not run.
        first_ran: where a replayed call ran (run, step).
        undoes: the step that a call undoes, or that an undo took back (run, step).
        undone: the result of this call's undo; empty without an undo.
        resolved_by: the person who recorded its outcome later.
        left_by: the later write (run, step) that left this one behind: its effect remains.
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
        """Whether the gate's decision took effect, which a policy in shadow mode has not."""
        return self.decision != "deny" or self.state == "blocked"

    @property
    def is_open(self) -> bool:
        """Whether a person has to look at it."""
        if self.kind == "undo":
            return self.state not in ("verified", "compensated")
        if self.undone in ("verified", "compensated") and (self.left_by or self.kind == "orphan"):
            return False
        return self.kind == "stop" or self.left_by is not None or self.state in _OPEN


_OPEN: Final = frozenset({"unknown", "pending", "not_asked_for"})
FIELDS: Final = tuple(field.name for field in dataclasses.fields(AuditEntry))


@dataclasses.dataclass(frozen=True, slots=True)
class RunHeading:
    """A run, followed by its entries.

    Attributes:
        run: its id.
        job: its name.
        status: `ok`, `error`, `halted`, `paused`, `partial` or `unfinished`.
        mode: `record`, `resume`, `imported`, or `fork`.
        source: the run that it continues or forks; empty if none.
        time: when it started (Unix, µs).
        policy: the policy at its beginning, with name and digest; empty without one.
    """

    run: str
    job: str
    status: str
    mode: str
    source: str
    time: int
    policy: str = ""


def policy_text(policy: str, policy_digest: str, policy_mode: str) -> str:
    """Return a policy's name, and the beginning of its digest."""
    if not policy_digest:
        return ""
    mode = "" if policy_mode == "enforce" else f" ({policy_mode})"
    return f"{policy or 'policy'}@{policy_digest[:12]}{mode}"


_VALUES: Final = ("args", "args_before", "reason", "shadow_reason", "outcome", "drift")
_HIDDEN: Final = "<redacted>"


def as_seen_by(viewer: Viewer, entry: AuditEntry) -> AuditEntry:
    """Return an entry for a viewer, with quoted values hidden if needed."""
    if viewer.values:
        return entry
    hidden: dict[str, Any] = {name: _HIDDEN for name in _VALUES if getattr(entry, name)}
    return dataclasses.replace(entry, **hidden, approval="", branch="")
