"""The lines of a log (format rollcage/2) as models, which are the published schema.

Nothing that writes or resumes a run uses them: `rollcage.trace.run.Run` says what a line means.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    model_validator,
)

__all__ = ["AnyLine", "adapter"]

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Microseconds = Annotated[int, Field(ge=0)]
StepNumber = Annotated[int, Field(ge=1)]
StateDigest = Annotated[str, Field(pattern="^(hmac:)?[0-9a-f]{64}$")]
StateDigests = dict[str, StateDigest | dict[str, StateDigest]]


class Part(BaseModel):
    """Refuse undeclared fields, and convert no value."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class ToolRequestData(Part):
    """A call that a model requests."""

    name: str
    arguments: str = Field(description="raw JSON, as the model wrote it")
    id: str = ""


class AnswerData(Part):
    """One message of a model, in a form that belongs to no framework."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolRequestData] = []
    finish_reason: str = ""
    response_id: str = ""


class DriftData(Part):
    """How an output breaks the contract of its tool."""

    code: Literal[
        "output_empty",
        "output_not_json",
        "output_wrong_type",
        "output_missing_field",
        "output_too_large",
    ]
    path: str = Field(description="the place in the output, from $")
    reason: str
    reported: bool = Field(False, description="the call gave its value; else it raised this")


class VerdictData(Part):
    """A decision of the gate."""

    decision: Literal["allow", "ask", "deny"]
    reason: str
    code: str
    rule: str
    remedy: str | None = Field(None, description="what may be done instead")
    shadow: VerdictData | None = Field(None, description="the decision of a policy in shadow mode")


class ImportedData(Part):
    """The origin of an imported run, on whose word alone the run is true."""

    format: Literal["otel", "langfuse", "langsmith"]
    trace: str = Field(description="the id of the trace at its origin")
    digest: Digest = Field(description="HMAC of its data under the store's key")
    skipped: dict[str, int] = Field({}, description="how many spans became no step, by reason")


class PlannedCallData(Part):
    """A compensating call."""

    name: str
    version: str
    args: dict[str, Any]


Span = tuple[StepNumber, StepNumber]
Kind = Literal["tool", "model"]
Effect = Literal["pure", "read", "write", "scope", "model"]
_AT = Field(description="Unix time in microseconds")

_OPEN: Final = ConfigDict(
    extra="allow",
    json_schema_extra={"additionalProperties": False, "patternProperties": {r"\.": {}}},
)
"""Stages of other packages may add fields, with a dot in their names (`acme.budget`)."""


class _LogLine(Part):
    model_config = _OPEN

    hash: Digest = Field(
        description="SHA-256 over the previous line's hash, as text, and this line without it; the "
        "first one follows 64 zeros"
    )
    replayed: list[Span] | None = Field(
        None, description="ranges of the steps that answered calls since the line before"
    )
    restarted: list[StepNumber] | None = Field(
        None, description="steps that a framework has started over since the line before"
    )
    left: list[Span] | None = Field(
        None, description="ranges of recorded steps that are left behind: they answer no call"
    )

    @model_validator(mode="after")
    def _names_have_dots(self) -> Self:
        for name in self.model_extra or ():
            if "." not in name:
                raise ValueError(f"there is no field {name}; one of your own has a dot in its name")
        return self


class LogOutcome(Part):
    """The outcome of a step. A block's value is its last world; null without a change."""

    model_config = _OPEN

    status: Literal["ok", "error"]
    value: Any = None
    cut: bool = Field(False, description="a stream whose consumer read no further")
    typed: bool = Field(False, description="comes back through the tool's return type only")
    error: dict[str, Any] | None = None
    unclear: bool = Field(False, description="it failed, and its effect may have happened in part")
    drift: DriftData | None = Field(None, description="how the value breaks the contract")
    lossy: str | None = Field(None, description="why the value can't be restored exactly")
    usage: dict[str, int] | None = Field(
        None, description="tokens: `input_tokens`, `output_tokens`"
    )
    answer: AnswerData | dict[str, Any] | None = Field(
        None, description="the model's answer, in neutral form; or the blob with it"
    )


class EndedBy(Part):
    """The error that ended an attempt."""

    type: str
    message: str


# --- the run and its attempts --------------------------------------------------------------------


