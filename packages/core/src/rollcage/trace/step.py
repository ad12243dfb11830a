"""One step of a run, as its events describe it."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Literal, get_args

__all__ = ["REPLAYED", "STATES", "State", "Step"]

State = Literal[
    "hit",
    "seen",
    "ran",
    "simulated",
    "failed",
    "blocked",
    "unknown",
    "cut_off",
    "not_started",
    "waiting",
]
"""What became of a step in its run.

`hit`: a recorded outcome was given back; `seen`: the framework's own memory held its result, so it
was not asked for; `ran` and `failed`: it ran; `simulated`: a value given to the fork answered it;
`blocked`: refused; `unknown`: a write that may have
happened or not; `cut_off`: a read, a model call or a scope without an end; `not_started`:
cancelled, or resolved as such; `waiting`: it has its place, and nobody has decided on it yet.
"""
STATES: Final[tuple[State, ...]] = get_args(State)
REPLAYED: Final = frozenset({"hit", "seen"})
"""The states of steps that were not run: a recorded outcome stands for them."""


@dataclasses.dataclass(slots=True)
class Step:
    """A call at its place in a run, with its verdict and its outcome.

    A branch that came back is one too, of the kind `branch`. What is encoded stays as the trace has
    it: `rollcage.trace.decode` gives the value.

    Attributes:
        step: its number in its run, from 1.
        kind: `tool`, `model` or `branch`.
        name: of the tool, the model or the branch.
        version: of the tool.
        effect: `pure`, `read`, `write` or `scope`.
        args: the arguments, encoded.
        key: the call's content identity.
        turn: the number of the model's message that asked for it.
        slot: its place in that message.
        branch: in which it stands; empty for the first one.
        agent: the agent's name.
        parent: the step whose body made the call.
        time: when it began (Unix, µs).
        state: what became of it.
        outcome: its outcome, as `Outcome` of the schema; None without an end.
        verdict: the gate's decision, if it is recorded.
        duration: how long its body ran (µs), where it ran first.
        origin: run, step and turn where a hit first ran.
        resolved_by: who resolved its outcome.
        undoes: the step (run, step) that it was made to undo.
        undone: what became of its own undo.
        undeclared: the permissions that its body would have taken beside those of its tool.
        approval: the request that somebody decided on.
        decided_by: who approved or rejected it.
        supersedes: the recorded step (run, step) in whose place it ran again.
        orphans: the recorded effects (run, step) that it left behind.
        call_id: the framework's id of the call.
        position: how many batches of writes its branch had completed.
        reversible: whether it has a plan that undoes it, or got one when it ended.
        labels: what its result carries.
        simulated: in a fork, the effect of the tool that was replaced; else None.
        changed: whether it is the step that the fork changes.
        assumed: whether it was recorded in another world than that of the fork.
        line: of its beginning in the trace, from 1.
        ended: when its end was written (Unix, µs), where one was.
        ended_line: of its first end in the trace.
        before: by resource, the state that it changed, encoded; None where nothing observes it.
        after: by resource, the digest of the state after it, or of each of its fields.
        plan: the calls that undo it; None where it has none.
        attempt: the number of the attempt in which it ran; 0: in another run.
        framework: whose tool or model it is, if that is known.
        block: of a step of the kind `branch`: `branch`, `transaction` or `session`.
        home: the branch as the log calls it, `#` and a fingerprint; `branch` has the names.
        gone: why it answers no call any more: it was run `again`, its program has `left` it behind,
            it was `moved` to another asker, or `undone`; empty: it does.
        replacement: the step that ran it again.
        left_by: the step that left it behind, though its effect is still there.
        rolled: whether it was taken back with the transaction around it.
        unclear: whether it failed, and nobody knows how far it got.
        accepted: whether somebody has put right by hand what it did, or accepts it as it is.
        answered: whether a person has answered it, and no tool ran.
        happened: the outcome that was found out later, while its error stays its answer.
        once: of an effect that is made once in a store: whose claim, or where it was made.
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
        """The tokens that its model call used."""
        usage: dict[str, int] = (self.outcome or {}).get("usage") or {}
        return sum(usage.values())

    @property
    def stays_done(self) -> bool:
        """Whether it is a write that was performed, or may have been, and was not undone."""
        performed = self.outcome is None or self.outcome["status"] in ("ok", "unknown")
        performed = performed or self.unclear or self.happened is not None
        writes = self.kind == "tool" and self.effect == "write" and not self.answered
        began = self.state not in ("blocked", "waiting")
        is_made = not self.assumed and (self.simulated is None or self.origin is not None)
        undone = self.undone in ("verified", "compensated") or self.rolled
        holds = self.gone in ("", "left")  # what is left behind is still out there
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
        """Why what a performed write gave can't be given back; None where it can be."""
        outcome = self.outcome or {}
        raised = "drift" in outcome and not outcome["drift"].get("reported")
        ran = self.state == "ran" and self.stays_done and not raised
        return outcome.get("lossy") if ran else None
