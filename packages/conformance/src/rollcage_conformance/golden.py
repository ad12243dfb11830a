"""Runs without their random parts: the same scenario gives the same calls everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

__all__ = ["answers", "load_golden", "normalise", "normalise_log"]

Event = Mapping[str, Any]
Record = dict[str, Any]

_KEPT: Final = ("how", "kind", "name", "version", "effect", "args", "turn", "slot", "position")
_ANSWER: Final = ("text", "reasoning", "tool_calls", "usage")
_VERDICT: Final = ("decision", "reason", "code", "rule")
_OUTCOME: Final = ("status", "value", "typed", "lossy", "drift")
_OF_A_STEP: Final = ("name", "effect", "start", "pos", "slot")


def answers(asked: Iterable[Record]) -> list[Record]:
    """Return a model's answers, in the framework-neutral form, with their usage.

    The arguments of calls are the model's JSON; here they are parsed, because two models may write
    one value in two ways. Random parts (ids) are left out.

    Args:
        asked: the records of its calls.
    """
    found: list[Record] = []
    for record in asked:
        outcome = record.get("outcome", {})
        fields = dict(outcome.get("answer", {}))
        if "tool_calls" in fields:
            calls = fields["tool_calls"]
            fields["tool_calls"] = [[call["name"], json.loads(call["arguments"])] for call in calls]
        if "usage" in outcome:
            fields["usage"] = outcome["usage"]
        found.append({name: each for name, each in fields.items() if name in _ANSWER})
    return found


def normalise(steps: Iterable[Record], asked: Iterable[Record] = ()) -> Record:
    """Return the calls of an attempt, in the common form of all adapters.

    Ids, hashes, call ids and agents' names are left out. A model's call has its answer and the
    calls in it: its arguments are a framework's own messages.

    Args:
        steps: the records of its tool calls.
        asked: the records of its model calls.
    """
    found: list[Record] = []
    for step in steps:
        record: Record = {field: step[field] for field in _KEPT if field in step}
        if step["parent"] is not None:
            record["parent"] = step["parent"]
        if "verdict" in step:
            record["verdict"] = {field: step["verdict"][field] for field in _VERDICT}
        if step.get("labels"):
            record["labels"] = step["labels"]
        if "outcome" in step:
            record["outcome"] = _outcome(step["outcome"])
        found.append(record)
    texts = [
        {name: each[name] for name in ("text", "tool_calls") if name in each}
        for each in answers(asked)
    ]
    return {"steps": found, "answers": texts} if texts else {"steps": found}


def _outcome(outcome: Mapping[str, Any]) -> Record:
    found = {field: outcome[field] for field in _OUTCOME if field in outcome}
    if "error" in outcome:
        found["error"] = {field: outcome["error"][field] for field in ("type", "message")}
    return found


def normalise_log(lines: Iterable[Event]) -> Record:
    """Return a run's recording: its attempts, and its steps by the order of their places.

    A model's steps are left out: each framework sends messages of its own form.

    Args:
        lines: the lines of its log.
    """
    attempts: list[Record] = []
    steps: dict[int, Record] = {}
    marks: dict[str, int] = {}  # by fingerprint: a step and its repetition share it
    branches: dict[int, str] = {}
    for line in lines:
        if attempts:
            attempts[-1]["replayed"] += sum(b - a + 1 for a, b in line.get("replayed", ()))
        if line["event"] == "attempt":
            attempts.append({"status": "", "replayed": 0})
        elif line["event"] == "ended":
            attempts[-1] |= {name: line[name] for name in ("status", "calls", "hits")}
        elif line["event"] == "step" and line["effect"] != "model":
            n = line["step"]
            steps[n] = {"attempt": len(attempts), **{name: line[name] for name in _OF_A_STEP}}
            steps[n] |= {"turn": line["turn"], "status": _status(line), "again": line.get("again")}
            marks.setdefault(line["fingerprint"], n)
            branches[n] = line["branch"]
        elif line["event"] == "outcome" and line["step"] in steps:
            steps[line["step"]]["status"] = _status(line)
    return {"attempts": attempts, "steps": _placed(steps, marks, branches)}


def _status(line: Event) -> str:
    outcome = line.get("outcome")
    return "unknown" if outcome is None else str(outcome["status"])


def _placed(
    steps: Mapping[int, Record], marks: Mapping[str, int], branches: Mapping[int, str]
) -> list[Record]:
    """Return the steps by their places: turns count from 0, and parents are places in this list."""

    def parent(n: int) -> int | None:
        return marks[branches[n][1:]] if branches[n][:1] == "#" else None

    def place(n: int) -> tuple[tuple[int, int, int], ...]:
        step, around = steps[n], parent(n)
        own = ((step["turn"], step["slot"], step["attempt"]),)
        return own if around is None else place(around) + own

    order = sorted(steps, key=place)
    at = {n: number for number, n in enumerate(order)}
    turns = _ranks([(branches[n], steps[n]["turn"]) for n in order])
    found: list[Record] = []
    for n, turn in zip(order, turns, strict=True):
        step = dict(steps[n])
        again, around = step.pop("again"), parent(n)
        step["turn"] = turn
        if again is not None:
            step["again"] = at[again]
        if around is not None:
            step["parent"] = at[around]
        found.append(step)
    return found


def _ranks(turns: Sequence[tuple[str, int]]) -> list[int]:
    """Return the rank of each turn among the turns of its branch."""
    known: dict[str, list[int]] = {}
    found: list[int] = []
    for branch, turn in turns:
        numbers = known.setdefault(branch, [])
        if turn not in numbers:
            numbers.append(turn)
        found.append(numbers.index(turn))
    return found


def load_golden(name: str) -> list[Record]:
    """Return the expected recording of the golden scenario `name`.

    It holds the calls of each attempt, then the recording of their run.
    """
    file = resources.files("rollcage_conformance") / "goldens" / f"{name}.json"
    loaded: list[Record] = json.loads(file.read_text(encoding="utf-8"))
    return loaded