class RunLine(_LogLine):
    """The first line of a log."""

    event: Literal["run"]
    format: Literal["rollcage/2"]
    run: str
    name: str = Field(description="the job")
    time: Microseconds = _AT
    input: Any = Field(None, description="the input of the job, encoded")
    actor: str = Field("", description="the person for whom the run acts")
    seed: str = Field("", description="separates its worlds from those of another seed")
    copied: str | None = Field(None, description="the run of which the next lines are a copy")
    fork: Literal["dry", "live"] | None = Field(None, description="the kind of fork")
    imported: ImportedData | None = Field(None, description="the format of an imported run")
    digest: str = Field("", description="of the input, where the run was pruned")
    redacted: bool = Field(False, description="values were taken out by an export")


class AttemptLine(_LogLine):
    """A session begins, and takes the run over."""

    event: Literal["attempt"]
    id: str = Field(description="random: no two sessions write equal lines")
    time: Microseconds = _AT
    number: int | None = Field(None, ge=1, description="how many there were; left out: 1")
    replay: str = Field("auto", description="its mode")
    on_divergence: Literal["halt", "undo", "warn"] = "halt"
    gate: list[dict[str, Any]] | None = Field(None, description="the description of the gate")


class GateLine(_LogLine):
    """A nested session has a gate of its own."""

    event: Literal["gate"]
    step: StepNumber = Field(description="the inner session")
    gate: list[dict[str, Any]]
    time: Microseconds = _AT


class PolicyLine(_LogLine):
    """Another policy decides from here on; if it can't be used, every call is denied."""

    event: Literal["policy"]
    policy: dict[str, Any] | None = None
    error: str | None = Field(None, description="why it can't be used")
    time: Microseconds = _AT


class EndedLine(_LogLine):
    """A session was left; or a person has set the run aside (`abandoned`)."""

    event: Literal["ended"]
    status: str
    time: Microseconds = _AT
    calls: int | None = Field(None, ge=0, description="how many calls it made")
    hits: int | None = Field(None, ge=0, description="how many were answered by recorded steps")
    attempts: int | None = Field(None, ge=1, description="of the run; left out: 1")
    error: EndedBy | None = None
    waits: str = Field("", description="the event for which a paused run waits")
    reason: str = ""
    by: str = Field("", description="the person who set it aside")


class _CopiedLine(_LogLine):
    """Fields of a line that a copy, a move or a prune adds: how the last attempt ended, again."""

    time: Microseconds = _AT
    status: str = Field("", description="of the last attempt; empty: not ended")
    attempts: int | None = Field(None, ge=0, description="how many there were")
    ended: Microseconds | None = Field(None, description="when the last one ended")
    waits: str = Field("", description="the event for which a paused run waits")
    by: str = Field("", description="who did it")
    id: str = Field("", description="random: no two lines are equal")


class HeldLine(_CopiedLine):
    """This is a copy: nothing is added to it until it is claimed."""

    event: Literal["held"]
    from_: str = Field(alias="from", description="the store where the run may go on")


class GoneLine(_CopiedLine):
    """The run goes on in another store."""

    event: Literal["gone"]
    to: str


class ClaimedLine(_LogLine):
    """A copy goes on here, because its original was ended."""

    event: Literal["claimed"]
    from_: str = Field(alias="from")
    by: str = ""
    time: Microseconds = _AT


class PrunedLine(_CopiedLine):
    """The other lines of the run were removed, or are about to be."""

    event: Literal["pruned"]
    lines: int = Field(ge=1, description="how many there were")
    head: Digest = Field(description="the hash of the last one")
    done: bool = Field(False, description="they are gone")


class WasLine(_LogLine):
    """The rest of a line of a pruned run: no value, and no step any more."""

    event: Literal["was"]
    was: str = Field(description="its kind")
    time: Microseconds | None = _AT
    step: StepNumber | None = None
    name: str = ""
    effect: str = ""
    again: StepNumber | None = None
    outcome: dict[str, str] | None = Field(None, description="its status")
    id: str = ""
    number: int | None = None
    order: str = ""
    status: str = ""
    calls: int | None = None
    hits: int | None = None


