"""The events of a trace as models, which are the published schema."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from rollcage.trace.parts import (
    Digest,
    FacadeData,
    ForkData,
    ImportedData,
    InputData,
    Microseconds,
    Outcome,
    Part,
    PlannedCallData,
    PolicyData,
    StateDigests,
    StepNumber,
    StepOrigin,
    VerdictData,
)

__all__ = [
    "AnyEvent",
    "ApprovalDecided",
    "ApprovalRequested",
    "BranchForked",
    "BranchJoined",
    "CallRefused",
    "PolicyLoaded",
    "RunAbandonedEvent",
    "RunFinished",
    "RunRewound",
    "RunStarted",
    "RunStoppedEvent",
    "StepBlocked",
    "StepFinished",
    "StepReplayed",
    "StepResolved",
    "StepStarted",
    "UndoFinished",
    "UndoStarted",
    "adapter",
]

Ending = Literal["ok", "error", "halted", "paused", "partial", "would_write", "would_ask"]


class _Event(Part):
    time: Microseconds = Field(description="Unix time in microseconds")
    hash: Digest = Field(
        description="SHA-256 over the previous line's hash and this line without it"
    )


class RunStarted(_Event):
    """The first line of a run."""

    event: Literal["run.started"]
    format: Literal["rollcage/1"]
    run: str
    name: str
    mode: Literal["record", "resume", "offline", "verify", "imported", "fork"] = Field(
        description="imported: it was recorded by something else, and no effect of it is known"
    )
    imported: ImportedData | None = Field(None, description="where an imported run comes from")
    source: str | None = Field(None, description="the run that this one replays")
    fork: ForkData | None = Field(None, description="of a fork: what it is one of")
    root: str = Field(description="the first run of the lineage")
    input: InputData | None = Field(None, description="where the session was given one")
    seed: str
    chain: Literal["effects", "all"]
    on_divergence: Literal["halt", "warn", "undo"]
    durability: Literal["os", "disk"]
    rules: list[str]
    policy: PolicyData | None = Field(None, description="where the session was given one")
    facade: FacadeData | None = Field(None, description="where the session was given one")
    actor: str = Field("", description="who the run acts for; empty: the job")
    user_input: list[str] | dict[str, Any] | None = Field(
        None, description="the user input, if the session was given any; a blob if it is long"
    )
    within: str = Field("", description="the run of the session around, whose policy decided too")
    enforce: Literal["off", "report", "strict"] = Field(
        "off", description="what is done where a body touches what its tool does not declare"
    )
    secrets: Literal["declared", "detected"] = Field(
        "declared", description="whether credentials are looked for in what is recorded"
    )
    redacted: bool = Field(False, description="values were taken out by an export")


class _Call(_Event):
    step: StepNumber
    kind: Literal["tool", "model"]
    name: str
    version: str
    effect: Literal["pure", "read", "write", "scope"]
    args: dict[str, Any] = Field(
        description="canonical; of a model, the messages may hold one reference to those of a step "
        "before it"
    )
    key: Digest
    branch: str = Field("", description="the branch, or the calls of which step's body")
    turn: int = Field(ge=0)
    slot: int = Field(ge=0)
    agent: str = ""
    call_id: str = Field("", description="the framework's id of the call (gen_ai.tool.call.id)")
    conversation: str = Field(
        "", description="the framework's thread, where it has a memory (gen_ai.conversation.id)"
    )
    checkpoint: str = Field("", description="the framework's position in it; opaque")
    parent: StepNumber | None = Field(None, description="the step whose body made the call")
    undoes: StepOrigin | None = Field(None, description="the step (run, step) that it undoes")


class _Undoable(Part):
    before: dict[str, Any] | None = Field(
        None, description="by resource, the state that the call would change"
    )
    plan: list[PlannedCallData] | None = Field(None, description="the calls that undo it")
    reversible: bool = Field(False, description="it has a plan, or gets one when it ends")


class _Placed(_Call):
    world: Digest
    position: int = Field(ge=0, description="how many batches of writes its branch had completed")
    since: int | None = Field(None, description="the position its turn started at, where earlier")
    joined: bool = Field(False, description="a batch was open when the call arrived")
    occurrence: tuple[int, int] | tuple[int, int, int] = Field(
        description="rank among the turns that asked, then slot, then, if any, how many identical "
        "calls of that slot came before"
    )
    fingerprint: Digest


class _Approved(Part):
    approval: str | None = Field(None, description="the id of the request that was decided")
    approved_by: str | None = Field(None, description="who approved it, where a rule asked")
    asked: Digest | None = Field(
        None, description="where an approver edited the arguments: the key of what was asked for"
    )
    responded: bool = Field(False, description="an approver answered it, and no tool ran")
    simulated: Literal["pure", "read", "write", "scope"] | None = Field(
        None,
        description="in a fork: the effect of the tool that did not run; what the fork was given "
        "stands for it",
    )


class StepStarted(_Placed, _Undoable, _Approved):
    """A call is about to run; written before it does."""

    event: Literal["step.started"]
    verdict: VerdictData | None = None
    supersedes: tuple[str, StepNumber] | None = Field(
        None, description="the recorded step (run, step) in whose place it runs again"
    )
    leaves: bool = Field(False, description="what was recorded after this place holds no longer")
    changed: bool = Field(False, description="in a fork: the step that is another one")
    ahead: bool = Field(False, description="it saw a world that recorded effects had moved on")
    orphans: list[tuple[str, StepNumber]] | None = Field(
        None, description="recorded effects (run, step) that it leaves behind"
    )


class StepFinished(_Event):
    """A call ended."""

    event: Literal["step.finished"]
    step: StepNumber
    outcome: Outcome
    digest: Digest = Field(description="of the outcome")
    duration: Microseconds
    after: StateDigests | None = Field(
        None, description="by resource, the digest of the state after it, or of each field"
    )
    plan: list[PlannedCallData] | None = Field(
        None, description="where it needed the result; null where it can't be undone"
    )
    undeclared: list[str] | None = Field(
        None, description="permissions that its body would have taken and did not declare"
    )
    labels: list[str] | None = Field(None, description="what its result carries")


class StepReplayed(_Placed, _Undoable, _Approved):
    """A recorded outcome answered the call; nothing ran."""

    event: Literal["step.replayed"]
    origin: tuple[str, StepNumber, int] = Field(description="run, step and turn where it ran")
    outcome: Outcome
    digest: Digest
    linked: Digest | None = Field(
        None, description="the digest in its link, if its outcome was resolved later"
    )
    duration: Microseconds = Field(description="what it took where it ran")
    verdict: VerdictData | None = Field(None, description="today's, where it differs (offline)")
    after: StateDigests | None = Field(None, description="as in its step.finished")
    probed: bool = Field(False, description="its outcome is a probe result")
    seen: bool = Field(
        False, description="nobody asked for it: the framework's own memory holds its answer"
    )
    labels: list[str] | None = Field(None, description="as in its step.finished")
    assumed: bool = Field(
        False, description="in a fork: it was recorded in another world, and is taken to hold here"
    )
    drift: str | None = Field(None, description="how a fresh execution differed (verify)")


class StepBlocked(_Call, _Approved):
    """A call was refused; nothing ran."""

    event: Literal["step.blocked"]
    verdict: VerdictData
    rejected_by: str | None = Field(None, description="who rejected it, where a rule asked")
    supersedes: tuple[str, StepNumber] | None = Field(
        None, description="the recorded step (run, step) whose rejection holds on"
    )
    position: int = Field(ge=0)
    since: int | None = None
    joined: bool = False


class CallRefused(_Event):
    """A call that never became a step: nothing ran, no world moved, and no replay asks for it."""

    event: Literal["call.refused"]
    kind: Literal["tool", "model"]
    name: str = Field(description="as it was asked for")
    version: str = Field("", description="where the tool is known")
    args: dict[str, Any] = Field(description="as they were asked for; secrets are hidden")
    code: str = Field(
        description="why, for machines: `arguments_invalid`, `tool_missing`, or a framework's own"
    )
    reason: str
    branch: str = ""
    turn: int | None = Field(None, ge=0, description="its place, if that is known")
    slot: int | None = Field(None, ge=0)
    agent: str = ""
    call_id: str = ""
    parent: StepNumber | None = Field(None, description="the step whose body made the call")


class _Approval(_Event):
    id: str = Field(description="names the request: the beginning of its idempotency key")
    idempotency_key: Digest = Field(
        description="root run, branch, and the call's fingerprint in the world its turn started in"
    )
    policy: str = Field(description="digest of the policy that asked; empty without one")


class ApprovalRequested(_Approval):
    """A rule asked, and somebody was asked: before anything of the call happened."""

    event: Literal["approval.requested"]
    kind: Literal["tool", "model"]
    name: str
    version: str
    args: dict[str, Any]
    key: Digest
    branch: str = ""
    turn: int = Field(ge=0)
    slot: int = Field(ge=0)
    agent: str = ""
    call_id: str = ""
    verdict: VerdictData
    requested_by: str = Field(description="who the run acts for; they can't approve it")
    expires: Microseconds = Field(description="from when on no approval counts; Unix time")


class ApprovalDecided(_Approval):
    """What became of the request: the decision, or why no decision counts."""

    event: Literal["approval.decided"]
    decision: Literal["approved", "edited", "responded", "rejected", "refused"]
    by: str = Field(description="who decided; empty if nobody did")
    reason: str = ""
    code: str = Field("", description="why it was refused, for machines")
    args: dict[str, Any] | None = Field(None, description="the edited arguments")
    key: Digest | None = Field(None, description="of the call with the edited arguments")


class BranchForked(_Event):
    """A branch was opened: nothing may be recorded of it besides."""

    event: Literal["branch.forked"]
    name: str = Field(description="the branch that was opened")
    branch: str = Field("", description="the branch that it was forked off")
    turn: int = Field(ge=0)
    conversation: str = Field("", description="as in a step: the framework's conversation")
    checkpoint: str = ""
    after: tuple[str, ...] = Field((), description="the branches that it comes after")


class BranchJoined(_Event):
    """A branch came back: what it wrote is now part of its parent's world."""

    event: Literal["branch.joined"]
    step: StepNumber
    name: str = Field(description="the branch that came back")
    branch: str = Field("", description="the branch that it came back to")
    key: Digest
    fingerprint: Digest
    world: Digest
    position: int = Field(ge=0)
    since: int | None = None
    turn: int = Field(ge=0)
    slot: int = Field(ge=0)
    digest: Digest = Field(description="the joined branch's last world")
    leaves: bool = Field(False, description="what was recorded after this place holds no longer")
    origin: tuple[str, StepNumber, int] | None = Field(None, description="where it was recorded")
    seen: bool = Field(False, description="all that was done in it was seen, as in step.replayed")


