"""Traces without what differs from run to run: the same scenario, the same steps, everywhere."""

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Final

from rollcage.trace import Step, fold

__all__ = ["answers", "load_golden", "normalise", "steps"]

Event = dict[str, Any]

_KEPT: Final = ("kind", "name", "version", "effect", "args", "slot", "position", "occurrence")
_OF_A_CALL: Final = (
    "agent", "args", "branch", "call_id", "effect", "key", "kind", "name", "position", "slot",
    "step", "time", "turn", "version", "world",
)  # fmt: skip
_ANSWER: Final = ("text", "reasoning", "tool_calls", "usage")
_VERDICT: Final = ("decision", "reason", "code", "rule")
_OUTCOME: Final = ("status", "value", "typed", "lossy", "drift")


def steps(events: Iterable[Event], kind: str = "tool") -> list[dict[str, Any]]:
    """The steps of one kind, each one record: its call, `how` it went and its `outcome`.

    They are in the order of the calls: by turn, then by slot, the calls of a tool's body after
    it. `parent` is a place in this list.
    """
    found = {step.step: step for step in fold(enumerate(events, 1)).steps}
    chosen = [number for number, step in found.items() if step.kind == kind]
    order = sorted(chosen, key=lambda number: _place(found, number))
    places = {number: place for place, number in enumerate(order)}
    return [_record(found[n], places.get(found[n].parent or 0)) for n in order]


def _record(step: Step, parent: int | None) -> dict[str, Any]:
    record = {field: getattr(step, field) for field in _OF_A_CALL}
    record["how"] = "replayed" if step.origin else "blocked" if step.state == "blocked" else "ran"
    record["parent"] = parent
    fields = {"occurrence": [*step.occurrence], "verdict": step.verdict, "outcome": step.outcome,
            "labels": [*step.labels]}  # fmt: skip
    if step.decided_by:
        record["rejected_by" if step.state == "blocked" else "approved_by"] = step.decided_by
    return record | {field: each for field, each in fields.items() if each}


def answers(events: Iterable[Event]) -> list[dict[str, Any]]:
    """What the model answered, in the form that belongs to no framework, with its usage.

    The arguments of calls are JSON that the model wrote; here they are read, for two models may
    write one value in two ways. What differs from run to run (ids) is left out.
    """
    found: list[dict[str, Any]] = []
    for step in steps(events, "model"):
        outcome = step["outcome"]
        fields = dict(outcome.get("answer", {}))
        if "tool_calls" in fields:
            calls = fields["tool_calls"]
            fields["tool_calls"] = [[call["name"], json.loads(call["arguments"])] for call in calls]
        if "usage" in outcome:
            fields["usage"] = outcome["usage"]
        found.append({name: each for name, each in fields.items() if name in _ANSWER})
    return found


def _place(found: Mapping[int, Step], number: int) -> tuple[tuple[int, int], ...]:
    """The place of a step: its ancestors' places, then its own."""
    step = found[number]
    own = ((step.turn, step.slot),)
    return own if step.parent is None else _place(found, step.parent) + own


def normalise(events: Iterable[Event]) -> dict[str, Any]:
    """A trace in the form that every adapter has in common.

    Times, ids, hashes, call ids and agents' names are left out. Of model steps there is what the
    model's answer and the calls in it: their arguments are a framework's own messages. Turns
    count from 0 within their branch.
    """
    events = list(events)
    turns: dict[Any, list[int]] = {}
    found: list[dict[str, Any]] = []
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
        found.append(record)
    run = fold(enumerate(events, 1))
    status = str(run.finished["status"]) if run.finished else ""
    normal = {"mode": run.started["mode"], "status": status, "steps": found}
    texts = [{n: each[n] for n in ("text", "tool_calls") if n in each} for each in answers(events)]
    return {**normal, "answers": texts} if texts else normal


def _outcome(outcome: Mapping[str, Any]) -> dict[str, Any]:
    found = {field: outcome[field] for field in _OUTCOME if field in outcome}
    if "error" in outcome:
        found["error"] = {field: outcome["error"][field] for field in ("type", "message")}
    return found


def load_golden(name: str) -> list[dict[str, Any]]:
    """The normalised traces that each adapter has to leave for the golden scenario `name`."""
    file = resources.files("rollcage_conformance") / "goldens" / f"{name}.json"
    loaded: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return loaded