class ForkedLine(_LogLine):
    """The lines before belong to another run: their steps answer, and are not taken back here."""

    event: Literal["forked"]
    run: str
    name: str
    from_: str = Field(alias="from")
    time: Microseconds = _AT
    dry: bool = Field(False, description="it ends before its first new write")
    continues: bool = Field(False, description="it goes on from that run")
    change: str | None = Field(
        None, description="the change: `result`, `model`, `tools` …; `code`: the program"
    )
    at: StepNumber | None = Field(None, description="the step that is changed, or from which on")
    to: str = Field("", description="the name of the other model, policy or tools")
    answers: list[str] | None = Field(None, description="tools of which new calls are answered")


class ChangedLine(_LogLine):
    """A fork changes the outcome or the arguments of a step.

    Or another model or tool is asked, and steps do not answer.
    """

    event: Literal["changed"]
    step: StepNumber | None = None
    remakes: list[Span] | None = Field(
        None, description="steps that do not answer: another model or tool is asked"
    )
    time: Microseconds = _AT
    outcome: LogOutcome | None = None
    args: dict[str, Any] | None = None


# --- steps ---------------------------------------------------------------------------------------


class StepLine(_LogLine):
    """A call, or a block, at its place.

    Of what changes the world it is the intent, and the outcome stands in a line of its own;
    anything else is one line, unless its body makes calls.
    """

    event: Literal["step"]
    step: StepNumber
    name: str
    effect: Effect | Literal["branch"]
    key: Digest = Field(description="content identity of the call")
    args: dict[str, Any] = Field(description="canonical; of a block, a further distinction")
    branch: str = Field(
        description="empty: the run's own; `#` and the fingerprint of the step whose body or block "
        "it stands in; `-` and the number of the step that is undone by it"
    )
    start: int = Field(ge=0, description="the position at which its turn began in its branch")
    pos: int = Field(ge=0, description="the position at which it stands")
    turn: int = Field(ge=1)
    slot: int = Field(ge=0)
    fingerprint: Digest
    time: Microseconds = _AT
    declared: bool = Field(False, description="the caller named its slot")
    during: bool = Field(False, description="something ran in its branch when it began")
    again: StepNumber | None = Field(
        None,
        description="the step whose place it takes: it failed, waited, is unknown or was undone",
    )
    epoch: int = Field(0, ge=0, description="how often its branch was undone before")
    rank: int | None = Field(
        None, ge=0, description="of a model's: how many calls of its key its branch made before"
    )
    from_: StepNumber | None = Field(
        None, alias="from", description="the step of another place that answers it"
    )
    retries: StepNumber | None = Field(
        None, description="the failed step whose idempotency key it has"
    )
    waits: bool = Field(False, description="the step has its place, and has not begun")
    kind: Literal["branch", "transaction", "session"] | None = Field(None, description="of a block")
    beyond: list[Span] | None = Field(
        None, description="of a block: recorded steps that lay ahead when it was opened"
    )
    version: str = ""
    framework: str = ""
    agent: str = ""
    call_id: str = Field("", description="the framework's id of the call (gen_ai.tool.call.id)")
    verdict: VerdictData | None = Field(None, description="the verdict to ask that was granted")
    approval: str | None = Field(None, description="the id of the request that was granted")
    answered: bool = Field(False, description="a person has answered it, and no tool ran")
    simulated: bool = Field(False, description="a fork supplied the outcome: no body ran")
    assumed: bool = Field(
        False, description="of what is simulated: `from` is of the same call, at another place"
    )
    once: list[Any] | None = Field(
        None,
        description="of an effect that is made once: `mine`, its key and the claim's token; or the "
        "run and the step where it was made",
    )
    before: dict[str, Any] | None = Field(
        None, description="by resource, the state that it changes"
    )
    keyed: StateDigests | None = Field(
        None,
        description="of states in `before` in which a secret is concealed, the digests of the true "
        "ones: `hmac:` and the HMAC of what quotes it, under the key of the store",
    )
    plan: list[PlannedCallData] | None = Field(None, description="the calls that undo it")
    reversible: bool = Field(False, description="it has a plan, or gets one when it ends")
    outcome: LogOutcome | None = None
    duration: Microseconds | None = Field(None, description="how long its body ran")
    after: list[StepNumber] | StateDigests | None = Field(
        None, description="of a block, the blocks that it comes after; else as in an outcome"
    )
    gate: list[dict[str, Any]] | None = Field(
        None, description="of a nested session: the description of its gate"
    )
    memory: list[str] | None = Field(
        None, description="where it stands in a framework's memory: its thread, and a place in it"
    )
    labels: list[str] | None = Field(None, description="the labels of the result")
    undeclared: list[str] | None = Field(
        None, description="permissions that its body took and did not declare"
    )


