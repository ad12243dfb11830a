"""A step as the events of one trace describe it. Nothing here does I/O."""

from __future__ import annotations

from typing import Any, Final, cast

from rollcage.contract.drift import flaw_of, raised
from rollcage.replay.path import DECIDED, UNKNOWN, UNKNOWN_DIGEST, Entry

__all__ = ["TURNS", "began", "ended", "link", "put_undo"]

TURNS: Final = 1 << 40
"""Turns of one generation: more than any run has."""

_STATUSES: Final = frozenset({"ok", "error", "unknown", "not_started"})
_OF_UNDO: Final = ("before", "plan", "after", "reversible")


def began(event: dict[str, Any], *, run: str, generation: int) -> Entry:
    """The step that an event is about, with an outcome that nobody knows yet.

    Raises LookupError, TypeError or ValueError where the event is none of a step.
    """
    get = event.get
    entry = Entry()
    entry.run = run
    entry.step = entry.number = event["step"]
    entry.turn = turn = event["turn"]
    entry.generation = generation
    entry.group = entry.era = generation * TURNS + turn
    entry.slot = entry.seat = event["slot"]
    entry.branch = get("branch", "")
    entry.agent = get("agent", "")
    entry.call_id = get("call_id", "")
    entry.conversation = get("conversation", "")
    entry.checkpoint = get("checkpoint", "")
    entry.kind = event["kind"]
    entry.name = event["name"]
    entry.version = event["version"]
    entry.args = event["args"]
    entry.effect = event["effect"]
    entry.key = event["key"]
    entry.fingerprint = get("fingerprint", "")
    entry.world = get("world", "")
    entry.position = position = event["position"]
    entry.since = get("since", position)
    entry.joined = get("joined", False)
    for number in (entry.step, turn, entry.slot, position, entry.since):
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is not a position")
    for digest in (entry.fingerprint, entry.world):
        bytes.fromhex(digest)  # or it is refused here
    entry.end = position + entry.joined
    entry.status = "unknown"
    entry.outcome = UNKNOWN
    entry.digest = UNKNOWN_DIGEST
    entry.duration = 0
    entry.flaw = None
    entry.frontier = entry.abandoned = entry.undone = entry.probed = False
    entry.past = False
    entry.resolved = None
    entry.labels = ()
    entry.undo = entry.undoes = entry.decided = entry.accepted = None
    if "approval" in event or "asked" in event or "simulated" in event:
        entry.decided = _decided(event)
    if "undoes" in event:
        undone_run, undone_step = event["undoes"]
        entry.undoes = undone_run, undone_step
    return entry


def ended(entry: Entry, event: dict[str, Any]) -> None:
    """Take in the outcome of a step, from an event. Raises ValueError where it is none."""
    outcome = event["outcome"]
    usage = outcome.get("usage")
    if type(event["duration"]) is not int or outcome["status"] not in _STATUSES:
        raise ValueError("the outcome is malformed")
    if usage is not None and not all(type(each) is int for each in usage.values()):
        raise ValueError("tokens are counted in integers")
    bytes.fromhex(event["digest"])
    entry.outcome = outcome
    entry.status = outcome["status"]
    entry.digest = event["digest"]
    entry.duration = event["duration"]
    entry.flaw = outcome.get("lossy")
    if "labels" in event:
        entry.labels = _labels(event["labels"]) or entry.labels
    if "drift" in outcome:
        entry.flaw = flaw_of(outcome)
        if entry.effect != "write" and raised(outcome) is not None:
            entry.status = "error"  # as any failure of a tool that changes nothing


def link(entry: Entry, digest: str) -> None:
    """Let what came after a step build on `digest`, not on that of its resolved outcome.

    It was recorded on the first word of the step's outcome.
    """
    bytes.fromhex(digest)
    entry.digest, entry.resolved = digest, entry.digest


def put_undo(entry: Entry, event: dict[str, Any]) -> None:
    """Take in what an event says of a step's undo."""
    recorded: dict[str, Any] = {field: event[field] for field in _OF_UNDO if field in event}
    if recorded:
        entry.undo = {**(entry.undo or {}), **recorded}
    entry.probed = entry.probed or "probed" in event


def _labels(recorded: object) -> tuple[str, ...]:
    """The labels that an event says of a result."""
    if not isinstance(recorded, list):
        raise ValueError("labels are a list")
    labels = cast("list[object]", recorded)
    if not all(isinstance(each, str) for each in labels):
        raise ValueError("labels are words")
    return tuple(cast("list[str]", labels))


def _decided(event: dict[str, Any]) -> dict[str, Any]:
    """What an event says of an approval."""
    recorded: dict[str, Any] = {field: event[field] for field in DECIDED if field in event}
    if "asked" in recorded:
        bytes.fromhex(recorded["asked"])
    return recorded
