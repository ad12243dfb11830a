"""A plan: the steps of a workflow as data. YAML, JSON and `PlanBuilder` give the same plan."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

import pydantic
from rollcage.trace import jcs

__all__ = [
    "KINDS",
    "Block",
    "Each",
    "Jump",
    "OnFailure",
    "Plan",
    "PlanStep",
    "Repeat",
    "Retry",
    "Team",
    "Wait",
]

KINDS: Final = ("call", "agent", "team", "each", "repeat", "workflow", "wait", "value")
"""What a step does: one of these fields says it."""

OnFailure = Literal["stop", "rollback", "keep"]
"""What a failed step does: `stop` ends the execution, `rollback` undoes it, too, `keep` goes on."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
RESERVED: Final = frozenset({"inputs", "item", "index", "round", "last"}) | {
    *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function"),
    *("if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while"),
    *("int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"),
}
"""What no step can be called: variables of expressions, and words of CEL."""


def _check_id(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("a step's name is made of letters, digits and _, and begins with no digit")
    if name in RESERVED:
        raise ValueError(f"{name!r} has a meaning in expressions: give the step another name")
    return name


StepId = Annotated[str, pydantic.AfterValidator(_check_id)]
Template = Any
"""JSON; a text that begins with `=` is an expression, one with `==` is that text less one `=`."""

Seconds = Annotated[float, pydantic.Field(gt=0, le=10 * 365 * 86400)]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class Retry(_Part):
    """When a failed step is tried again. Only what failed is: never an unknown outcome or a halt.

    Attributes:
        attempts: how often it is tried, the first time included.
        wait: seconds before the second attempt.
        factor: by how much each further wait is longer.
        on: names of the exception types that are worth another attempt; all by default.
    """

    attempts: int = pydantic.Field(ge=2, le=100)
    wait: Annotated[float, pydantic.Field(ge=0, le=86400)] = 0.0
    factor: Annotated[float, pydantic.Field(ge=1, le=10)] = 1.0
    on: tuple[str, ...] = ()

    @pydantic.field_validator("on", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return _as_tuple(value)


class Jump(_Part):
    """Back to an earlier step, all between done again.

    Attributes:
        to: that step.
        when: the condition; in it, and in the steps that are done again, `last` is the result
            of the step that jumps.
        most: how many times, at the most.
    """

    to: str
    when: str
    most: int = pydantic.Field(ge=1, le=10_000)


class Block(_Part):
    """Steps that belong together.

    Attributes:
        steps: by name.
        result: a template; the result of the last step where it is not given.
    """

    steps: dict[StepId, PlanStep] = pydantic.Field(min_length=1)
    result: Template = None


class Each(Block):
    """The steps once for each element of a list.

    Attributes:
        over: an expression for the list.
        size: give so many elements to each pass, as a list (sharding); one, as itself, by default.
        max_concurrent: how many passes go on at once.
    """

    over: str
    size: int | None = pydantic.Field(default=None, ge=1)
    max_concurrent: int = pydantic.Field(default=16, ge=1, le=10_000)


class Repeat(Block):
    """The steps again and again; `round` counts from 1, `last` is the last round's result.

    Attributes:
        until: ends it where it is true after a round; there, `last` is this round's result.
        most: how many rounds, at the most.
        then: `"fail"`, or `"go_on"` with the last round's result, where `until` never was true.
    """

    until: str
    most: int = pydantic.Field(ge=1, le=1_000_000)
    then: Literal["fail", "go_on"] = "fail"


class Team(_Part):
    """Steps that are done at once, towards one result.

    Attributes:
        members: by name.
        mode: `all`: the results by name; `race`: that of the first to end well; `quorum`: those
            of the first so many to end well, by name.
        quorum: how many, for `quorum`.
        max_concurrent: how many go on at once.
    """

    members: dict[StepId, PlanStep] = pydantic.Field(min_length=1)
    mode: Literal["all", "race", "quorum"] = "all"
    quorum: int | None = pydantic.Field(default=None, ge=1)
    max_concurrent: int = pydantic.Field(default=16, ge=1, le=10_000)


class Wait(_Part):
    """What a step waits for; the result is what came.

    Attributes:
        signal: its name: `rollcage workflow signal ID NAME`.
        accepts: JSON Schema of a signal's data.
        seconds: how long, from when the step was first reached.
        until: an expression for a time (ISO 8601, with an offset).
        approval: what somebody is asked to approve, in words: a template.
        approvers: by name, who may; anybody but for whom the execution runs, by default.
        expires: how long an approval can be given (seconds).
    """

    signal: str | None = pydantic.Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    accepts: dict[str, Any] | None = None
    seconds: Seconds | None = None
    until: str | None = None
    approval: str | None = pydantic.Field(default=None, min_length=1, max_length=2000)
    approvers: tuple[str, ...] = ()
    expires: Seconds = 7 * 86400.0

    @pydantic.field_validator("approvers", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return _as_tuple(value)

    @pydantic.model_validator(mode="after")
    def _one(self) -> Self:
        given = (self.signal, self.seconds, self.until, self.approval)
        if sum(each is not None for each in given) != 1:
            raise ValueError("a wait is for one of: signal, seconds, until, approval")
        if self.approval is None and {"approvers", "expires"} & self.model_fields_set:
            raise ValueError("approvers: and expires: are for an approval")
        if self.accepts is not None and self.signal is None:
            raise ValueError("accepts: is for a signal")
        return self


class PlanStep(_Part):
    """One step. Exactly one of `KINDS` says what it does.

    Attributes:
        call: a tool's name.
        args: its arguments, or what an agent is given: templates by name.
        agent: an agent's name; a tool with the effect `scope`.
        team: steps that are done at once.
        each: steps for each element of a list.
        repeat: steps until something is true.
        workflow: another plan, by name.
        inputs: of that one.
        wait: a signal, a time or an approval.
        value: a template; nothing is called.
        after: steps that this one comes after, though it uses nothing of theirs.
        when: an expression; where it is false the step is skipped, and its result is null.
        on_failure: see `OnFailure`; what the plan says by default. With `keep`, the result is
            `{"ok": true, "value": ...}` or `{"ok": false, "error": {"type": ..., "message": ...}}`.
        retry: when it is tried again.
        timeout: seconds that an attempt may take.
        next: back to an earlier step, on a condition.
    """

    call: str | None = None
    args: dict[str, Template] = {}
    agent: str | None = None
    team: Team | None = None
    each: Each | None = None
    repeat: Repeat | None = None
    workflow: str | None = None
    inputs: dict[str, Template] = {}
    wait: Wait | None = None
    value: Template = None
    after: tuple[str, ...] = ()
    when: str | None = None
    on_failure: OnFailure | None = None
    retry: Retry | None = None
    timeout: Seconds | None = None
    next: Jump | None = None

    @pydantic.field_validator("after", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return _as_tuple(value)

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in KINDS if kind in self.model_fields_set]
        if len(given) != 1:
            found = f"this has {' and '.join(given)}" if given else "this has none of them"
            raise ValueError(f"a step has one of {', '.join(KINDS)}; {found}")
        if self.args and given[0] not in ("call", "agent"):
            raise ValueError(f"args: is for call and agent, not for {given[0]}")
        if self.inputs and given[0] != "workflow":
            raise ValueError(f"inputs: is for workflow, not for {given[0]}")
        return self

    @functools.cached_property
    def kind(self) -> str:
        """Which of `KINDS`."""
        return next(kind for kind in KINDS if kind in self.model_fields_set)

    def blocks(self) -> Iterator[tuple[tuple[str, ...], Mapping[str, PlanStep]]]:
        """The steps inside it, with their place in it."""
        if self.team is not None:
            yield ("team", "members"), self.team.members
        if self.each is not None:
            yield ("each", "steps"), self.each.steps
        if self.repeat is not None:
            yield ("repeat", "steps"), self.repeat.steps


class Plan(_Part):
    """A workflow.

    Attributes:
        name: what it is called.
        description: for people.
        inputs: by name, the JSON Schema of each; one without a `default` has to be given.
        steps: by name. What a step uses of others' results, it comes after.
        output: a template: the result of an execution; that of the last step by default.
        on_failure: what a failed step does that does not say so itself.
        time_limit: seconds that all of it may take, from its first attempt on, waits included.
    """

    name: str = pydantic.Field(min_length=1, max_length=200)
    description: str = ""
    inputs: dict[str, dict[str, Any]] = {}
    steps: dict[StepId, PlanStep] = pydantic.Field(min_length=1)
    output: Template = None
    on_failure: Literal["stop", "rollback"] = "stop"
    time_limit: Seconds | None = None

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the plan as data (RFC 8785)."""
        return hashlib.sha256(jcs(self.data())).hexdigest()

    def data(self) -> dict[str, Any]:
        """The plan as JSON, without what it leaves at its default."""
        found: dict[str, Any] = self.model_dump(mode="json", exclude_unset=True)
        return found


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


for _model in (Block, Each, Repeat, Team, PlanStep, Plan):
    _model.model_rebuild()