class MovedLine(_LogLine):
    """A step answers a call at another place of a framework's memory, or with another id.

    With `pos`, a block goes on that had failed before it changed anything.
    """

    event: Literal["moved"]
    step: StepNumber
    pos: int | None = Field(None, ge=0, description="the position at which the block goes on")
    during: bool = Field(False, description="something ran in its branch when it went on")
    memory: list[str] | None = Field(None, description="the new place; see the line of a step")
    call_id: str | None = Field(None, description="the new id; see the line of a step")
    time: Microseconds = _AT


class OutcomeLine(_LogLine):
    """The outcome of a step; with `by`, found out later. Null: it did not happen."""

    event: Literal["outcome"]
    step: StepNumber
    outcome: LogOutcome | None
    duration: Microseconds | None = Field(None, description="how long its body ran")
    time: Microseconds | None = Field(None, description="if no body ended then")
    by: str | None = Field(None, description="`probe`, or the person who said so")
    acted: bool = Field(
        False, description="the program acted upon the error, which stays the answer"
    )
    unasked: list[StepNumber] | None = Field(
        None, description="effects of an earlier attempt in its body that this one did not ask for"
    )
    after: StateDigests | None = Field(
        None, description="by resource, the digest of the state after it, or of each field"
    )
    plan: list[PlannedCallData] | None = Field(None, description="where it needed the result")
    labels: list[str] | None = Field(None, description="the labels of the result")
    undeclared: list[str] | None = Field(
        None, description="permissions that its body took and did not declare"
    )


class LeftLine(_LogLine):
    """Recorded steps are left behind by a step that is recorded itself."""

    event: Literal["left"]
    time: Microseconds = _AT


class RefusedLine(_LogLine):
    """A call that did not run: a guard denied it, its arguments are invalid, it has no tool."""

    event: Literal["refused"]
    name: str = Field(description="the requested name")
    kind: Kind
    args: dict[str, Any] = Field(description="the requested arguments; secrets are hidden")
    verdict: VerdictData
    branch: str
    time: Microseconds = _AT
    effect: Effect | None = Field(None, description="where the tool is known")
    version: str = ""
    step: StepNumber | None = Field(None, description="its place, if it had one")
    key: Digest | None = Field(None, description="content identity of the call")
    halted: bool = Field(False, description="the session halted before it could begin")
    turn: int | None = Field(None, ge=1)
    slot: int | None = Field(None, ge=0)
    agent: str = ""
    call_id: str = ""


# --- approvals and orders ------------------------------------------------------------------------


class RequestedLine(_LogLine):
    """An approval is requested for a waiting step."""

    event: Literal["requested"]
    id: str
    step: StepNumber
    verdict: VerdictData
    policy: str = Field(description="digest of the policy that asked; empty without one")
    requested_by: str = Field(description="the person for whom the run acts, and who can't approve")
    time: Microseconds = _AT
    expires: Microseconds = Field(description="when approvals stop counting")


class DecidedLine(_LogLine):
    """The decision on a request, or the reason why no decision counts."""

    event: Literal["decided"]
    id: str
    step: StepNumber
    decision: Literal["approved", "edited", "responded", "rejected", "refused"]
    time: Microseconds = _AT
    by: str = ""
    reason: str = ""
    code: str = Field("", description="why it was refused, for machines")
    args: dict[str, Any] | None = Field(None, description="the edited arguments")
    outcome: LogOutcome | None = Field(None, description="the answer in place of the tool's")


class OrderedLine(_LogLine):
    """The run has seen an order from outside."""

    event: Literal["ordered"]
    order: Literal["stop", "pause"]
    by: str
    reason: str
    given: Microseconds = Field(description="when it was given")
    time: Microseconds = _AT


# --- undo ----------------------------------------------------------------------------------------


