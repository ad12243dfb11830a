"""The events of steps, as they are written: plain dicts that pass the models of `trace.events`."""

from __future__ import annotations

from typing import Any

from rollcage.errors import RollcageError
from rollcage.replay.path import Entry
from rollcage.replay.world import Branch, Place, Turn
from rollcage.step.call import Arrival, Step
from rollcage.store.protocol import StopOrder

__all__ = [
    "blocked", "finished", "joined", "joined_again", "refused", "replayed", "seen", "started",
    "stopped",
]  # fmt: skip

Event = dict[str, Any]


def started(number: int, arrival: Arrival, place: Place) -> Event:
    """A call is about to run."""
    event = _call("step.started", number, arrival)
    _put_place(event, arrival.branch, place)
    event["key"] = arrival.call.key.hex()
    event["fingerprint"] = place.fingerprint.hex()
    if arrival.verdict.rule or arrival.verdict.shadow is not None:
        event["verdict"] = arrival.verdict.as_data()
    call = arrival.call
    if call.decided is not None:
        event |= call.decided
    if call.captured is not None:
        event |= call.captured.marks
    return event


def replayed(number: int, arrival: Arrival, place: Place, entry: Entry) -> Event:
    """A recorded step stands for a call."""
    event = _call("step.replayed", number, arrival)
    _put_place(event, arrival.branch, place)
    event["key"] = arrival.call.key.hex()
    _put_recorded(event, entry)
    if arrival.verdict.decision != "allow" or arrival.verdict.shadow is not None:
        event["verdict"] = arrival.verdict.as_data()
    return event


def seen(
    number: int, branch: Branch, place: Place, entry: Entry, *, parent: int | None, now: int
) -> Event:
    """Nobody asked for a recorded step: a framework's own memory holds its answer."""
    event: Event = {"event": "step.replayed", "time": now, "step": number, "seen": True}
    for field in ("kind", "name", "version", "effect", "args", "key"):
        event[field] = getattr(entry, field)
    for field in ("agent", "call_id", "conversation", "checkpoint"):
        if getattr(entry, field):
            event[field] = getattr(entry, field)
    if parent is not None:
        event["parent"] = parent
    _put_place(event, branch, place)
    _put_recorded(event, entry)
    return event


def blocked(number: int, arrival: Arrival, error: RollcageError) -> Event:
    """A call was refused."""
    branch, turn = arrival.branch, arrival.turn
    event = _call("step.blocked", number, arrival)
    event["turn"] = turn.number
    event["slot"] = arrival.slot
    event["position"] = branch.position
    event["key"] = arrival.call.key.hex()
    event["verdict"] = {
        "decision": "deny",
        "reason": getattr(error, "reason", str(error)),
        "code": getattr(error, "verdict_code", error.code),
        "rule": getattr(error, "rule", arrival.verdict.rule),
    }
    began = turn.starts.get(branch.name)
    if began is not None and began[0] != branch.position:
        event["since"] = began[0]
    if branch.open_batch:
        event["joined"] = True
    if arrival.call.decided is not None:
        event |= arrival.call.decided
    if arrival.supersedes is not None:
        event["supersedes"] = list(arrival.supersedes)
    return event


def finished(step: Step, outcome: Event, digest: bytes, duration: int, now: int) -> Event:
    """A step ended; `duration` and `now` in µs."""
    return {
        "event": "step.finished",
        "time": now,
        "step": step.number,
        "outcome": outcome,
        "digest": digest.hex(),
        "duration": duration,
    }


def stopped(order: StopOrder, now: int) -> Event:
    """Somebody has told the run to stop; `now` in µs."""
    return {
        "event": "run.stopped",
        "time": now,
        "run": order.run,
        "by": order.by,
        "reason": order.reason,
        "ordered": order.time,
    }


def joined(
    number: int, name: str, branch: Branch, place: Place, key: bytes, *, final: bytes, now: int
) -> Event:
    """The branch `name` came back to `branch`, with its last world `final`."""
    event: Event = {"event": "branch.joined", "time": now, "step": number, "name": name}
    _put_place(event, branch, place)
    del event["occurrence"]
    event.pop("joined", None)
    event["key"] = key.hex()
    event["fingerprint"] = place.fingerprint.hex()
    event["digest"] = final.hex()
    return event


def joined_again(number: int, branch: Branch, place: Place, entry: Entry, now: int) -> Event:
    """A branch that nobody forked came back to `branch`: all that was done in it was seen."""
    key, final = bytes.fromhex(entry.key), bytes.fromhex(entry.digest)
    place.fingerprint = bytes.fromhex(entry.fingerprint)
    event = joined(number, entry.name, branch, place, key, final=final, now=now)
    event["origin"] = [entry.run, entry.step, entry.turn]
    event["seen"] = True
    return event


def _call(name: str, number: int, arrival: Arrival) -> Event:
    call, contract = arrival.call, arrival.contract
    event: Event = {
        "event": name,
        "time": arrival.now,
        "step": number,
        "kind": call.kind,
        "name": contract.name,
        "version": contract.version,
        "effect": contract.effect,
        "args": call.shown,
    }
    if arrival.branch.name:
        event["branch"] = arrival.branch.name
    if call.agent:
        event["agent"] = call.agent
    if call.call_id:
        event["call_id"] = call.call_id
    if call.conversation:
        event["conversation"] = call.conversation
    if call.checkpoint:
        event["checkpoint"] = call.checkpoint
    if call.parent is not None:
        event["parent"] = call.parent.number
    if call.undoes is not None:
        event["undoes"] = list(call.undoes)
    return event


def refused(
    kind: str,
    name: str,
    *,
    version: str,
    args: dict[str, Any],
    code: str,
    reason: str,
    branch: str,
    turn: Turn | None,
    slot: int | None,
    agent: str,
    call_id: str,
    parent: Step | None,
) -> Event:
    """A call never became a step."""
    event: Event = {"event": "call.refused", "kind": kind, "name": name}
    said = {"version": version, "branch": branch, "agent": agent, "call_id": call_id}
    event |= {"args": args, "code": code, "reason": reason}
    event |= {field: each for field, each in said.items() if each}
    if turn is not None:
        event["turn"] = turn.number
        if slot is not None:
            event["slot"] = slot
    if parent is not None:
        event["parent"] = parent.number
    return event


def _put_recorded(event: Event, entry: Entry) -> None:
    event["fingerprint"] = entry.fingerprint
    event["origin"] = [entry.run, entry.step, entry.turn]
    event["outcome"] = entry.outcome
    event["digest"] = entry.digest
    if entry.resolved is not None:  # its link stays what later steps were recorded on
        event["digest"], event["linked"] = entry.resolved, entry.digest
    event["duration"] = entry.duration
    if entry.undo is not None:
        event |= entry.undo
    if entry.decided is not None:
        event |= entry.decided
    if entry.probed:
        event["probed"] = True
    if entry.labels:
        event["labels"] = list(entry.labels)


def _put_place(event: Event, branch: Branch, place: Place) -> None:
    event["turn"] = place.turn.number
    event["slot"] = place.slot
    event["world"] = place.world
    event["position"] = place.position
    event["occurrence"] = [place.rank, place.slot]
    if place.again:
        event["occurrence"].append(place.again)
    if place.since != place.position:
        event["since"] = place.since
    if place.joined:
        event["joined"] = True
    if branch.name:
        event["branch"] = branch.name
