"""Traces without what differs from run to run: the same scenario, the same steps, everywhere."""

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Final

__all__ = ["answers", "load_golden", "normalise", "steps"]

Event = Mapping[str, Any]

_HOW: Final = {
    "step.started": "ran",
    "step.replayed": "replayed",
    "step.blocked": "blocked",
}
_KEPT: Final = ("kind", "name", "version", "effect", "args", "slot", "position", "occurrence")
_ANSWER: Final = ("text", "reasoning", "tool_calls", "usage")
_VERDICT: Final = ("decision", "reason", "code", "rule")
_OUTCOME: Final = ("status", "value", "typed", "lossy", "drift")


def steps(events: Iterable[Event], kind: str = "tool") -> list[dict[str, Any]]:
    """The steps of one kind, each one record: its call, `how` it went and its `outcome`.

    They stand in the order of the calls: by turn, then by slot, the calls of a tool's body after
    it. `parent` is a place in this list.
    """
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        name = event["event"]
        if name in _HOW:
            found[event["step"]] = {**event, "how": _HOW[name]}
        elif name in ("step.finished", "step.resolved"):
            found[event["step"]]["outcome"] = event["outcome"]
            if "labels" in event:
                found[event["step"]]["labels"] = event["labels"]
    chosen = {number: step for number, step in found.items() if step["kind"] == kind}
    order = sorted(chosen, key=lambda number: _place(found, number))
    places = {number: place for place, number in enumerate(order)}
    return [{**chosen[n], "parent": places.get(chosen[n].get("parent", 0))} for n in order]


def answers(events: Iterable[Event]) -> list[dict[str, Any]]:
    """What the model answered, in the form that belongs to no framework, with its usage.

    The arguments of calls are JSON that the model wrote; here they are read, for two models may
    write one value in two ways. What differs from run to run (ids) is left out.
    """
    told: list[dict[str, Any]] = []
    for step in steps(events, "model"):
        outcome = step["outcome"]
        said = dict(outcome.get("answer", {}))
        if "tool_calls" in said:
            calls = said["tool_calls"]
            said["tool_calls"] = [[call["name"], json.loads(call["arguments"])] for call in calls]
        if "usage" in outcome:
            said["usage"] = outcome["usage"]
        told.append({name: each for name, each in said.items() if name in _ANSWER})
    return told


def _place(found: Mapping[int, Event], number: int) -> tuple[tuple[int, int], ...]:
    """Where a step stands: its ancestors' places, then its own."""
    step = found[number]
    own = ((step["turn"], step["slot"]),)
    parent = step.get("parent")
    return own if parent is None else _place(found, parent) + own


def normalise(events: Iterable[Event]) -> dict[str, Any]:
    """A trace in the form that every adapter has in common.

    Times, ids, hashes, call ids and agents' names are left out. Of model steps there is what the
    model said and which calls it asked for: their arguments are a framework's own messages. Turns
    count from 0 within their branch.
    """
    events = list(events)
    turns: dict[Any, list[int]] = {}
    told: list[dict[str, Any]] = []
    for step in steps(events):
        known = turns.setdefault(step["parent"], [])
        if step["turn"] not in known:
            known.append(step["turn"])
        record = {"how": step["how"], "turn": known.index(step["turn"])}
        record |= {field: step[field] for field in _KEPT if field in step}
        if step["parent"] is not None:
            record["parent"] = step["parent"]
        if "verdict" in step:
            verdict = step["verdict"]
            record["verdict"] = {field: verdict[field] for field in _VERDICT}
        if "labels" in step:
            record["labels"] = step["labels"]
        if "outcome" in step:
            record["outcome"] = _outcome(step["outcome"])
        told.append(record)
    finished = [event["status"] for event in events if event["event"] == "run.finished"]
    normal = {"mode": events[0]["mode"], "status": "".join(finished), "steps": told}
    said = [{n: each[n] for n in ("text", "tool_calls") if n in each} for each in answers(events)]
    return {**normal, "answers": said} if said else normal


def _outcome(outcome: Mapping[str, Any]) -> dict[str, Any]:
    told = {field: outcome[field] for field in _OUTCOME if field in outcome}
    if "error" in outcome:
        told["error"] = {field: outcome["error"][field] for field in ("type", "message")}
    return told


def load_golden(name: str) -> list[dict[str, Any]]:
    """The normalised traces that each adapter has to leave for the golden scenario `name`."""
    file = resources.files("rollcage_conformance") / "goldens" / f"{name}.json"
    loaded: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return loaded