_TO: Final[Any] = Field(None, description="the last step that stays; none: all are undone")
_OF_BLOCKS: Final[Any] = Field(
    None, description="only effects of blocks with this name, and later ones"
)
_WITHIN: Final[Any] = Field(None, description="only effects of a nested session")


class UndoingLine(_LogLine):
    """An undo begins: these steps are to be taken back."""

    event: Literal["undoing"]
    why: Literal["undo", "divergence", "transaction"]
    steps: list[StepNumber]
    forgive: bool = Field(description="whether steps that can't be taken back are only listed")
    block: StepNumber | None = Field(None, description="the transaction that is rolled back")
    to: StepNumber | None = _TO
    branch: str | None = _OF_BLOCKS
    within: str | None = _WITHIN
    in_doubt: Literal["list", "restore"] = "list"
    time: Microseconds = _AT


class BackLine(_LogLine):
    """The result of the undo of a step."""

    event: Literal["back"]
    step: StepNumber
    status: Literal["verified", "compensated", "accepted", "failed"]
    reason: str = ""
    differs: dict[str, list[str]] | None = Field(
        None, description="resources that are not as they should be, with the fields"
    )
    spent: bool = Field(False, description="its calls were made; another undo makes new calls")
    time: Microseconds = _AT


class UndoneLine(_LogLine):
    """An undo has ended: these steps answer no call any more."""

    event: Literal["undone"]
    why: Literal["undo", "divergence", "transaction", "rolled back"]
    steps: list[StepNumber]
    reopens: list[StepNumber] | None = Field(None, description="calls around them: made again")
    places: list[StepNumber] | None = Field(None, description="the steps whose places are kept")
    to: StepNumber | None = _TO
    branch: str | None = _OF_BLOCKS
    within: str | None = _WITHIN
    time: Microseconds = _AT


class RolledLine(_LogLine):
    """A transaction was rolled back: its steps answer calls, and their effects are gone."""

    event: Literal["rolled"]
    branch: str
    steps: list[StepNumber]
    time: Microseconds = _AT


class AcceptedLine(_LogLine):
    """A person has repaired the effect of a step by hand, or accepts it."""

    event: Literal["accepted"]
    step: StepNumber
    by: str
    time: Microseconds = _AT


class OtherLine(_LogLine):
    """A line of another package's stage."""

    event: str = Field(pattern=r"\.", description="it has a dot in it")


_OTHER: Final = "other"


def _kind_of(line: Any) -> str:
    kind = line.get("event") if isinstance(line, dict) else getattr(line, "event", None)
    return _OTHER if isinstance(kind, str) and "." in kind else str(kind)


AnyLine = Annotated[
    Annotated[RunLine, Tag("run")]
    | Annotated[AttemptLine, Tag("attempt")]
    | Annotated[GateLine, Tag("gate")]
    | Annotated[PolicyLine, Tag("policy")]
    | Annotated[EndedLine, Tag("ended")]
    | Annotated[HeldLine, Tag("held")]
    | Annotated[GoneLine, Tag("gone")]
    | Annotated[ClaimedLine, Tag("claimed")]
    | Annotated[PrunedLine, Tag("pruned")]
    | Annotated[WasLine, Tag("was")]
    | Annotated[ForkedLine, Tag("forked")]
    | Annotated[ChangedLine, Tag("changed")]
    | Annotated[StepLine, Tag("step")]
    | Annotated[OutcomeLine, Tag("outcome")]
    | Annotated[MovedLine, Tag("moved")]
    | Annotated[LeftLine, Tag("left")]
    | Annotated[RefusedLine, Tag("refused")]
    | Annotated[RequestedLine, Tag("requested")]
    | Annotated[DecidedLine, Tag("decided")]
    | Annotated[OrderedLine, Tag("ordered")]
    | Annotated[UndoingLine, Tag("undoing")]
    | Annotated[BackLine, Tag("back")]
    | Annotated[UndoneLine, Tag("undone")]
    | Annotated[RolledLine, Tag("rolled")]
    | Annotated[AcceptedLine, Tag("accepted")]
    | Annotated[OtherLine, Tag(_OTHER)],
    Discriminator(_kind_of),
]


@functools.cache
def adapter() -> TypeAdapter[Any]:
    """Validates one line; built when first needed."""
    return TypeAdapter(AnyLine)
