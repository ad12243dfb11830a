"""The fate of each call of an attempt, noted while it runs.

A hit writes nothing, and an attempt without a log writes no line: so the fate of a call is not in
the log, but noted by a stage of the session.
"""

from __future__ import annotations

import threading
from typing import Any

import orjson
from rollcage import Stage
from rollcage.replay.call import Call, Place
from rollcage.trace.run import CHANGES, Outcome, Step

__all__ = ["Witness"]


class Witness(Stage):
    """Notes each call that arrives, in the order of arrival, and how it ends.

    Attributes:
        seen: the recorded steps that were not requested, because the framework's memory holds them.
    """

    def __init__(self) -> None:
        self.seen: list[Step] = []
        self._calls: list[Call] = []
        self._outcomes: dict[int, Outcome] = {}  # by id: the calls are kept
        self._verdicts: dict[int, dict[str, Any]] = {}
        self._refused: dict[int, dict[str, Any]] = {}  # by thread, its last line
        self.folds = {"refused": self._told}

    def where(self, call: Call | None, place: Place) -> Place | None:  # noqa: ARG002 - the seam's
        """Note a call that arrives; opening a block is no call."""
        if call is not None:
            self._calls.append(call)
        return None

    def _told(self, line: dict[str, Any]) -> None:
        self._refused[threading.get_ident()] = line

    def dropped(self, call: Call) -> None:
        """Note the verdict on a refused call: its line is the last of this thread."""
        line = self._refused.pop(threading.get_ident(), None)
        if line is not None and line["name"] == call.contract.name:
            self._verdicts[id(call)] = line["verdict"]
        elif call.attempt.halted is None:  # by a recorded decision
            self._verdicts[id(call)] = {} if call.verdict is None else call.verdict.as_data()

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> None:
        """Note how a call ended, or which step was seen."""
        if call is not None:
            self._outcomes[id(call)] = outcome
        elif step is not None:
            self.seen.append(step)

    def records(self, kind: str = "tool") -> list[dict[str, Any]]:
        """Return a record of each call of one kind, by turn, then by slot.

        The calls of a tool's body stand after the call, and `parent` is its place in this list.
        Turns count from 0 within their branch, in the order in which their first calls of this kind
        arrived. `how` a call went: it `ran`, was `replayed`, `blocked`, `supplied` by a person, or
        `halted`.
        """
        turns: dict[tuple[str, str], list[object]] = {}
        places: dict[int, tuple[tuple[int, int], ...]] = {}
        for call in self._calls:
            known = turns.setdefault((call.kind, call.place.branch), [])
            if call.turn not in known:
                known.append(call.turn)
            around = call.place.around
            before = () if around is None else places[id(around)]
            places[id(call)] = (*before, (known.index(call.turn), call.slot))
        chosen = [call for call in self._calls if call.kind == kind]
        chosen.sort(key=lambda call: places[id(call)])
        at = {id(call): place for place, call in enumerate(chosen)}
        return [self._record(call, places[id(call)][-1][0], at) for call in chosen]

    def _record(self, call: Call, turn: int, at: dict[int, int]) -> dict[str, Any]:
        around, event = call.place.around, getattr(call, "event", None)
        recorded = call.recorded
        record: dict[str, Any] = {
            "kind": call.kind, "name": call.contract.name, "version": call.contract.version,
            "effect": call.effect, "args": call.arguments, "key": call.key,
            "branch": _blocks(call), "turn": turn, "slot": call.slot,
            "agent": call.place.agent, "call_id": call.place.call_id,
            "parent": None if around is None else at[id(around)],
        }  # fmt: skip
        if event is not None:
            record["position"] = event["pos"]
        elif recorded is not None:
            record["position"] = recorded.pos
        step = recorded
        if event is not None and "step" in event:
            step = call.attempt.run.steps.get(event["step"])
        if step is not None and step.marks and "labels" in step.marks:
            record["labels"] = step.marks["labels"]
        verdict = self._verdicts.get(id(call))
        if verdict is not None:
            how = "blocked"
        elif recorded is not None:
            how = "replayed" if call.supplied is None else "supplied"
        elif event is not None and (call.is_on_record or call.effect not in CHANGES):
            how = "ran"
        else:
            how = "halted"
        record["how"] = how
        if verdict is None and event is not None:
            verdict = event.get("verdict")
        if verdict:
            record["verdict"] = verdict
        outcome = self._outcomes.get(id(call)) or call.supplied
        if outcome is not None:
            record["outcome"] = orjson.loads(outcome.data)
        elif how == "ran":
            record["outcome"] = {"status": "unknown"}
        return record


def _blocks(call: Call) -> str:
    """Return the names of a call's branches, within the innermost enclosing body."""
    run, branch, names = call.attempt.run, call.place.branch, list[str]()
    while (owner := run.owner(branch)) is not None and owner.effect == "branch":
        names.insert(0, owner.name)
        branch = owner.branch
    return "/".join(names)