class StepResolved(_Event):
    """What became of a step, resolved late by somebody or by the body itself."""

    event: Literal["step.resolved"]
    step: StepNumber
    by: Literal["operator", "body", "probe"]
    outcome: Outcome
    digest: Digest
    after: StateDigests | None = Field(None, description="as in step.finished")
    plan: list[PlannedCallData] | None = Field(None, description="as in step.finished")
    undeclared: list[str] | None = Field(None, description="as in step.finished")


class UndoStarted(_Event):
    """A step is about to be undone."""

    event: Literal["undo.started"]
    of: StepOrigin = Field(description="run and step where it ran")
    calls: int = Field(ge=0, description="how many compensating calls that takes")


class UndoFinished(_Event):
    """What became of the undo of a step."""

    event: Literal["undo.finished"]
    of: StepOrigin
    status: Literal["verified", "compensated", "conflict", "irreversible", "unknown", "failed"]
    reason: str = ""
    differs: dict[str, list[str]] | None = Field(
        None,
        description="resources that are not as they should be, with the fields, if they are known",
    )


class RunRewound(_Event):
    """What was recorded before this line and after a step, or in a branch, holds no longer."""

    event: Literal["run.rewound"]
    to: int = Field(ge=0, description="the last step of this trace that still holds; 0: none")
    branch: str = Field("", description="only what is in this branch and below; empty: all")
    incomplete: bool = Field(False, description="some of it could not be undone")
    again: bool = Field(
        False, description="the run had been stopped: a resume runs the branch again from its start"
    )


