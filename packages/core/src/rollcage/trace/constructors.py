"""The constructors of the events that observers and readers receive.

Nothing else makes an event. Plain dicts of JSON, with what is empty left out; importing this builds
no model. Whoever writes an event that was given no `time` dates it. The events of a step begin with
what was `requested`, which becomes one of them; each of that is used once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "Event",
    "approval_decided",
    "approval_requested",
    "branch_forked",
    "branch_joined",
    "call_refused",
    "policy_loaded",
    "requested",
    "run_abandoned",
    "run_finished",
    "run_rewound",
    "run_started",
    "run_stopped",
    "step_blocked",
    "step_finished",
    "step_replayed",
    "step_resolved",
    "step_started",
    "undo_finished",
    "undo_started",
]

Event = dict[str, Any]
_Data = Mapping[str, Any]


# --- runs ----------------------------------------------------------------------------------------


def run_started(
    *,
    time: int,
    format_: str,
    run: str,
    name: str,
    mode: str,
    source: str | None,
    root: str,
    seed: str,
    chain: str,
    on_divergence: str,
    durability: str,
    rules: list[str],
    input_: _Data | None = None,
    policy: _Data | None = None,
    facade: _Data | None = None,
    actor: str = "",
    user_input: Any = None,
    within: str = "",
    enforce: str = "off",
    secrets: str = "declared",
    imported: _Data | None = None,
    fork: _Data | None = None,
) -> Event:
    """See `models.RunStarted`."""
    event: Event = {
        "event": "run.started",
        "time": time,
        "format": format_,
        "run": run,
        "name": name,
        "mode": mode,
        "source": source,
        "root": root,
        "seed": seed,
        "chain": chain,
        "on_divergence": on_divergence,
        "durability": durability,
        "rules": rules,
    }
    if input_ is not None:
        event["input"] = input_
    if enforce != "off":
        event["enforce"] = enforce
    if secrets != "declared":
        event["secrets"] = secrets
    return event | _given(
        policy=policy,
        user_input=user_input,
        within=within,
        facade=facade,
        actor=actor,
        imported=imported,
        fork=fork,
    )


def run_finished(
    *, time: int, status: str, steps: int, error: _Data | None = None, reason: str | None = None
) -> Event:
    """See `models.RunFinished`."""
    event: Event = {"event": "run.finished", "time": time, "status": status, "steps": steps}
    return event | _given(error=error, reason=reason)


def run_stopped(*, time: int, run: str, by: str, reason: str, ordered: int) -> Event:
    """See `models.RunStopped`."""
    return {
        "event": "run.stopped",
        "time": time,
        "run": run,
        "by": by,
        "reason": reason,
        "ordered": ordered,
    }


def run_abandoned(*, time: int, by: str, reason: str) -> Event:
    """See `models.RunAbandoned`."""
    return {"event": "run.abandoned", "time": time, "by": by, "reason": reason}


def run_rewound(
    *, to: int, branch: str = "", incomplete: bool = False, again: bool = False
) -> Event:
    """See `models.RunRewound`."""
    return {
        "event": "run.rewound",
        "to": to,
        **_given(branch=branch, incomplete=incomplete, again=again),
    }


def policy_loaded(*, time: int, policy: _Data | None = None, error: _Data | None = None) -> Event:
    """See `models.PolicyLoaded`."""
    return {"event": "policy.loaded", "time": time, **_given(policy=policy, error=error)}


# --- steps ---------------------------------------------------------------------------------------


def requested(
    time: int,
    step: int,
    kind: str,
    name: str,
    version: str,
    effect: str,
    args: Any,
    key: str,
    turn: int,
    slot: int,
    branch: str,
    agent: str,
    call_id: str,
    conversation: str,
    checkpoint: str,
    parent: int | None,
    undoes: tuple[str, int] | None,
) -> Event:
    """A call at its place in the run, for `step_started`, `step_replayed` or `step_blocked`."""
    call: Event = {
        "event": "",
        "time": time,
        "step": step,
        "kind": kind,
        "name": name,
        "version": version,
        "effect": effect,
        "args": args,
        "key": key,
        "turn": turn,
        "slot": slot,
    }
    if branch:
        call["branch"] = branch
    if agent:
        call["agent"] = agent
    if call_id:
        call["call_id"] = call_id
    if conversation:
        call["conversation"] = conversation
    if checkpoint:
        call["checkpoint"] = checkpoint
    if parent is not None:
        call["parent"] = parent
    if undoes is not None:
        call["undoes"] = list(undoes)
    return call


def step_started(
    call: Event,
    world: str,
    position: int,
    since: int,
    joined: bool,  # noqa: FBT001 - as the place has it
    occurrence: list[int],
    fingerprint: str,
    verdict: _Data | None,
) -> Event:
    """See `models.StepStarted`."""
    call["event"] = "step.started"
    call["world"] = world
    call["position"] = position
    call["occurrence"] = occurrence
    call["fingerprint"] = fingerprint
    if since != position:
        call["since"] = since
    if joined:
        call["joined"] = True
    if verdict is not None:
        call["verdict"] = verdict
    return call


def step_replayed(
    call: Event,
    world: str,
    position: int,
    since: int,
    joined: bool,  # noqa: FBT001 - as the place has it
    occurrence: list[int],
    fingerprint: str,
    verdict: _Data | None,
    *,
    origin: list[Any],
    outcome: Any,
    digest: str,
    duration: int,
    linked: str | None = None,
    labels: tuple[str, ...] = (),
    probed: bool = False,
    seen: bool = False,
) -> Event:
    """See `models.StepReplayed`."""
    event = step_started(call, world, position, since, joined, occurrence, fingerprint, verdict)
    event["event"] = "step.replayed"
    event["origin"] = origin
    event["outcome"] = outcome
    event["digest"] = digest
    event["duration"] = duration
    if linked is not None:
        event["linked"] = linked
    if labels:
        event["labels"] = list(labels)
    if probed:
        event["probed"] = True
    if seen:
        event["seen"] = True
    return event


def step_finished(time: int, step: int, *, outcome: Any, digest: str, duration: int) -> Event:
    """See `models.StepFinished`."""
    return {
        "event": "step.finished",
        "time": time,
        "step": step,
        "outcome": outcome,
        "digest": digest,
        "duration": duration,
    }


def step_blocked(
    call: Event,
    *,
    verdict: _Data,
    position: int,
    since: int | None = None,
    joined: bool = False,
    supersedes: tuple[str, int] | None = None,
) -> Event:
    """See `models.StepBlocked`."""
    call["event"] = "step.blocked"
    call["position"] = position
    call["verdict"] = verdict
    if since is not None:
        call["since"] = since
    if joined:
        call["joined"] = True
    if supersedes is not None:
        call["supersedes"] = list(supersedes)
    return call


def step_resolved(
    *,
    step: int,
    by: str,
    outcome: Any,
    digest: str,
    marks: _Data | None = None,
    time: int | None = None,
) -> Event:
    """See `models.StepResolved`."""
    event = {"event": "step.resolved", "step": step, "by": by, "outcome": outcome, "digest": digest}
    if time is not None:
        event["time"] = time
    return {**event, **(marks or {})}


def call_refused(
    *,
    kind: str,
    name: str,
    version: str,
    args: _Data,
    code: str,
    reason: str,
    branch: str,
    turn: int | None,
    slot: int | None,
    agent: str,
    call_id: str,
    parent: int | None,
) -> Event:
    """See `models.CallRefused`."""
    event: Event = {"event": "call.refused", "kind": kind, "name": name}
    event |= {"args": args, "code": code, "reason": reason}
    event |= _given(version=version, branch=branch, agent=agent, call_id=call_id, parent=parent)
    if turn is not None:
        event["turn"] = turn
        if slot is not None:
            event["slot"] = slot
    return event


def branch_forked(
    *,
    time: int,
    name: str,
    branch: str,
    turn: int,
    conversation: str,
    checkpoint: str,
    after: Sequence[str] = (),
) -> Event:
    """See `models.BranchForked`."""
    event: Event = {"event": "branch.forked", "time": time, "name": name, "turn": turn}
    if after:
        event["after"] = [*after]
    return event | _given(branch=branch, conversation=conversation, checkpoint=checkpoint)


def branch_joined(
    *,
    time: int,
    step: int,
    name: str,
    branch: str,
    key: str,
    fingerprint: str,
    world: str,
    position: int,
    since: int,
    turn: int,
    slot: int,
    digest: str,
    leaves: bool = False,
    origin: list[Any] | None = None,
    seen: bool = False,
) -> Event:
    """See `models.BranchJoined`."""
    event: Event = {
        "event": "branch.joined",
        "time": time,
        "step": step,
        "name": name,
        "key": key,
        "turn": turn,
        "slot": slot,
        "world": world,
        "position": position,
        "fingerprint": fingerprint,
        "digest": digest,
    }
    if since != position:
        event["since"] = since
    return event | _given(branch=branch, leaves=leaves, origin=origin, seen=seen)


# --- approvals -----------------------------------------------------------------------------------


def approval_requested(
    *,
    id_: str,
    idempotency_key: str,
    policy: str,
    kind: str,
    name: str,
    version: str,
    args: Any,
    key: str,
    branch: str,
    turn: int,
    slot: int,
    agent: str,
    call_id: str,
    verdict: _Data,
    requested_by: str,
    expires: int,
) -> Event:
    """See `models.ApprovalRequested`."""
    event: Event = {
        "event": "approval.requested",
        "id": id_,
        "idempotency_key": idempotency_key,
        "policy": policy,
        "kind": kind,
        "name": name,
        "version": version,
        "args": args,
        "key": key,
        "turn": turn,
        "slot": slot,
        "verdict": verdict,
        "requested_by": requested_by,
        "expires": expires,
    }
    return event | _given(branch=branch, agent=agent, call_id=call_id)


def approval_decided(
    *,
    id_: str,
    idempotency_key: str,
    policy: str,
    decision: str,
    by: str,
    reason: str = "",
    code: str = "",
    args: Any = None,
    key: str = "",
) -> Event:
    """See `models.ApprovalDecided`."""
    event: Event = {
        "event": "approval.decided",
        "id": id_,
        "idempotency_key": idempotency_key,
        "policy": policy,
        "decision": decision,
        "by": by,
    }
    return event | _given(reason=reason, code=code, args=args, key=key)


# --- undo ----------------------------------------------------------------------------------------


def undo_started(*, of: tuple[str, int], calls: int) -> Event:
    """See `models.UndoStarted`."""
    return {"event": "undo.started", "of": list(of), "calls": calls}


def undo_finished(
    *, of: tuple[str, int], status: str, reason: str = "", differs: _Data | None = None
) -> Event:
    """See `models.UndoFinished`."""
    event: Event = {"event": "undo.finished", "of": list(of), "status": status}
    return event | _given(reason=reason, differs=dict(differs) if differs else None)


def _given(**fields: Any) -> Event:
    """Those of the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}
