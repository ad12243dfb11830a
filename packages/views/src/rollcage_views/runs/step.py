"""Describe one step of a run, as its lines do."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal, get_args

from rollcage.trace import tokens_of

__all__ = ["STATES", "State", "Step"]

State = Literal[
    "hit",
    "ran",
    "simulated",
    "failed",
    "blocked",
    "unknown",
    "cut_off",
    "not_started",
    "waiting",
]
"""The state of a step in its run.

`hit`: a recorded outcome answered the call; `ran` and `failed`: the body ran; `simulated`: a fork
supplied the outcome; `blocked`: the call was refused; `unknown`: a write that may or may not have
happened; `cut_off`: a read, a model call or a scope without an end; `not_started`: cancelled, or
resolved as such; `waiting`: the step has its place and waits for a decision.
"""
STATES: Final[tuple[State, ...]] = get_args(State)


@dataclasses.dataclass(slots=True)
class Step:
    """Hold a call at its place in a run, with its verdict and its outcome.

    A joined branch is a step of the kind `branch`. Values stay encoded as in the trace;
    `rollcage.trace.decode` decodes them.

    Attributes:
        step: the number in the run, from 1.
        kind: `tool`, `model` or `branch`.
        name: the name of the tool, model or branch.
        version: the version of the tool.
        effect: `pure`, `read`, `write` or `scope`.
        args: the arguments, encoded.
        key: the content identity of the call.
        turn: the number of the model's message that issued the call.
        slot: the place in that message.
        branch: the branch; empty for the main branch.
        agent: the agent's name.
        parent: the step whose body made the call.
        time: when the step began (Unix, µs).
        state: see `State`.
        outcome: the outcome, as `Outcome` of the schema; None without an end.
        verdict: the decision of the gate, if recorded.
        duration: how long the body ran (µs), in the run that performed it.
        origin: the run, step and turn where a hit first ran.
        resolved_by: the person who resolved the outcome.
        undoes: the step (run, step) that this call was made to undo.
        undone: the result of the step's own undo.
        undeclared: the permissions that the body used without declaring them.
        approval: the request for approval, if it was decided.
        decided_by: the person who approved or rejected the call.
        supersedes: the recorded step (run, step) that this step ran again.
        orphans: the recorded effects (run, step) that this step left behind.
        call_id: the framework's id of the call.
        position: how many batches of writes the branch had completed.
        reversible: whether the step has a plan to undo it, or got a plan when it ended.
        labels: the labels of the result.
        simulated: in a fork, the effect of the replaced tool; else None.
        changed: whether the fork changes this step.
        assumed: whether the outcome was recorded in another world than the fork's.
        line: the number of the first line in the trace, from 1.
        ended: when the end was written (Unix, µs), if it was.
        ended_line: the number of the line with the first end.
        before: by resource, the changed state, encoded; None if the tool does not observe.
        after: by resource, the digest of the state after the step, or of each of its fields.
        plan: the calls that undo the step; None without a plan.
        attempt: the number of the attempt in which the step ran; 0: in another run.
        framework: the framework of the tool or model, if known.
        block: for the kind `branch`: `branch`, `transaction` or `session`.
        home: the branch in the form of the log, `#` and a fingerprint; `branch` has the names.
        gone: why the step no longer answers calls: run `again`, `left` behind, `moved` to another
            asker, or `undone`; empty while it answers.
        replacement: the step that ran the call again.
        left_by: the step that left this step behind, although its effect stays.
        rolled: whether the effect was taken back with the transaction around it.
        unclear: whether the call failed, and its effect may have happened in part.
        accepted: whether a person has repaired the effect by hand, or accepts it.
        answered: whether a person answered the call, and no tool ran.
        happened: the outcome found out later, while the error stays the answer.
        once: for an effect that happens once in a store: its claim, or the place where it was made.
    """

    step: int
    kind: str
    name: str
    version: str
    effect: str
    args: dict[str, Any]
    key: str
    turn: int
    slot: int
    branch: str
    agent: str
    parent: int | None
    time: int
    state: State
    outcome: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = None
    duration: int | None = None
    origin: list[Any] | None = None
    resolved_by: str | None = None
    undoes: list[Any] | None = None
    undone: str | None = None
    undeclared: list[str] | None = None
    approval: str | None = None
    decided_by: str | None = None
    supersedes: list[Any] | None = None
    orphans: list[list[Any]] | None = None
    call_id: str = ""
    position: int = 0
    reversible: bool = False
    labels: tuple[str, ...] = ()
    simulated: str | None = None
    changed: bool = False
    assumed: bool = False
    line: int = 0
    ended: int | None = None
    ended_line: int | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    plan: list[dict[str, Any]] | None = None
    attempt: int = 1
    framework: str = ""
    block: str = ""
    home: str = ""
    gone: str = ""
    replacement: int | None = None
    left_by: int | None = None
    rolled: bool = False
    unclear: bool = False
    accepted: bool = False
    answered: bool = False
    happened: dict[str, Any] | None = None
    once: list[Any] | None = None

    @property
    def tokens(self) -> int:
        """Return the tokens of a model call."""
        return sum(tokens_of((self.outcome or {}).get("usage")))

    @property
    def stays_done(self) -> bool:
        """Tell whether the step is a write that was not undone, and was or may be performed."""
        performed = self.outcome is None or self.outcome["status"] in ("ok", "unknown")
        performed = performed or self.unclear or self.happened is not None
        writes = self.kind == "tool" and self.effect == "write" and not self.answered
        began = self.state not in ("blocked", "waiting")
        is_made = not self.assumed and (self.simulated is None or self.origin is not None)
        undone = self.undone in ("verified", "compensated") or self.rolled
        holds = self.gone in ("", "left")  # the effect of a step left behind remains
        return (
            writes
            and is_made
            and began
            and performed
            and holds
            and not undone
            and self.undoes is None
        )

    @property
    def unreplayable(self) -> str | None:
        """Return why the result of a performed write can't be replayed; None if it can."""
        outcome = self.outcome or {}
        raised = "drift" in outcome and not outcome["drift"].get("reported")
        ran = self.state == "ran" and self.stays_done and not raised
        return outcome.get("lossy") if ran else None