class PolicyLoaded(_Event):
    """From now on another policy decides; where it can't be used, every call is denied."""

    event: Literal["policy.loaded"]
    policy: PolicyData | None = None
    error: dict[str, Any] | None = Field(None, description="why it can't be used")


class RunStoppedEvent(_Event):
    """The session has seen an order to stop; nothing runs after it."""

    event: Literal["run.stopped"]
    run: str = Field(description="which run the order is for: this one, or one that it builds on")
    by: str = Field(description="who gave the order")
    reason: str
    ordered: Microseconds = Field(description="when; Unix time")


class RunAbandonedEvent(_Event):
    """Somebody has set the run aside: nothing goes on with it; what it did stays done."""

    event: Literal["run.abandoned"]
    by: str = Field(description="who gave the order; empty if nobody is named")
    reason: str


class RunFinished(_Event):
    """The session was left."""

    event: Literal["run.finished"]
    status: Ending = Field(
        description="paused: it waits for something outside; partial: it was left cleanly while "
        "recorded effects were never asked for, or, of a fork, the step that it changes; "
        "would_write, would_ask: a fork came to a write, or an approval, that was not for it"
    )
    steps: int
    error: dict[str, Any] | None = None
    reason: str | None = Field(None, description="what a paused run waits for")


AnyEvent = Annotated[
    RunStarted
    | StepStarted
    | StepFinished
    | StepReplayed
    | StepBlocked
    | CallRefused
    | StepResolved
    | ApprovalRequested
    | ApprovalDecided
    | BranchForked
    | BranchJoined
    | UndoStarted
    | UndoFinished
    | RunRewound
    | PolicyLoaded
    | RunStoppedEvent
    | RunAbandonedEvent
    | RunFinished,
    Field(discriminator="event"),
]


@functools.cache
def adapter() -> TypeAdapter[Any]:
    """Validates one event; built when first needed."""
    return TypeAdapter(AnyEvent)
