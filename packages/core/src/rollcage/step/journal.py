"""The events of a live run's steps, made from their state."""

from __future__ import annotations

from rollcage.errors import RollcageError
from rollcage.replay.path import Entry
from rollcage.replay.world import Branch, Place
from rollcage.step.call import Arrival
from rollcage.trace import constructors as make
from rollcage.trace.constructors import Event

__all__ = ["blocked", "joined", "joined_again", "replayed", "seen", "started"]


def started(number: int, arrival: Arrival, place: Place) -> Event:
    """A call is about to run."""
    progress, verdict = arrival.progress, arrival.verdict
    event = make.step_started(
        _requested(number, arrival, place.slot),
        place.world,
        place.position,
        place.since,
        place.joined,
        [place.rank, place.slot, place.again] if place.again else [place.rank, place.slot],
        place.fingerprint.hex(),
        verdict.as_data() if verdict.rule or verdict.shadow is not None else None,
    )
    if progress.consent.decided is not None:
        event |= progress.consent.decided
    if progress.prepared.captured is not None:
        event |= progress.prepared.captured.marks
    return event


def replayed(number: int, arrival: Arrival, place: Place, entry: Entry) -> Event:
    """A recorded step answers a call."""
    verdict = arrival.verdict
    differs = verdict.decision != "allow" or verdict.shadow is not None
    call = _requested(number, arrival, place.slot)
    if entry.decided is not None and "simulated" in entry.decided:
        call["effect"] = entry.effect
    return _replayed(call, place, entry, verdict.as_data() if differs else None)


def seen(
    number: int, branch: Branch, place: Place, entry: Entry, *, parent: int | None, now: int
) -> Event:
    """Nobody asked for a recorded step: a framework's own memory holds its answer."""
    call = make.requested(
        now,
        number,
        entry.kind,
        entry.name,
        entry.version,
        entry.effect,
        entry.args,
        entry.key,
        place.turn.number,
        place.slot,
        branch.name,
        entry.agent,
        entry.call_id,
        entry.conversation,
        entry.checkpoint,
        parent,
        None,
    )
    return _replayed(call, place, entry, seen=True)


def blocked(number: int, arrival: Arrival, error: RollcageError) -> Event:
    """A call was refused."""
    branch = arrival.branch
    began = arrival.turn.starts.get(branch.name)
    event = make.step_blocked(
        _requested(number, arrival, arrival.slot),
        verdict={
            "decision": "deny",
            "reason": getattr(error, "reason", str(error)),
            "code": getattr(error, "verdict_code", error.code),
            "rule": getattr(error, "rule", arrival.verdict.rule),
        },
        position=branch.position,
        since=began[0] if began is not None and began[0] != branch.position else None,
        joined=branch.open_batch,
        supersedes=arrival.supersedes,
    )
    decided = arrival.progress.consent.decided
    if decided is not None:
        event |= decided
    return event


def joined(
    number: int,
    name: str,
    branch: Branch,
    place: Place,
    key: bytes,
    *,
    final: bytes,
    now: int,
    leaves: bool = False,
    entry: Entry | None = None,
    seen: bool = False,
) -> Event:
    """The branch `name` was joined to `branch`, with its last world `final`; as `entry` says."""
    return make.branch_joined(
        time=now,
        step=number,
        name=name,
        branch=branch.name,
        key=key.hex(),
        fingerprint=place.fingerprint.hex(),
        world=place.world,
        position=place.position,
        since=place.since,
        turn=place.turn.number,
        slot=place.slot,
        digest=final.hex(),
        leaves=leaves,
        origin=None if entry is None else [entry.run, entry.step, entry.turn],
        seen=seen,
    )


def joined_again(number: int, branch: Branch, place: Place, entry: Entry, now: int) -> Event:
    """A branch that nobody forked was joined to `branch`: all that was done in it was seen."""
    key, final = bytes.fromhex(entry.key), bytes.fromhex(entry.digest)
    place.fingerprint = bytes.fromhex(entry.fingerprint)
    return joined(
        number, entry.name, branch, place, key, final=final, now=now, entry=entry, seen=True
    )


def _replayed(
    call: Event, place: Place, entry: Entry, verdict: Event | None = None, *, seen: bool = False
) -> Event:
    later = entry.resolved  # its link stays what later steps were recorded on
    event = make.step_replayed(
        call,
        place.world,
        place.position,
        place.since,
        place.joined,
        place.occurrence,
        entry.fingerprint,
        verdict,
        origin=[entry.run, entry.step, entry.turn],
        outcome=entry.outcome,
        digest=entry.digest if later is None else later,
        duration=entry.duration,
        linked=None if later is None else entry.digest,
        labels=entry.labels,
        probed=entry.probed,
        seen=seen,
    )
    if entry.undo is not None:
        event |= entry.undo
    if entry.decided is not None:
        event |= entry.decided
    return event


def _requested(number: int, arrival: Arrival, slot: int) -> Event:
    call, contract = arrival.call, arrival.contract
    return make.requested(
        arrival.now,
        number,
        call.kind,
        contract.name,
        contract.version,
        contract.effect,
        arrival.progress.shown,
        arrival.key,
        arrival.turn.number,
        slot,
        arrival.branch.name,
        call.agent,
        call.call_id,
        call.conversation,
        "" if call.standing is None else call.checkpoint,
        None if call.parent is None else call.parent.number,
        call.undoes,
    )
